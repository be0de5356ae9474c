# SPDX-License-Identifier: MIT
# For vocabulary.py: what the Elixir application calls things. Words on stdin, a line each; answers on
# stdout, a line of JSON each.

defmodule Json do
  def of(nil), do: "null"
  def of(value) when is_boolean(value) or is_integer(value), do: to_string(value)
  def of(value) when is_atom(value), do: of(Atom.to_string(value))
  def of(value) when is_binary(value), do: inspect(value, printable_limit: :infinity)
  def of([:read | _] = rights), do: of(Enum.map_join(rights, &String.first(to_string(&1))))
  def of(value) when is_list(value), do: "[" <> Enum.map_join(value, ",", &of/1) <> "]"
  def of(%{} = map), do: "{" <> Enum.map_join(map, ",", fn {k, v} -> of(to_string(k)) <> ":" <> of(v) end) <> "}"
end

answer = fn
  ["function", name] ->
    [module, function, arity] = Regex.run(~r"(?:(.*)\.)?([^.]+)/(\d+)", name, capture: :all_but_first)
    places = if module == "Tmesh", do: [Tmesh], else: for(top <- [Tmesh, Tmesh.ZeroCopy], do: Module.concat(top, module))

    Enum.any?(places, fn place ->
      Code.ensure_loaded?(place) and
        function_exported?(place, String.to_atom(function), String.to_integer(arity))
    end)

  # Full names of modules, without arities: what a page or a guide would name.
  ["all"] ->
    {:ok, modules} = :application.get_key(:tmesh, :modules)

    for module <- modules,
        {:docs_v1, _, _, _, doc, _, entries} when doc != :hidden <- [Code.fetch_docs(module)],
        {{:function, name, _arity}, _, _, about, _} when about != :hidden <- entries,
        uniq: true,
        do: inspect(module) <> "." <> to_string(name)

  ["module", "Tmesh"] ->
    "Tmesh"

  ["module", name] ->
    [Tmesh, Tmesh.ZeroCopy]
    |> Enum.map(&Module.concat(&1, name))
    |> Enum.find(&Code.ensure_loaded?/1)
    |> inspect()

  ["kept", name] ->
    {:ok, kept} = Tmesh.kept()
    Enum.find(kept, &(&1.name == name))

  ["error", errno] ->
    Tmesh.Error.from_native({String.to_atom(errno), ""}).type

  ["dtypes"] ->
    Tmesh.ZeroCopy.TensorRef.dtypes()

  # The first of each.
  ["devices"] ->
    for {what, [first | _more]} <- Tmesh.Engine.devices!(), into: %{}, do: {what, Map.keys(first)}

  ["ref"] ->
    {:ok, ref} = Tmesh.ZeroCopy.allocate([2, 3], :float32)
    Tmesh.ZeroCopy.TensorRef.to_map!(ref)

  # As of a tensor of Nx with axes that have names.
  ["axes"] ->
    {:ok, ref} = Tmesh.ZeroCopy.allocate([2, 3], :float32)
    ref = %{ref | names: ["rows", nil], vectorized: ["rows"]}
    {:ok, json} = Tmesh.ZeroCopy.TensorRef.to_json(ref)
    {:ok, back} = Tmesh.ZeroCopy.TensorRef.from_json(json)
    true = {back.names, back.vectorized} == {ref.names, ref.vectorized}
    Tmesh.ZeroCopy.TensorRef.to_map!(ref, hold: true)

  ["region", id] ->
    {:ok, regions} = Tmesh.regions()
    Enum.find(regions, &(&1.id == id))

  ["holder", id] ->
    {:ok, holders} = Tmesh.holders(id)
    hd(holders)
end

{:ok, _} = Application.ensure_all_started(:tmesh)

for line <- IO.stream(:stdio, :line) do
  line |> String.split() |> answer.() |> Json.of() |> IO.puts()
end
