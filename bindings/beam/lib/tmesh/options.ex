# SPDX-License-Identifier: MIT
defmodule Tmesh.Options do
  @moduledoc false

  alias Tmesh.Error

  @doc "As `Keyword.validate/2`, of anything, with an error for people."
  @spec validate(term(), [atom() | {atom(), term()}]) :: {:ok, keyword()} | {:error, Error.t()}
  def validate(options, known) do
    with true <- Keyword.keyword?(options),
         {:ok, options} <- Keyword.validate(options, known) do
      {:ok, options}
    else
      false -> {:error, Error.new(:invalid, "options must be a keyword list")}
      {:error, keys} -> {:error, Error.new(:invalid, "unknown options: #{inspect(keys)}")}
    end
  end

  @region [label: "", huge: false, mode: 0o600, node: nil, gid: nil, linger_ms: 0, pin: true]

  @doc "The options of a new region, with their defaults: all of them or those named."
  @spec of_region([atom()]) :: keyword()
  def of_region(names \\ Keyword.keys(@region)), do: Keyword.take(@region, names)

  @doc "Of all options those of the region, as the library takes them."
  @spec region(keyword()) :: Tmesh.Native.region_opts()
  def region(options) do
    @region
    |> Enum.map(fn {name, default} -> Keyword.get(options, name, default) end)
    |> List.to_tuple()
  end

  @doc "The rights that `writable` asks for."
  @spec rights(term()) :: {:ok, :read | :write} | {:error, Error.t()}
  def rights(true), do: {:ok, :write}
  def rights(false), do: {:ok, :read}
  def rights(_other), do: {:error, Error.new(:invalid, "writable must be true or false")}

  @hold_ms 60_000
  @longest_hold_ms 24 * 3_600_000

  @doc "What the option `hold` says: for how many nanoseconds a ref holds its memory, or nil."
  @spec hold(term()) :: {:ok, pos_integer() | nil} | {:error, Error.t()}
  def hold(options) do
    with {:ok, options} <- validate(options, hold: false) do
      case options[:hold] do
        false ->
          {:ok, nil}

        true ->
          {:ok, @hold_ms * 1_000_000}

        ms when is_integer(ms) and ms in 1..@longest_hold_ms ->
          {:ok, ms * 1_000_000}

        _wrong ->
          {:error, Error.new(:invalid, "hold is true, false, or milliseconds up to a day")}
      end
    end
  end
end
