# SPDX-License-Identifier: MIT
#
# Tmesh.ZeroCopy.from_binary/4 of 100 MB into the warm pool, beside memcpy() to memory touched
# before, which a C program on the same CPU does in turn with it.
defmodule FromBinary do
  alias Tmesh.ZeroCopy

  @rounds 30
  @warm_up 3
  @bytes 100_000_000

  def run(floor_program) do
    floor = Port.open({:spawn_executable, floor_program}, [:binary, line: 32])
    data = :binary.copy(<<1>>, @bytes)

    samples =
      for turn <- 1..(@warm_up + @rounds) do
        memcpy = copy(floor)
        start = System.monotonic_time(:nanosecond)
        ref = ZeroCopy.from_binary!(data, [@bytes], :uint8, seal: false)
        put = System.monotonic_time(:nanosecond) - start
        ZeroCopy.release!(ref)
        {turn, memcpy, put}
      end

    kept = for {turn, memcpy, put} <- samples, turn > @warm_up, do: {memcpy, put}
    print("memcpy-warm", Enum.map(kept, &elem(&1, 0)))
    print("put-warm", Enum.map(kept, &elem(&1, 1)))
  end

  defp copy(floor) do
    Port.command(floor, "\n")

    receive do
      {^floor, {:data, {:eol, line}}} -> String.to_integer(line)
    end
  end

  defp print(name, ns) do
    IO.puts(~s({"topic":"elixir","name":"#{name}","ns":[#{Enum.join(ns, ",")}]}))
  end
end

Application.put_env(:tmesh, :zero_copy, region_pool_mb: 256)
{:ok, _apps} = Application.ensure_all_started(:tmesh)
[floor_program] = System.argv()
FromBinary.run(floor_program)
