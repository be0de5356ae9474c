# SPDX-License-Identifier: MIT
defmodule Tmesh.GraphTest do
  @moduledoc false
  use Tmesh.Case, backend: :any

  alias Tmesh.{Engine, Graph, PagePool, Pages, Pages.Sequence}

  doctest Graph

  # Python's package of ggml is built for AVX2.
  @ggml System.get_env("TMESH_GGML", "") != "" and File.read!("/proc/cpuinfo") =~ "avx2"

  # Every operator once, with each attribute.
  defp whole do
    Graph.new!("g")
    |> Graph.input!("x", :f32, {2, 64})
    |> Graph.input!("pos", :int32, [2])
    |> Graph.input!("rows", :int64, [2])
    |> Graph.input!("past", :float16, [16, 64], cache: :reuse)
    |> Graph.weight!("table", :float32, [10, 64], quant: "Q8_0")
    |> Graph.weight!("w", {:f, 16}, [64, 64], cache: :stream)
    |> Graph.weight!("s", :float32, [64])
    |> Graph.weight!("f", :float32, [4])
    |> Graph.add!("e", :get_rows, ["table", "pos"])
    |> Graph.add!("a", :add, ["x", "e"])
    |> Graph.add!("n", :rms_norm, ["a", "s"], eps: 0.5, dtype: :float32, shape: [2, 64])
    |> Graph.add!("l", :layer_norm, ["n", "s", "s"], eps: 0)
    |> Graph.add!("m", :matmul, ["l", "w"], cache: :stream)
    |> Graph.add!("r", :reshape, ["m"], dtype: :float32, shape: {2, 4, 16})
    |> Graph.add!("q", :rope, ["r", "pos", "f"], base: 5000.0, dims: 8, halves: true)
    |> Graph.add!("present", :set_rows, ["past", "m", "rows"])
    |> Graph.add!("k", :reshape, ["present"], dtype: :float16, shape: [16, 4, 16])
    |> Graph.add!("at", :attention, ["q", "k", "k", "pos"], scale: 0.25)
    |> Graph.add!("t", :transpose, ["at"], axes: [1, 0, 2])
    |> Graph.add!("c", :concat, ["t", "t"], axis: 2)
    |> Graph.add!("si", :silu, ["c"])
    |> Graph.add!("ge", :gelu, ["si"])
    |> Graph.add!("mu", :mul, ["ge", "si"])
    |> Graph.add!("so", :softmax, ["mu"], scale: 2)
    |> Graph.input!("la", :float32, [4, 64])
    |> Graph.input!("lb", :float32, [64, 4])
    |> Graph.add!("lo", :lora, ["x", "w", "la", "lb"])
    |> Graph.output!("probabilities", "so")
    |> Graph.output!("adapted", "lo")
    |> Graph.output!("cache", "present")
  end

  test "every operator, in every form and back" do
    graph = whole()
    assert inspect(graph) == ~s(#Tmesh.Graph<"g", 27 nodes, 3 outputs>)
    nodes = Map.new(Graph.nodes(graph), &{&1.name, &1})

    # Each word of the library becomes an atom.
    for node <- Map.values(nodes), do: assert(is_atom(node.op) and is_atom(node.dtype))

    # The library infers them.
    assert %{op: :softmax, inputs: ["mu"], dtype: :float32, shape: [4, 2, 32], scale: 2.0} =
             nodes["so"]

    assert %{dims: 8, halves: true, base: 5000.0, shape: [2, 4, 16]} = nodes["q"]
    assert %{axes: [1, 0, 2]} = nodes["t"]
    assert %{axis: 2} = nodes["c"]
    assert %{cache: :stream, shape: [2, 64]} = nodes["m"]
    assert %{quant: "Q8_0", op: :weight, inputs: []} = nodes["table"]
    assert %{dtype: :float16, shape: [16, 64]} = nodes["present"]

    assert Graph.outputs(graph) == %{
             "probabilities" => "so",
             "adapted" => "lo",
             "cache" => "present"
           }

    assert Graph.in_place(graph) == %{"cache" => "past"}

    again = graph |> Graph.to_text!() |> Graph.parse!()
    assert again.name == "g"
    assert Graph.to_json!(again) == Graph.to_json!(graph)
    assert Graph.nodes(again) == Graph.nodes(graph)

    assert "digraph" <> _ = dot = Graph.to_dot!(graph)
    assert dot =~ "attention"
  end

  test "a graph is a value: an addition to one changes no other" do
    base = Graph.new!("g") |> Graph.input!("x", :float32, [2, 4])
    left = base |> Graph.add!("l", :silu, ["x"]) |> Graph.output!("y", "l")
    # From the same base, which is no longer the newest.
    right = base |> Graph.add!("l", :softmax, ["x"]) |> Graph.add!("r", :gelu, ["l"])
    both = Graph.output!(left, "z", "l")

    assert Graph.to_text!(base) == "graph g\nx = input : float32[2,4]\n"
    assert [_x, %{name: "l", op: :silu}] = Graph.nodes(left)
    assert [_x, %{name: "l", op: :softmax}, %{name: "r"}] = Graph.nodes(right)
    assert Graph.outputs(left) == %{"y" => "l"}
    assert Graph.outputs(both) == %{"y" => "l", "z" => "l"}

    # Processes share one graph.
    texts =
      1..8
      |> Enum.map(&Task.async(fn -> left |> Graph.add!("n", :mul, ["x", "l"]) |> add_many(&1) end))
      |> Task.await_many(60_000)

    for {graph, n} <- Enum.zip(texts, 1..8), do: assert(graph.node_count == 3 + n)
    assert left.node_count == 2 and length(Graph.nodes(left)) == 2
  end

  defp add_many(graph, count) do
    for n <- 1..count, reduce: graph, do: (graph -> Graph.add!(graph, "n#{n}", :silu, ["n"]))
  end

  test "what is wrong is refused with the node's name, and the graph is as before" do
    graph = Graph.new!("g") |> Graph.input!("x", :float32, [2, 4])
    before = Graph.to_text!(graph)
    add = fn name, op, inputs, opts -> Graph.add(graph, name, op, inputs, opts) end

    for {refused, words} <- [
          {add.("x", :silu, ["x"], []), "two nodes"},
          {add.("n", :silu, ["none"], []), "node \"n\": the graph has no node \"none\""},
          {add.("n", :silu, [], []), "n"},
          {add.("n", :silu, ["x", "x"], []), "n"},
          {add.("n", :convolution, ["x"], []), "no operator \"convolution\""},
          {add.("n", "silu", ["x"], []), "no operator"},
          {add.("n", :matmul, ["x", "x", "x"], []), "n"},
          {add.("n", :silu, ["x"], shape: [2, 5], dtype: :float32), "n"},
          {add.("n", :silu, ["x"], eps: 1), "silu has no attribute eps"},
          {add.("n", :silu, ["x"], eps: :small), "the value of eps"},
          {add.("n", :rms_norm, ["x"], eps: 1.0e300), "eps"},
          {add.("n", :softmax, ["x"], scale: 10 ** 30), "scale"},
          {add.("n", :transpose, ["x"], axes: [0, 0]), "n"},
          {add.("n", :transpose, ["x"], axes: [0, 10 ** 12]), "axes"},
          {add.("n", :concat, ["x", "x"], axis: -1), "n"},
          {add.("n", :silu, ["x"], cache: :forever), "cache"},
          {add.("n", :silu, ["x"], colour: :red), "colour"},
          {add.("n", :silu, ["x"], :none), "keyword"},
          {add.("n", :silu, "x", []), "inputs are a list"},
          {add.("n", :silu, [:x], []), "names"},
          {add.("n", :concat, List.duplicate("x", 9), []), "more than 8 inputs"},
          {add.("two words", :silu, ["x"], []), "name"},
          {add.(:n, :silu, ["x"], []), "name"},
          {Graph.input(graph, "n", :complex64, [2]), "n"},
          {Graph.input(graph, "n", :no, [2]), "dtype"},
          {Graph.input(graph, "n", :float32, [0]), "at least 1"},
          {Graph.input(graph, "n", :float32, [4_294_967_296, 4_294_967_296]), "2^48"},
          {Graph.input(graph, "n", :float32, List.duplicate(1, 9)), "shape"},
          {Graph.input(graph, "n", :float32, [2], quant: "Q8_0"), "quant"},
          {Graph.weight(graph, "n", :float32, [32], quant: "Q9"), "n"},
          {Graph.weight(graph, "n", :float32, [33], quant: "Q8_0"), "blocks"},
          {Graph.output(graph, "y", "x"), "computes nothing"},
          {Graph.output(graph, "y", "none"), "no node \"none\""},
          {Graph.output(graph, 1, "x"), "output"},
          {Graph.new(""), "name"},
          {Graph.new(String.duplicate("n", 10_000)), "name"}
        ] do
      assert {:error, %Error{type: :invalid, message: message}} = refused
      assert message =~ words
    end

    assert Graph.to_text!(graph) == before
    assert_raise Error, ~r/no node "none"/, fn -> Graph.add!(graph, "n", :silu, ["none"]) end
    other = %{graph | native: make_ref()}
    assert {:error, %Error{type: :closed}} = Graph.to_text(other)
    assert {:error, %Error{type: :closed}} = Graph.add(other, "n", :silu, ["x"])
    assert {:error, %Error{}} = Graph.add(%{graph | node_count: 9}, "n", :silu, ["x"])
  end

  test "what is read is checked: text and files" do
    for {text, words} <- [
          {"", ""},
          {"graph g\na = silu(b)\nb = silu(a)\noutput y = a\n", "cycle"},
          {"graph g\nx = input : float32[2]\ny = none(x)\n", "none"},
          {"graph g\nx = input : float32[99999999999999999999]\n", "line 2"},
          {Graph.to_json!(whole()), "begins with"},
          {<<"graph g\n", 0, 255>>, ""}
        ] do
      assert {:error, %Error{type: :protocol, message: message}} = Graph.parse(text)
      assert message =~ words
    end

    assert {:error, %Error{type: :invalid}} = Graph.parse(:graph)
    folder = temporary()
    file = Path.join(folder, "g.graph")
    graph = whole()
    assert Graph.save!(graph, file) == :ok
    assert file |> Graph.read!() |> Graph.nodes() == Graph.nodes(graph)
    assert {:error, %Error{type: :not_found}} = Graph.read(Path.join(folder, "none"))
    assert {:error, %Error{message: message}} = Graph.save(graph, Path.join(folder, "none/g"))
    assert message =~ "none/g"
  end

  defp temporary do
    folder = Path.join(System.tmp_dir!(), "graph-#{System.pid()}-#{System.unique_integer()}")
    File.mkdir_p!(folder)
    on_exit(fn -> File.rm_rf!(folder) end)
    folder
  end

  describe "the engine ggml" do
    unless @ggml do
      @describetag skip: "only where TMESH_GGML names ggml's library, on a processor with AVX2"
    end

    setup do
      folder = temporary()
      name = "ggml-#{System.pid()}-#{System.unique_integer([:positive])}"
      start_supervised!({Engine.Server, served(name, folder)})
      %{name: name, folder: folder}
    end

    # A busy machine's delay must not end an engine or client.
    defp served(name, folder),
      do: [name: name, engine: "ggml", models: [folder], limit: 900, patience: 60]

    defp floats(numbers), do: for(n <- numbers, into: <<>>, do: <<n::float-32-native>>)
    defp tensor(numbers, shape), do: ZeroCopy.from_binary!(floats(numbers), shape, :float32)
    defp numbers(ref), do: for(<<n::float-32-native <- ZeroCopy.to_binary!(ref)>>, do: n)

    # Multiply rows by rows, as the operator does.
    defp product(a, b),
      do: for(row <- a, other <- b, do: Enum.zip_reduce(row, other, 0.0, &(&1 * &2 + &3)))

    test "runs what was built, and inputs are replaced", %{name: name, folder: folder} do
      engine = Engine.connect!(name)
      file = Path.join(folder, "g.graph")

      Graph.new!("g")
      |> Graph.input!("x", :float32, [2, 4])
      |> Graph.weight!("w", :float32, [3, 4])
      |> Graph.input!("a", :float32, [1, 4])
      |> Graph.input!("b", :float32, [3, 1])
      |> Graph.input!("scale", :float32, [1])
      |> Graph.add!("y", :lora, ["x", "w", "a", "b", "scale"])
      |> Graph.output!("y", "y")
      |> Graph.save!(file)

      x = [[1.0, 2.0, 3.0, 4.0], [-1.0, 0.5, 0.25, 2.0]]
      w = [[1.0, 0.0, 2.0, 0.0], [0.5, 0.5, 0.5, 0.5], [0.0, -1.0, 0.0, 1.0]]
      {a, b} = {[[1.0, 1.0, 0.0, 2.0]], [[1.0], [2.0], [-1.0]]}
      sealed = w |> Enum.concat() |> tensor([3, 4])
      graph = Engine.graph!(engine, file, weights: %{"w" => sealed})
      out = ZeroCopy.allocate!([2, 3], :float32)

      inputs = %{
        "x" => x |> Enum.concat() |> tensor([2, 4]),
        "a" => a |> Enum.concat() |> tensor([1, 4]),
        "b" => b |> Enum.concat() |> tensor([3, 1]),
        "scale" => tensor([0.0], [1])
      }

      binding = Engine.bind!(graph, inputs, %{"y" => out})
      assert Engine.dispatch!(binding) == :ok
      assert numbers(out) == product(x, w)

      # Rebind an adapter: other memory, and nothing is made anew.
      assert Engine.rebind!(binding, %{"scale" => tensor([0.5], [1])}) == :ok
      assert Engine.dispatch!(binding) == :ok
      down = x |> product(a) |> Enum.map(&[&1])
      adapter = Enum.map(product(down, b), &(&1 * 0.5))
      expected = Enum.zip_with(product(x, w), adapter, &+/2)
      assert numbers(out) == expected

      # All inputs are replaced, or none.
      for {wrong, type, words} <- [
            {%{"scale" => tensor([0.0], [1]), "no" => tensor([0.0], [1])}, :not_found, "no"},
            {%{"b" => tensor([0.0], [1]), "scale" => tensor([0.0], [1])}, :invalid, "b"},
            {%{"scale" => ZeroCopy.allocate!([1], :int32)}, :invalid, "scale"}
          ] do
        assert {:error, %Error{type: ^type, message: message}} = Engine.rebind(binding, wrong)
        assert message =~ words
        assert Engine.dispatch!(binding) == :ok
        assert numbers(out) == expected
      end
    end

    test "writes a cache in place, and says what it cannot run", %{name: name, folder: folder} do
      engine = Engine.connect!(name)
      file = Path.join(folder, "cache.graph")

      graph =
        Graph.new!("cache")
        |> Graph.input!("past", :float32, [4, 4], cache: :reuse)
        |> Graph.input!("new", :float32, [1, 4])
        |> Graph.input!("row", :int64, [1])
        |> Graph.add!("present", :set_rows, ["past", "new", "row"])
        |> Graph.output!("present", "present")

      Graph.save!(graph, file)
      cache = ZeroCopy.allocate!([4, 4], :float32)
      row = ZeroCopy.from_binary!(<<2::64-native>>, [1], :int64)
      inputs = %{"past" => cache, "new" => tensor([1.0, 2.0, 3.0, 4.0], [1, 4]), "row" => row}
      in_place = Graph.in_place(graph)
      opened = Engine.graph!(engine, file)
      binding = Engine.bind!(opened, inputs, %{"present" => cache}, in_place: in_place)
      assert Engine.dispatch!(binding) == :ok

      assert numbers(cache) ==
               List.duplicate(0.0, 8) ++ [1.0, 2.0, 3.0, 4.0] ++ [0.0, 0.0, 0.0, 0.0]

      # Do the same in a page of a pool: the engine writes where the sequence reads.
      pool = PagePool.create!(page_bytes: 4096, page_tokens: 16, slab_pages: 4, max_pages: 4)
      pages = Pages.open!(PagePool.tenant!(pool))
      on_exit(fn -> Pages.close(pages) && PagePool.close(pool) end)
      assert {:error, %Error{type: :not_found}} = Pages.slab(pages)
      sequence = Pages.sequence!(pages)
      :ok = Sequence.append(sequence, 3)
      [page] = Sequence.block_table!(sequence)
      memory = Pages.slab!(pages, [4 * 256, 4], dtype: :float32)
      assert Pages.slab!(pages).shape == [4 * 4096]
      assert {:error, %Error{type: :invalid}} = Pages.slab(pages, [4 * 256 + 1, 4], dtype: :float32)
      assert {:error, %Error{type: :invalid}} = Pages.slab(pages, nil, slab: 1)
      assert {:error, %Error{type: :invalid}} = Pages.slab(pages, nil, device: -1)

      wide =
        Graph.new!("pages")
        |> Graph.input!("past", :float32, [4 * 256, 4], cache: :reuse)
        |> Graph.input!("new", :float32, [1, 4])
        |> Graph.input!("row", :int64, [1])
        |> Graph.add!("present", :set_rows, ["past", "new", "row"])
        |> Graph.output!("present", "present")

      Graph.save!(wide, Path.join(folder, "pages.graph"))
      assert Engine.lifeline(engine, pages) == :ok
      row = ZeroCopy.from_binary!(<<page * 256 + 2::64-native>>, [1], :int64)
      inputs = %{"past" => memory, "new" => tensor([1.0, 2.0, 3.0, 4.0], [1, 4]), "row" => row}
      opened = Engine.graph!(engine, Path.join(folder, "pages.graph"))
      binding = Engine.bind!(opened, inputs, %{"present" => memory}, in_place: in_place)
      assert Engine.dispatch!(binding) == :ok
      assert Sequence.read!(sequence, 0, offset: 32, bytes: 16) == floats([1.0, 2.0, 3.0, 4.0])
      :ok = Pages.close(pages)
      assert {:error, %Error{type: :closed}} = Engine.lifeline(engine, pages)
      assert {:error, %Error{type: :closed}} = Pages.slab(pages)

      five = Path.join(folder, "five.graph")

      Graph.new!("five")
      |> Graph.input!("x", :float32, [1, 1, 1, 1, 4])
      |> Graph.add!("wide", :silu, ["x"])
      |> Graph.output!("y", "wide")
      |> Graph.save!(five)

      assert {:error, %Error{type: :unsupported, message: message}} = Engine.graph(engine, five)
      assert message =~ ~s("x") or message =~ "wide"
    end
  end
end
