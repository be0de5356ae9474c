# SPDX-License-Identifier: MIT
#
# A table of 1 GB, made here: its ref to pandas and back to a table here, whose columns stay in
# their place. Beside it stands pyarrow's own way: an IPC file that is already in /dev/shm goes to
# pandas, and its name comes back, for Elixir could not read it. It fails if a buffer is copied on
# either way.
defmodule ArrowTable do
  alias Tmesh.{Arrow, ZeroCopy}

  @columns 8
  @rows 16_000_000
  @rounds 100
  @warm_up 5

  def run(python, helper) do
    args = [:binary, :exit_status, line: 4096, args: ["-B", helper]]
    port = Port.open({:spawn_executable, python}, args)

    case answer(port) do
      "ready" -> measure(port)
      reason -> for way <- ["tmesh", "file"], do: print(%{way => "\"skip\":\"#{reason}\""})
    end
  end

  defp measure(port) do
    data = :binary.copy(<<1.0::float-little-64>>, @rows)
    columns = for n <- 1..@columns, do: {"x#{n}", {:float64, data}}
    {:ok, %{ref: ref}} = Arrow.from_columns(columns)
    {:ok, json} = ZeroCopy.TensorRef.to_json(ref)
    path = ask(port, "write " <> json)
    {:ok, %{bytes_copied: before}} = Tmesh.stats()

    samples =
      for turn <- 1..(@warm_up + @rounds) do
        Process.sleep(1)
        tmesh = clock(fn -> back(ask(port, "tmesh " <> json)) end)
        Process.sleep(1)
        file = clock(fn -> ^path = ask(port, "file " <> path) end)
        {turn, tmesh, file}
      end

    {:ok, %{bytes_copied: ^before}} = Tmesh.stats()
    ZeroCopy.release!(ref)
    kept = for {turn, tmesh, file} <- samples, turn > @warm_up, do: {tmesh, file}
    print(%{"tmesh" => ns(kept, 0), "file" => ns(kept, 1)})
  end

  # The last column's last value shows that it is that table.
  defp back(json) do
    {:ok, %{num_rows: @rows, batches: batches} = table} = Arrow.import_table(json)
    [_bitmap, values] = List.last(List.last(batches)).buffers
    <<1.0::float-little-64>> = binary_part(values, 8 * (@rows - 1), 8)
    ZeroCopy.release!(table.ref)
  end

  defp clock(way) do
    start = System.monotonic_time(:nanosecond)
    way.()
    System.monotonic_time(:nanosecond) - start
  end

  defp ask(port, line) do
    Port.command(port, line <> "\n")
    answer(port)
  end

  defp answer(port) do
    receive do
      {^port, {:data, {:eol, line}}} -> line
      {^port, {:exit_status, status}} -> raise "the other end ended with #{status}"
    end
  end

  defp ns(kept, at), do: ~s("ns":[#{Enum.map_join(kept, ",", &elem(&1, at))}])

  defp print(series) do
    for {name, members} <- series, do: IO.puts(~s({"topic":"arrow","name":"#{name}",#{members}}))
  end
end

{:ok, _apps} = Application.ensure_all_started(:tmesh)
[python, helper] = System.argv()
ArrowTable.run(python, helper)
