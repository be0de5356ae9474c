# SPDX-License-Identifier: MIT
defmodule Tmesh.Net.Had do
  @moduledoc false
  # Tokens of what this VM has fetched and has open: the next process opens it by one, as it opens what was never
  # elsewhere, and asks neither the net nor the keeper. A token is good while its maker holds what it names. Several
  # may have opened the same, and the first one need not be the one who stays: so some are remembered.

  @table __MODULE__
  @names_of_one 4
  # Old ones go all at once.
  @most 4_096

  @type key :: {checksum :: String.t(), bytes :: pos_integer()}
  @type name :: {token :: String.t(), id :: String.t()}

  @doc "The calling process's, and gone with it."
  @spec start() :: :ok
  def start do
    @table = :ets.new(@table, [:named_table, :protected, read_concurrency: true])
    :ok
  end

  @doc "The oldest first. Some may be good no more."
  @spec find(key()) :: [name()]
  def find(key) do
    case :ets.lookup(@table, key) do
      [{^key, names}] -> names
      [] -> []
    end
  rescue
    # No net runs here.
    ArgumentError -> []
  end

  @doc "Whether one more would be remembered, of as many as are good."
  @spec room?(good :: non_neg_integer()) :: boolean()
  def room?(good), do: good < @names_of_one

  @doc "By the process that has started it: these are good no more, and this one is."
  @spec put(key(), [name()], name() | nil) :: :ok
  def put(key, dead, name) do
    case Enum.take((find(key) -- dead) ++ List.wrap(name), @names_of_one) do
      [] ->
        :ets.delete(@table, key)

      names ->
        if :ets.info(@table, :size) >= @most, do: :ets.delete_all_objects(@table)
        :ets.insert(@table, {key, names})
    end

    :ok
  end
end
