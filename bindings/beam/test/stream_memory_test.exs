# SPDX-License-Identifier: MIT
defmodule Tmesh.StreamMemoryTest do
  # Who holds what goes through a stream. What a stream does with it is in stream_test.exs.
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

    # What the feeder's first collection in idleness has given back, the sending end lets go of when
    # it sends again.
    eventually(fn -> stat(:regions_live) <= live + 16 end)
    :ok = Channel.close(out)
  end

  if match?({_output, 0}, System.cmd("sh", ["-c", "#{@python} -c 'import tmesh, numpy' 2>&1"])) do
    test "a channel from Python, which is killed" do
      stream = stream(outfeed_limit: 2)
      {:ok, token} = Stream.attach_channel(stream, slots: 4)
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

  # The error behind the values that had come already. Tensors that nobody had opened die with
  # their owner.
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
