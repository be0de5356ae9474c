# SPDX-License-Identifier: MIT
defmodule Tmesh.TapFormatter do
  @moduledoc false
  # An ExUnit formatter that prints TAP.

  use GenServer

  @impl true
  def init(_opts), do: {:ok, 0}

  @impl true
  def handle_cast({:test_finished, %ExUnit.Test{state: {:excluded, _reason}}}, count) do
    {:noreply, count}
  end

  def handle_cast({:test_finished, test}, count) do
    count = count + 1
    IO.write(line(test, count, String.replace("#{inspect(test.case)} #{test.name}", "#", "\\#")))
    {:noreply, count}
  end

  def handle_cast({:suite_finished, _times}, count) do
    IO.puts("1..#{count}")
    {:noreply, count}
  end

  def handle_cast(_event, count), do: {:noreply, count}

  defp line(%{state: nil}, number, name), do: "ok #{number} - #{name}\n"

  defp line(%{state: {:skipped, reason}}, number, name) do
    "ok #{number} - #{name} # SKIP #{reason}\n"
  end

  defp line(%{state: {:failed, failures}} = test, number, name) do
    text = ExUnit.Formatter.format_test_failure(test, failures, number, 96, fn _key, s -> s end)
    "not ok #{number} - #{name}\n" <> comment(text)
  end

  defp line(%{state: {:invalid, module}}, number, name) do
    "not ok #{number} - #{name}\n" <> comment("setup of #{inspect(module.name)} failed")
  end

  defp comment(text) do
    text |> String.split("\n", trim: true) |> Enum.map_join(&"# #{&1}\n")
  end
end
