# SPDX-License-Identifier: MIT
defmodule Tmesh.StreamMemoryTest do
  # The holders of tensors that pass a stream. stream_test.exs has the rest of a stream.
  use Tmesh.Case
  alias Tmesh.{Channel, Stream}

  @python System.get_env("TMESH_TEST_PYTHON", "python3")

  # Sends tensors until it is killed.
  @endless """
  import itertools, numpy, sys, tmesh
  with tmesh.Channel.open(sys.argv[1], "send") as out:
      for n in itertools.count():
          out.send((tmesh.put(numpy.full(1000, n % 256, "uint8"), seal=True), str(n).encode()))
  """

  defp stream(opts \\ []), do: start_supervised!({Stream, opts})

  test "a tensor goes through without a copy" do
    stream = stream()
    ref = ZeroCopy.from_binary!(:binary.copy(<<1>>, 100_000), [100_000], :uint8)
    copied = stat(:bytes_copied)
    :ok = Stream.push_infeed(stream, ref)
    :ok = Stream.push_outfeed(stream, ZeroCopy.to_binary!(ref))
    assert {:ok, ^ref} = Stream.pop_infeed(stream)
    assert {:ok, <<1, 1, _rest::binary>>} = Stream.pop_outfeed(stream)
    assert stat(:bytes_copied) == copied
  end

  test "what has come out is not held" do
    stream = stream()
    live = stat(:regions_live)

    in_process(fn ->
      for _ <- 1..8 do
        ref = ZeroCopy.from_binary!(:binary.copy(<<1>>, 100_000), [100_000], :uint8)
        :ok = Stream.push_infeed(stream, ZeroCopy.to_binary!(ref, copy: false))
        {:ok, <<1, 1, _rest::binary>>} = Stream.pop_infeed(stream)
      end
    end)

    eventually(fn -> stat(:regions_live) == live end)
  end

  test "what has come through a channel is held by that alone" do
    stream = stream()
    {:ok, token} = Stream.attach_channel(stream, max_regions: 1)
    {:ok, out} = Channel.open(token, :send)
    live = stat(:regions_live)

    in_process(fn ->
      for _ <- 1..30 do
        :ok = Channel.send(out, ZeroCopy.from_binary!("x", [1], :uint8))
        {:ok, %TensorRef{}} = Stream.pop_outfeed(stream)
      end
    end)

    eventually(fn -> stat(:regions_live) == live end)
    :ok = Channel.close(out)
  end

  @large 2_000_000

  defp large, do: ZeroCopy.from_binary!(:binary.copy(<<1>>, @large), [@large], :uint8)

  test "while a producer waits no more than the bounds is held" do
    stream = stream(outfeed_limit: 2)
    {:ok, token} = Stream.attach_channel(stream, capacity: 2)
    live = stat(:regions_live)

    producer =
      spawn_link(fn ->
        {:ok, out} = Channel.open(token, :send)
        for _ <- Elixir.Stream.cycle([1]), do: :ok = Channel.send(out, large())
      end)

    in_process(fn -> for _ <- 1..20, do: {:ok, %TensorRef{}} = Stream.pop_outfeed(stream) end)
    # In the outfeed, on the way to it, in the channel, and the next one to send.
    eventually(fn -> stat(:regions_live) == live + 2 + 1 + 2 + 1 end)
    Process.unlink(producer)
    Process.exit(producer, :kill)
  end

  test "a process that watches a channel has its garbage collected" do
    configure(idle_gc_mb: 0)
    {:ok, out} = Channel.create(:send, capacity: 16)
    live = stat(:regions_live)

    watcher =
      spawn_link(fn ->
        {:ok, into} = Channel.open(out.token, :recv)
        for _ <- 1..10, do: watched(into)
        :ok = Channel.watch(into)
        Process.sleep(:infinity)
      end)

    for _ <- 1..10, do: Channel.send(out, large()) |> tap(fn :ok -> :erlang.garbage_collect() end)
    eventually(fn -> stat(:regions_live) <= live + 1 end)
    Process.unlink(watcher)
    Process.exit(watcher, :kill)
    :ok = Channel.close(out)
  end

  defp watched(%Channel{tag: tag} = into) do
    :ok = Channel.watch(into)
    receive do: ({:tmesh_channel, ^tag} -> :ok)
    with {:error, %Error{type: :timeout}} <- Channel.recv(into, 0), do: watched(into)
  end

  test "unused ends of a channel keep nothing" do
    {:ok, into} = Channel.create(:recv)
    {:ok, out} = Channel.open(into.token, :send)
    live = stat(:regions_live)

    for _ <- 1..5 do
      ref = large()
      :ok = Channel.send(out, ref)
      {:ok, got} = Channel.recv(into)
      :ok = ZeroCopy.release(got)
      :ok = ZeroCopy.release(ref)
    end

    eventually(fn -> stat(:regions_live) == live end)
    # They are valid nevertheless.
    :ok = Channel.send(out, large())
    assert {:ok, %TensorRef{}} = Channel.recv(into)
  end

  test "a process that waits at a channel has its garbage collected" do
    {:ok, into} = Channel.create(:recv, capacity: 1)
    live = stat(:regions_live)
    test = self()

    # Its garbage is only some words.
    producer =
      spawn_link(fn ->
        {:ok, out} = Channel.open(into.token, :send)
        for _ <- 1..4, do: :ok = Channel.send(out, large())
        send(test, :sent)
        Channel.send(out, "full")
      end)

    for _ <- 1..3, do: Channel.recv!(into) |> ZeroCopy.release!()
    assert_receive :sent, 60_000
    eventually(fn -> stat(:regions_live) <= live + 1 end)
    Process.unlink(producer)
    Process.exit(producer, :kill)
    :ok = Channel.close(into)
  end

  if match?({_output, 0}, System.cmd("sh", ["-c", "#{@python} -c 'import tmesh, numpy' 2>&1"])) do
    test "a channel from Python, which is killed" do
      stream = stream(outfeed_limit: 2)
      {:ok, token} = Stream.attach_channel(stream, capacity: 4)
      python = System.find_executable(@python)
      args = ["-P", "-c", @endless, token]
      port = Port.open({:spawn_executable, python}, [:binary, args: args])

      for n <- 0..20 do
        assert {:ok, {ref, number}} = Stream.pop_outfeed(stream, 600_000)
        assert number == "#{n}"
        assert :binary.first(ZeroCopy.to_binary!(ref)) == n
        ZeroCopy.release!(ref)
      end

      {:os_pid, pid} = Port.info(port, :os_pid)
      {_output, 0} = System.cmd("kill", ["-KILL", "#{pid}"])
      assert drained(stream) == :gone
    end
  else
    @tag skip: "no Python with the tmesh package: make python"
    test "a channel from Python, which is killed"
  end

  # Return the error after the values that had come already. Tensors that no process had opened die with their owner.
  defp drained(stream) do
    case Stream.pop_outfeed(stream, 600_000) do
      {:ok, {ref, _number}} ->
        ZeroCopy.release!(ref)
        drained(stream)

      {:error, %Error{type: :not_found}} ->
        drained(stream)

      {:error, %Error{type: type}} ->
        type
    end
  end
end
