# SPDX-License-Identifier: MIT
defmodule Tmesh.DocsTest do
  @moduledoc false
  use Tmesh.Case, backend: :any

  # Functions made by `use GenServer` and the like, and callbacks that their behaviours document.
  @theirs [:child_spec, :init, :terminate, :code_change, :exception, :message, :__struct__] ++
            [:handle_call, :handle_cast, :handle_info, :handle_continue]

  test "every module says what it is, and each of its functions, with the types it takes" do
    {:ok, modules} = :application.get_key(:tmesh, :modules)
    public = for module <- modules, docs = public(module), do: {module, docs}
    assert length(public) > 15

    without =
      for {module, docs} <- public,
          {{:function, name, arity}, _line, _signature, doc, _metadata} <- docs,
          name not in @theirs and doc != :hidden,
          doc == :none or {name, arity} not in specs(module),
          do: Exception.format_mfa(module, name, arity)

    assert without == []
  end

  # Return nil for `@moduledoc false`. Implementations of protocols have none.
  defp public(module) do
    case Code.fetch_docs(module) do
      {:docs_v1, _line, :elixir, _format, %{}, _metadata, docs} ->
        docs

      {:docs_v1, _line, :elixir, _format, :hidden, _metadata, _docs} ->
        nil

      _none ->
        assert hd(Module.split(module)) in ~w(Inspect Enumerable Collectable Table),
               "no @moduledoc: #{module}"

        nil
    end
  end

  defp specs(module) do
    {:ok, specs} = Code.Typespec.fetch_specs(module)
    for {function, _spec} <- specs, do: function
  end
end
