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
