# SPDX-License-Identifier: MIT
defmodule Tmesh.Bang do
  @moduledoc false
  # The variants that raise, with their documentation and types:
  #
  #     bang seal(ref :: TensorRef.t()) :: :ok
  #
  # gives `seal!/1` of a `seal/1` that has `:ok` or `{:error, error}`.

  defmacro bang({:"::", _meta, [{name, _call, params}, returned]}) do
    parts = Enum.map(params, &parts/1)
    arity = length(parts)
    bang = :"#{name}!"
    names = for {variable, _type, _default} <- parts, do: variable
    types = for {_variable, type, _default} <- parts, do: type

    heads =
      for {variable, _type, default} <- parts do
        with {:ok, value} <- default, do: {:\\, [], [variable, value]}, else: (:error -> variable)
      end

    # Make a spec for each number of defaults that are left out, from the right.
    optional = Enum.count(parts, &match?({_variable, _type, {:ok, _value}}, &1))

    specs =
      for left_out <- 0..optional do
        given = types |> Enum.zip(parts) |> leave_out(left_out)
        quote do: @spec(unquote(bang)(unquote_splicing(given)) :: unquote(returned))
      end

    quote do
      unquote_splicing(specs)
      @doc "As `#{unquote(name)}/#{unquote(arity)}`, but raises `Tmesh.Error`."
      def unquote(bang)(unquote_splicing(heads)),
        do: Tmesh.Error.bang!(unquote(name)(unquote_splicing(names)))
    end
  end

  defp parts({:\\, _meta, [param, default]}) do
    {variable, type, :error} = parts(param)
    {variable, type, {:ok, default}}
  end

  defp parts({:"::", _meta, [variable, type]}), do: {variable, type, :error}

  defp leave_out(pairs, count) do
    {kept, _left} =
      pairs
      |> Enum.reverse()
      |> Enum.reduce({[], count}, fn
        {_type, {_variable, _same, {:ok, _default}}}, {kept, left} when left > 0 ->
          {kept, left - 1}

        {type, _part}, {kept, left} ->
          {[type | kept], left}
      end)

    kept
  end
end
