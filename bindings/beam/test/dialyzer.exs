# SPDX-License-Identifier: MIT
#
# elixir dialyzer.exs PLT EBIN: dialyzer over the application's modules, as TAP. PLT keeps what it
# learnt of Erlang and Elixir, which takes minutes, for the next time.

[plt, ebin] = System.argv()
charlist = &String.to_charlist/1

libraries =
  for app <- [:erts, :kernel, :stdlib, :crypto, :elixir, :logger] do
    if app == :erts,
      do:
        :filename.join([:code.root_dir(), "lib", "erts-#{:erlang.system_info(:version)}", "ebin"]),
      else: :code.lib_dir(app, :ebin)
  end

libraries = Enum.filter(libraries, &File.dir?/1)

unless File.exists?(plt) do
  # A run that is cut short must leave no half of one.
  partial = plt <> ".new"

  :dialyzer.run(
    analysis_type: :plt_build,
    output_plt: charlist.(partial),
    files_rec: Enum.map(libraries, &to_charlist/1)
  )

  File.rename!(partial, plt)
end

warnings =
  :dialyzer.run(
    init_plt: charlist.(plt),
    files_rec: [charlist.(ebin)],
    warnings: [:unmatched_returns, :error_handling, :unknown]
  )

for {warning, number} <- Enum.with_index(warnings, 1) do
  text = warning |> :dialyzer.format_warning(:fullpath) |> to_string() |> String.trim()
  IO.puts("not ok #{number} - #{text |> String.replace("\n", " ") |> String.replace("#", "")}")
end

if warnings == [], do: IO.puts("ok 1 - dialyzer has nothing to say")
IO.puts("1..#{max(1, length(warnings))}")
if warnings != [], do: System.halt(1)
