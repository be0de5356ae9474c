# SPDX-License-Identifier: MIT
defmodule Tmesh.Options do
  @moduledoc false

  alias Tmesh.Error

  @doc "Do as `Keyword.validate/2`, for any term, with an error for people."
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

  @doc "Return `{:ok, results}` of `fun` for each item, or its first answer that is not `{:ok, result}`."
  @spec map_ok(Enumerable.t(item), (item -> {:ok, result} | error)) :: {:ok, [result]} | error
        when item: term(), result: term(), error: term()
  def map_ok(items, fun) do
    items
    |> Enum.reduce_while([], fn item, done ->
      case fun.(item) do
        {:ok, result} -> {:cont, [result | done]}
        error -> {:halt, {:failed, error}}
      end
    end)
    |> case do
      {:failed, error} -> error
      done -> {:ok, Enum.reverse(done)}
    end
  end

  @doc "Return whether a term is a timeout: milliseconds, or `:infinity`."
  defguard is_timeout(term) when term == :infinity or (is_integer(term) and term >= 0)

  @doc "Return the error for a term that is no timeout."
  @spec no_timeout() :: {:error, Error.t()}
  def no_timeout,
    do: {:error, Error.new(:invalid, "timeout must be milliseconds, at least 0, or :infinity")}

  @region [label: "", huge: false, mode: 0o600, node: nil, gid: nil, hold_ms: 0, pin: true]

  @doc "Return the options of a new region with their defaults: all of them, or those named."
  @spec of_region([atom()]) :: keyword()
  def of_region(names \\ Keyword.keys(@region)), do: Keyword.take(@region, names)

  @doc "Return the region's options in the library's form."
  @spec region(keyword()) :: Tmesh.Native.region_opts()
  def region(options) do
    @region
    |> Enum.map(fn {name, default} -> Keyword.get(options, name, default) end)
    |> List.to_tuple()
  end

  @doc "Return the rights for the option `writable`."
  @spec rights(term()) :: {:ok, :read | :write} | {:error, Error.t()}
  def rights(true), do: {:ok, :write}
  def rights(false), do: {:ok, :read}
  def rights(_other), do: {:error, Error.new(:invalid, "writable must be true or false")}

  @hold_ms 60_000
  @longest_hold_ms 24 * 3_600_000

  @doc "Return for how many nanoseconds a ref holds its memory by the option `hold`, or nil."
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
