# SPDX-License-Identifier: MIT
defmodule Tmesh.TableReaderTest do
  @moduledoc false
  use Tmesh.Case, backend: :any

  alias Tmesh.Arrow

  @compile {:no_warn_undefined, Table.Reader}
  @ours __DIR__ |> Path.join("../lib/tmesh/arrow/table_reader.ex")

  # The package is not available where the tests run. So they bring a stand-in for its protocol, and compile the
  # implementation as mix does after the package.
  setup do
    Code.require_file("support/table.exs", __DIR__)
    modules = for {module, _beam} <- Code.compile_file(@ours), do: module

    on_exit(fn ->
      for module <- [Table.Reader, Table.Reader.Any | modules] do
        :code.purge(module)
        :code.delete(module)
      end

      Code.unrequire_files([Path.expand("support/table.exs", __DIR__)])
    end)

    assert modules == [Table.Reader.Tmesh.Arrow.TableRef]
    :ok
  end

  test "a table is columns, which are read when they are asked for" do
    table = Arrow.from_columns!([{"name", ["Ann", nil]}, {"age", [41, 7]}, {"name", [1, 2]}])
    assert {:columns, %{columns: columns, count: 2}, data} = Table.Reader.init(table)
    assert columns == ["name", "age", "name"]
    assert Enum.map(data, &Enum.to_list/1) == [["Ann", nil], [41, 7], [1, 2]]
    # The binaries hold their memory.
    :ok = Arrow.release(table)
    assert data |> Enum.at(1) |> Enum.take(1) == [41]
  end

  test "without rows, and without columns" do
    empty = Arrow.from_columns!(%{"x" => {:int8, []}})
    assert {:columns, %{columns: ["x"], count: 0}, data} = Table.Reader.init(empty)
    assert Enum.map(data, &Enum.to_list/1) == [[]]
    none = Arrow.from_columns!(%{})
    assert {:columns, %{columns: [], count: 0}, data} = Table.Reader.init(none)
    assert Enum.to_list(data) == []
  end
end
