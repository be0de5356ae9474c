# SPDX-License-Identifier: MIT
defmodule Tmesh.ReadmeTest do
  @moduledoc false
  # The examples of this README and of the repository's, with the definitions that they need before them.
  use Tmesh.Case, backend: :any
  alias Tmesh.PythonPool

  @beam __DIR__ |> Path.join("../README.md") |> File.read!()
  @whole __DIR__ |> Path.join("../../../README.md") |> File.read!()

  @aliases "alias Tmesh.ZeroCopy\nalias Tmesh.ZeroCopy.TensorRef\n"
  @four "ref = ZeroCopy.from_binary!(<<1, 2, 3, 4>>, [4], :uint8)\n"
  @sealed "sealed = ZeroCopy.from_binary!(<<0::size(43 * 384 * 32)>>, [43, 384], :float32)\n" <>
            "{:ok, json} = TensorRef.to_json(sealed)\n"
  @vector "vector = <<0::size(384 * 32)>>\n"
  @outfeed "spawn_link(fn -> Tmesh.Case.eventually(fn -> Process.whereis(:my_stream) end)\n" <>
             "Tmesh.Stream.push_outfeed(:my_stream, 1) end)\n"
  @table "{:ok, table} = Tmesh.Arrow.from_columns(%{\"age\" => [1]})\n" <>
           "{:ok, json_of_a_table_from_python} = TensorRef.to_json(table.ref)\n"

  @model "path = Path.join(System.tmp_dir!(), \"readme-\\#{System.pid()}.safetensors\")\n" <>
           "tensor = {\"layer.weight\", \"U8\", [1], \"x\"}\n" <>
           "File.write!(path, Tmesh.ModelFiles.safetensors([tensor]))\n"

  # The README, the example's first words, the definitions before it, and the Python that it needs.
  @examples [
    {@beam, "alias Tmesh.ZeroCopy", "", :numpy},
    {@beam, "{:ok, ref} = TensorRef.from_json", @sealed, nil},
    {@beam, "{:ok, out} = Tmesh.Channel.create", "", nil},
    {@beam, "{:ok, arena} = Tmesh.Arena.create", @vector, nil},
    {@beam, "{:ok, table} = Tmesh.Arrow.from_columns", @table, :pandas},
    {@beam, "{:ok, model} = Tmesh.Model.load", @model, nil},
    {@beam, "{:ok, bundle} = Tmesh.Bundle.put", @four, nil},
    {@beam, "{:ok, _pid} = Tmesh.Stream.start_link", @four <> @outfeed, nil},
    {@beam, "{:ok, _pool} = Tmesh.Worker.start_pool", @four, :numpy},
    {@whole, "{:ok, _pool} = Tmesh.Worker.start_pool", @four, :numpy}
  ]

  @pandas match?(
            {_output, 0},
            System.cmd("sh", ["-c", "#{PythonPool.arrow()} -c 'import tmesh.arrow, pandas' 2>&1"])
          )

  setup context do
    # The examples may leave the pools that they start.
    on_exit(fn ->
      :ok = Application.stop(:tmesh)
      :ok = Application.start(:tmesh)
    end)

    %{python: python(context[:needs])}
  end

  for {{readme, first, before, needs}, number} <- Enum.with_index(@examples, 1) do
    @tag needs: needs
    if needs == :numpy and not PythonPool.available?(), do: @tag(skip: PythonPool.why_not())
    if needs == :pandas and not @pandas, do: @tag(skip: "no Python with pandas: make python-arrow")

    test "#{number}: #{first}", %{python: python} do
      code =
        Regex.scan(~r/```elixir\n(.*?)```/s, unquote(readme), capture: :all_but_first)
        |> Enum.find_value(fn [code] -> String.starts_with?(code, unquote(first)) && code end)

      code = String.replace(code, "build/venv/bin/python", python || "")
      Code.eval_string(@aliases <> unquote(before) <> code)
    end
  end

  test "there are no others" do
    assert length(Regex.scan(~r/^```elixir$/m, @beam)) == 10
    assert length(Regex.scan(~r/^```elixir$/m, @whole)) == 1
  end

  # Put it in the path as python3 too, as a user would have installed it.
  defp python(nil), do: nil

  defp python(needs) do
    name = if needs == :pandas, do: PythonPool.arrow(), else: PythonPool.options()[:python]
    python = System.find_executable(name)
    path = System.get_env("PATH")
    on_exit(fn -> System.put_env("PATH", path) end)
    System.put_env("PATH", "#{Path.dirname(python)}:#{path}")
    python
  end
end
