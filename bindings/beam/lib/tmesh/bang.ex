# SPDX-License-Identifier: MIT
defmodule Tmesh.Bang do
  @moduledoc false
  # The variants that raise, with their documentation, and the types of the functions' specs:
  #
  #     use Tmesh.Bang, ~w(seal/1)
  #
  # gives `seal!/1` of a `seal/1` whose spec has `:ok`, `{:ok, value}` and `{:error, error}`.

  defmacro __using__(names) do
    quote do
      @before_compile Tmesh.Bang
      @bangs unquote(names)
    end
  end

  defmacro __before_compile__(env) do
    for signature <- Module.get_attribute(env.module, :bangs) do
      [name, arity] = String.split(signature, "/")
      variant(String.to_atom(name), String.to_integer(arity), env.module)
    end
  end

  defp variant(name, arity, module) do
    [{types, returned, guards}] =
      for {:spec, spec, _where} <- Module.get_attribute(module, :spec),
          {^name, types, returned, guards} <- [parts(spec)],
          length(types) == arity,
          do: {types, values(returned), guards}

    bang = :"#{name}!"
    names = names(module, name, arity)
    # The arguments that calls without defaults pass on.
    passed = for less <- 0..(arity - 1)//1, args = passed(module, name, less, arity), do: args
    heads = Enum.zip_with(names, hd(passed ++ [names]), &head/2)

    specs =
      for args <- [names | passed] do
        given = for {type, arg} <- Enum.zip(types, args), variable?(arg), do: type
        spec = quote do: unquote(bang)(unquote_splicing(given)) :: unquote(returned)
        quote do: @spec(unquote(if guards, do: {:when, [], [spec, guards]}, else: spec))
      end

    quote do
      unquote_splicing(specs)
      @doc "As `#{unquote(name)}/#{unquote(arity)}`, but raises `Tmesh.Error`."
      def unquote(bang)(unquote_splicing(heads)),
        do: Tmesh.Error.bang!(unquote(name)(unquote_splicing(names)))
    end
  end

  defp parts({:when, _meta, [spec, guards]}), do: spec |> parts() |> put_elem(3, guards)

  defp parts({:"::", _meta, [{name, _call, types}, returned]}),
    do: {name, types || [], returned, nil}

  # The type of what is returned without an error.
  defp values({:|, meta, [one, more]}) do
    case {values(one), values(more)} do
      {nil, value} -> value
      {value, nil} -> value
      both -> {:|, meta, Tuple.to_list(both)}
    end
  end

  defp values({:ok, {:"::", _meta, [_name, type]}}), do: type
  defp values({:ok, type}), do: type
  defp values({:error, _type}), do: nil
  defp values(:ok), do: :ok

  # The parameters' names in the clauses, each the first that is found.
  defp names(module, name, arity) do
    {:v1, :def, _meta, clauses} = Module.get_definition(module, {name, arity})

    for i <- 0..(arity - 1)//1 do
      found = for {_meta, args, _guards, _body} <- clauses, do: args |> Enum.at(i) |> name()
      Macro.var(Enum.find(found, :"arg#{i + 1}", & &1), nil)
    end
  end

  defp name({:=, _meta, [left, right]}), do: name(right) || name(left)

  defp name({:%, _meta, [struct, _fields]}) when is_atom(struct),
    do: struct |> Module.split() |> List.last() |> Macro.underscore() |> String.to_atom()

  defp name({name, _meta, context}) when is_atom(name) and is_atom(context),
    do: if(match?("_" <> _unused, "#{name}"), do: nil, else: name)

  defp name(_pattern), do: nil

  # The arguments that a call of fewer passes on to that of @arity: variables, and defaults. nil: there is no such call.
  defp passed(module, name, less, arity) do
    with {:v1, :def, _meta, [{_clause, _args, [], {:super, _super, args}}]}
         when length(args) == arity <-
           Module.get_definition(module, {name, less}),
         do: args,
         else: (_other -> nil)
  end

  defp variable?(arg),
    do: match?({name, _meta, context} when is_atom(name) and is_atom(context), arg)

  defp head(name, arg), do: if(variable?(arg), do: name, else: {:\\, [], [name, arg]})
end
