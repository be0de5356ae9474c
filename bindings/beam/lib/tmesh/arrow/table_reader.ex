# SPDX-License-Identifier: MIT
# If the table package was compiled before this one, its readers take Tmesh.Arrow's tables.
if Code.ensure_loaded?(Table.Reader) do
  defimpl Table.Reader, for: Tmesh.Arrow.TableRef do
    alias Tmesh.Arrow

    # A column becomes terms when it is read. A column that a reader leaves out never does.
    def init(table) do
      names = for {name, _type, _nullable} <- table.schema, do: name

      columns =
        names
        |> Enum.with_index()
        |> Stream.map(fn {_name, index} -> column(table, index) end)

      {:columns, %{columns: names, count: table.num_rows}, columns}
    end

    # Find it by its position, because two columns may have one name.
    defp column(table, index) do
      Stream.flat_map(table.batches, &(&1 |> Enum.at(index) |> Arrow.to_list!()))
    end
  end
end
