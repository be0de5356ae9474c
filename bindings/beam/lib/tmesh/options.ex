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
end
