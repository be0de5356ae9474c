# SPDX-License-Identifier: MIT
defmodule Tmesh.SpecTest do
  @moduledoc false
  # If a spec has String.t() or binary(), a caller matches on <<...>>, compares with == and sends the text on. A list
  # of its parts or a charlist looks alike when printed, but would be refused far from here.
  use Tmesh.Case, backend: :any

  alias Tmesh.{Arrow, Bundle, Graph, Model, PagePool, Pages, Pages.Sequence}

  import Tmesh.ModelFiles

  {:ok, modules} = :application.get_key(:tmesh, :modules)
  @modules modules

  # These need an engine, Nx or a net. Their own tests compare their texts.
  @elsewhere [
    {Tmesh.Engine, :dispatch, 4},
    {Tmesh.Engine, :info, 1},
    {Tmesh.Engine.Tensor, :read, 1},
    {Tmesh.Model, :read, 2},
    {Tmesh.Model, :to_nx, 1},
    {Tmesh.Net, :lookup, 1},
    {Tmesh.Net, :names, 0},
    {Tmesh, :kept_path, 2}
  ]

  test "what promises a text or bytes gives a binary, wherever in its result" do
    promised = promised()
    given = given()
    assert Enum.sort(Map.keys(promised)) == Enum.sort(Map.keys(given) ++ @elsewhere)

    wrong =
      for {function, values} <- given,
          value <- values,
          not Enum.any?(promised[function], &fits?(value, &1)),
          # Keep the text: a value that a failure shows would keep the memory.
          do: {function, inspect(value)}

    assert wrong == []
  end

  test "the check sees lists in the place of texts" do
    for {type, good, bad} <- [
          {quote(do: String.t()), "a", ~c"a"},
          {quote(do: String.t()), "a", <<255>>},
          {quote(do: binary()), <<255>>, ["a", ?b]},
          {quote(do: {:ok, token :: String.t()}), {:ok, "a"}, {:ok, ["a"]}},
          {quote(do: [String.t()]), ["a", "b"], ["a", ["b"]]},
          {quote(do: %{required(String.t()) => term()}), %{"a" => 1}, %{~c"a" => 1}},
          {quote(do: %{required(String.t()) => String.t()}), %{"a" => "b"}, %{"a" => ["b"]}},
          {quote(do: offer() | String.t()), "a", ~c"a"}
        ] do
      assert fits?(good, type)
      refute fits?(bad, type)
    end
  end

  # The other way round: a private text goes into lists of parts, and its spec says so.
  test "a string of a payload is a list, as its spec says" do
    for text <- ["", "a", ~s(a"b\\c\n)], do: assert(is_list(Tmesh.Worker.Payload.string(text)))
  end

  # Return each documented function with the types that it returns, by its specs. The variants that raise are made of
  # these.
  defp promised do
    for module <- @modules,
        {:docs_v1, _, _, _, %{}, _, docs} <- [Code.fetch_docs(module)],
        {:ok, specs} = Code.Typespec.fetch_specs(module),
        {{name, arity}, types} <- specs,
        not String.ends_with?("#{name}", "!"),
        Enum.any?(docs, &match?({{:function, ^name, ^arity}, _, _, %{}, _}, &1)),
        returns = Enum.map(types, &returned(name, &1)),
        Enum.any?(returns, &text?/1),
        into: %{},
        do: {{module, name, arity}, returns}
  end

  defp returned(name, type) do
    case Code.Typespec.spec_to_quoted(name, type) do
      {:when, _, [{:"::", _, [_head, returned]}, _variables]} -> returned
      {:"::", _, [_head, returned]} -> returned
    end
  end

  defp text?(type) do
    {_type, found?} =
      Macro.prewalk(type, false, fn
        {{:., _, [{:__aliases__, _, [:String]}, :t]}, _, []} = node, _ -> {node, true}
        {{:., _, [String, :t]}, _, []} = node, _ -> {node, true}
        {:binary, _, []} = node, _ -> {node, true}
        node, found? -> {node, found?}
      end)

    found?
  end

  # A type without a text in it accepts any value.
  defp fits?(value, {:|, _, [one, other]}), do: fits?(value, one) or fits?(value, other)
  defp fits?(value, {:"::", _, [_name, type]}), do: fits?(value, type)
  defp fits?(value, {:{}, _, [:ok, type]}), do: fits?(value, {:ok, type})
  defp fits?({:ok, value}, {:ok, type}), do: fits?(value, type)
  defp fits?(list, [type]), do: is_list(list) and Enum.all?(list, &fits?(&1, type))

  defp fits?(map, {:%{}, _, [{{:required, _, [key]}, type}]}),
    do: is_map(map) and Enum.all?(map, fn {k, value} -> fits?(k, key) and fits?(value, type) end)

  defp fits?(value, {:binary, _, []}), do: is_binary(value)
  defp fits?(value, {{:., _, [_module, :t]}, _, []} = type), do: not text?(type) or utf8?(value)
  defp fits?(_value, {:term, _, []}), do: true
  defp fits?(value, {:list, _, [type]}), do: fits?(value, [type])
  defp fits?(list, {kind, _, _}) when kind in [:offer, :pid, :%{}], do: is_map(list) or is_pid(list)
  defp fits?(_value, _type), do: false

  defp utf8?(value), do: is_binary(value) and String.valid?(value)

  # At least one value of each type, made as a user makes it.
  defp given do
    ref = %{ZeroCopy.from_binary!("abcd", [2, 2], :uint8) | names: ["é", nil]}
    bundle = Bundle.put!(%{"a" => ref}, metadata: "{}")
    table = Arrow.from_columns!(%{"x" => [1, 2]})
    graph = "g" |> Graph.new!() |> Graph.input!("x", :float32, [2]) |> Graph.add!("y", :silu, ["x"])
    graph = Graph.output!(graph, "out", "y")
    {pool, sequence} = paged()
    {model, path} = model()
    start_supervised!({Tmesh.Stream, name: __MODULE__})
    token = Tmesh.Stream.attach_channel!(__MODULE__)

    values = %{
      {Arrow, :export_ipc, 1} => [Arrow.export_ipc(table)],
      {Arrow, :to_columns, 1} => [Arrow.to_columns(table)],
      {Bundle, :to_json, 2} => [Bundle.to_json(bundle), Bundle.to_json(bundle, hold: 1)],
      {Bundle, :to_map, 2} => [Bundle.to_map(bundle)],
      {Graph, :in_place, 1} => [Graph.in_place(graph)],
      {Graph, :outputs, 1} => [Graph.outputs(graph)],
      {Graph, :to_dot, 1} => [Graph.to_dot(graph)],
      {Graph, :to_json, 1} => [Graph.to_json(graph)],
      {Graph, :to_text, 1} => [Graph.to_text(graph)],
      {Model, :metadata, 1} => [Model.metadata(model)],
      {PagePool, :tenant, 2} => [PagePool.tenant(pool)],
      {Sequence, :read, 3} => [Sequence.read(sequence, 0, bytes: 3)],
      {Sequence, :share, 1} => [Sequence.share(sequence)],
      {Tmesh.Stream, :attach_channel, 2} => [{:ok, token}],
      {Tmesh.Stream, :encode_term, 2} => [Tmesh.Stream.encode_term(:a, 64)],
      {ZeroCopy, :to_binary, 2} =>
        for(copy <- [true, false], do: ZeroCopy.to_binary(ref, copy: copy)),
      {TensorRef, :to_json, 2} => for(it <- [ref, %{ref | names: nil}], do: TensorRef.to_json(it)),
      {TensorRef, :to_map, 2} => [TensorRef.to_map(ref)]
    }

    File.rm!(path)
    values
  end

  defp paged do
    pool = PagePool.create!(page_bytes: 4096, page_tokens: 4, slab_pages: 16, max_pages: 16)
    sequence = pool |> PagePool.tenant!() |> Pages.open!() |> Pages.sequence!()
    :ok = Sequence.append(sequence, 4)
    {pool, sequence}
  end

  defp model do
    path = Path.join(System.tmp_dir!(), "tmesh-#{System.pid()}-#{System.unique_integer()}")
    File.write!(path, safetensors([{"a", "U8", [4], "abcd"}], ~s({"format":"pt"})))
    {Model.load!(path), path}
  end
end
