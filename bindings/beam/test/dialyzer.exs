# SPDX-License-Identifier: MIT
#
# elixir dialyzer.exs PLT EBIN: dialyzer over the application's modules, as TAP. PLT keeps the analysis of Erlang and
# Elixir for the next time. It covers the modules that the application names, in code, types or behaviours, which are
# a sixth of all. Modules that those call are left out.

[plt, ebin] = System.argv()
charlist = &String.to_charlist/1

known =
  for app <- [:erts, :kernel, :stdlib, :crypto, :elixir, :logger],
      path <- app |> :code.lib_dir() |> Path.join("ebin/*.beam") |> Path.wildcard(),
      into: %{},
      do: {path |> Path.basename(".beam") |> String.to_atom(), charlist.(path)}

defmodule Names do
  def of(atom, names) when is_atom(atom), do: MapSet.put(names, atom)
  def of([first | rest], names), do: of(rest, of(first, names))
  def of(tuple, names) when is_tuple(tuple), do: tuple |> Tuple.to_list() |> of(names)
  def of(_other, names), do: names
end

names =
  for path <- Path.wildcard(ebin <> "/*.beam"), reduce: MapSet.new() do
    names ->
      {:ok, {module, [debug_info: {:debug_info_v1, backend, data}]}} =
        :beam_lib.chunks(charlist.(path), [:debug_info])

      {:ok, forms} = backend.debug_info(:erlang_v1, module, data, [])
      Names.of(forms, names)
  end

libraries = for {name, path} <- known, name in names, do: path

has = with {:ok, info} <- :dialyzer.plt_info(charlist.(plt)), do: info[:files], else: (_none -> [])

unless libraries -- has == [] do
  # A run that is cut short must leave no partial file.
  partial = plt <> ".new"
  :dialyzer.run(analysis_type: :plt_build, output_plt: charlist.(partial), files: libraries)
  File.rename!(partial, plt)
end

warnings =
  :dialyzer.run(
    init_plt: charlist.(plt),
    files_rec: [charlist.(ebin)],
    # extra_return: a spec that promises more than is returned, such as iodata() where it is always a list.
    warnings: [:unmatched_returns, :error_handling, :unknown, :extra_return]
  )

for {warning, number} <- Enum.with_index(warnings, 1) do
  text = warning |> :dialyzer.format_warning(:fullpath) |> to_string() |> String.trim()
  IO.puts("not ok #{number} - #{text |> String.replace("\n", " ") |> String.replace("#", "")}")
end

if warnings == [], do: IO.puts("ok 1 - dialyzer has nothing to say")
IO.puts("1..#{max(1, length(warnings))}")
if warnings != [], do: System.halt(1)
