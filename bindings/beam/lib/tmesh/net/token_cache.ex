# SPDX-License-Identifier: MIT
defmodule Tmesh.Net.TokenCache do
  @moduledoc false
  # Tokens of regions that this VM has fetched and has open. The next process opens such a region by its token, like a
  # local one, and asks neither the net nor the keeper. A token is valid while its maker holds the region. Several
  # processes may have opened a region, and the first may end first, so several tokens are kept.

  @table __MODULE__
  @names_of_one 4
  # Above this number all are dropped at once.
  @most 4_096

  @type key :: {checksum :: String.t(), bytes :: pos_integer()}
  @type name :: {token :: String.t(), id :: String.t()}

  @doc "Make the cache. The calling process owns it, and it ends with that process."
  @spec start() :: :ok
  def start do
    @table = :ets.new(@table, [:named_table, :protected, read_concurrency: true])
    :ok
  end

  @doc "Return the tokens of a region, the oldest first. Some may be invalid by now."
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

  @doc "Return whether there is room for one more token beside `good` valid ones."
  @spec room?(good :: non_neg_integer()) :: boolean()
  def room?(good), do: good < @names_of_one

  @doc "Drop the invalid tokens of a region, and add a valid one. Only the owner of the cache may call it."
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
