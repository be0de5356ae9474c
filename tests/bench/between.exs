# SPDX-License-Identifier: MIT
#
# From Elixir to a Python process and back. Arrays go by Tmesh.Worker, shared already or put for
# the call, call after call, with busy looks and without. Beside them stand a port, JSON, and a
# file that Python attaches by multiprocessing.shared_memory. A tensor goes there and back through
# channels, with a peer that is hot and with one that sleeps, beside 16 bytes through a port.
# Takes the interpreter.
defmodule Between do
  alias Tmesh.{Channel, Worker, ZeroCopy}

  @here __DIR__
  @peer Path.join(@here, "elixir_peer.py")
  @arrays [{"1MB", 1_000_000, 100}, {"100MB", 100_000_000, 10}, {"1GB", 1_000_000_000, 3}]
  @warm_up 2
  # Floats of eight bytes that make 1 MB.
  @floats 125_000
  @trips 2_000
  # Round trips in a sample with a hot peer: reading the clock takes a tenth of one.
  @hot 10
  # The round trips before the first sample: clocks that were turned down while CPUs slept come up
  # again.
  @heat_ns 100_000_000
  # The bytes that a receiver keeps open: both tensors' regions.
  @both 0x8000_0000
  # Longer than any end looks busily, and as long as that of tests/bench/channel.c.
  @gap_ns 300_000

  def run(python) do
    for {name, spin_us} <- [{Worker, 0}, {:busy, 100}] do
      {:ok, _pool} =
        Worker.start_pool(
          name: name,
          allow: ["elixir_peer"],
          python: python,
          size: 1,
          spin_us: spin_us,
          env: [{"PYTHONPATH", @here}]
        )
    end

    port = Port.open({:spawn_executable, python}, [:binary, packet: 4, args: ["-B", @peer, "port"]])
    for array <- @arrays, do: arrays(array, port)
    json(port)
    calls()
    channels(python, port)
  end

  defp arrays({name, bytes, rounds}, port) do
    data = :binary.copy(<<1>>, bytes)
    shared = ZeroCopy.from_binary!(data, [bytes], :uint8)

    measure(
      rounds,
      for {way, fun} <- [
            {"shared", fn -> {:ok, 2} = Worker.execute("elixir_peer.ends", [shared]) end},
            {"put", fn -> {:ok, 2} = put(data, bytes) end},
            {"port", fn -> "2" = ask(port, [?B, data]) end},
            {"shared-memory", fn -> "2" = by_file(port, data) end}
          ] do
        {"#{way}-#{name}", fun}
      end
    )

    ZeroCopy.release!(shared)
  end

  defp put(data, bytes) do
    ref = ZeroCopy.from_binary!(data, [bytes], :uint8, seal: false)
    result = Worker.execute("elixir_peer.ends", [ref])
    ZeroCopy.release!(ref)
    result
  end

  # Elixir has no other way to write into a file that SharedMemory finds.
  defp by_file(port, data) do
    name = "tmesh-bench-#{System.pid()}"
    path = Path.join("/dev/shm", name)
    File.write!(path, data, [:raw])
    answer = ask(port, [?N, name])
    File.rm!(path)
    answer
  end

  defp json(port) do
    floats = for n <- 1..@floats, do: n / 7
    want = Integer.to_string(@floats)

    measure(10, [
      {"json-1MB",
       fn ->
         ^want =
           ask(port, [?J, ?[, floats |> Enum.map(&Float.to_string/1) |> Enum.intersperse(?,), ?]])
       end}
    ])
  end

  defp calls do
    for {size, bytes} <- [{"1MB", 1_000_000}, {"100MB", 100_000_000}],
        {way, pool} <- [{"hot", Worker}, {"busy", :busy}] do
      shared = ZeroCopy.from_binary!(:binary.copy(<<1>>, bytes), [bytes], :uint8)
      call = fn -> {:ok, 2} = Worker.execute("elixir_peer.ends", [shared], pool: pool) end
      measure(div(@trips, @hot), [{"#{way}-worker-#{size}", call}], times: @hot)
      ZeroCopy.release!(shared)
    end
  end

  defp channels(python, port) do
    {:ok, out} = Channel.create(:send)
    {:ok, into} = Channel.create(:recv, spin_us: 100, max_bytes: @both)

    peer =
      Port.open({:spawn_executable, python}, [:binary, args: ["-B", @peer, out.token, into.token]])

    small = ZeroCopy.from_binary!(:binary.copy(<<1>>, 0x10_0000), [0x10_0000], :uint8)
    large = ZeroCopy.allocate!([0x4000_0000], :uint8)
    bytes = [?B | :binary.copy(<<1>>, 15)]

    trips = fn pace ->
      [
        {"#{pace}-1MiB", fn -> there_and_back(out, into, small) end},
        {"#{pace}-1GiB", fn -> there_and_back(out, into, large) end},
        {"#{pace}-call-1MiB", fn -> asked(out, into, small) end},
        {"#{pace}-call-1GiB", fn -> asked(out, into, large) end},
        {"#{pace}-port", fn -> "2" = ask(port, bytes) end}
      ]
    end

    for {way, fun} <- trips.("hot") do
      run_until(fun, now() + @heat_ns)
      measure(div(@trips, @hot), [{way, fun}], times: @hot)
    end

    between = fn -> let_sleep(now() + @gap_ns) end
    measure(div(@trips, 4), trips.("sleeping"), between: between)
    Port.close(peer)
  end

  defp run_until(fun, until) do
    fun.()
    if now() < until, do: run_until(fun, until)
  end

  defp repeat(_fun, 0), do: :ok

  defp repeat(fun, times) do
    fun.()
    repeat(fun, times - 1)
  end

  defp let_sleep(until), do: if(now() < until, do: let_sleep(until))
  defp now, do: System.monotonic_time(:nanosecond)

  defp asked(out, into, ref) do
    {:ok, ^ref} = Channel.call(out, into, ref, 60_000)
  end

  defp there_and_back(out, into, ref) do
    :ok = Channel.send(out, ref)
    {:ok, back} = Channel.recv(into, 60_000)
    ^ref = %{back | handle: ref.handle, id: ref.id, token: ref.token}
    ZeroCopy.release!(back)
  end

  defp ask(port, packet) do
    Port.command(port, packet)

    receive do
      {^port, {:data, answer}} -> answer
    end
  end

  # Each way in turn, `between` ahead of each; a sample is the mean of as many `times` in a row.
  defp measure(rounds, ways, opts \\ []) do
    between = Keyword.get(opts, :between, fn -> :ok end)
    times = Keyword.get(opts, :times, 1)

    samples =
      for turn <- 1..(@warm_up + rounds), {name, fun} <- ways do
        between.()
        start = now()
        repeat(fun, times)
        {turn, name, div(now() - start, times)}
      end

    for {name, _fun} <- ways do
      ns = for {turn, ^name, spent} <- samples, turn > @warm_up, do: spent
      IO.puts(~s({"topic":"elixir","name":"#{name}","ns":[#{Enum.join(ns, ",")}]}))
    end
  end
end

{:ok, _apps} = Application.ensure_all_started(:tmesh)
[python] = System.argv()
Between.run(python)
