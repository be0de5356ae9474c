# SPDX-License-Identifier: MIT
defmodule Tmesh.StreamTest do
  use Tmesh.Case, backend: :any
  alias Tmesh.{Channel, Stream}

  doctest Tmesh.Stream

  defp stream(opts \\ []), do: start_supervised!({Stream, opts})
  defp later(fun), do: Task.async(fun)

  defp waiting(stream, count),
    do: eventually(fn -> map_size(:sys.get_state(stream, :infinity).waiting) == count end)

  test "values keep their order, and the queues are two" do
    stream = stream(name: :my_stream)
    for i <- 1..10, do: assert(:ok = Stream.push_infeed(:my_stream, i))
    for i <- 1..10, do: assert(:ok = Stream.push_outfeed(stream, -i))
    for i <- 1..10, do: assert({:ok, ^i} = Stream.pop_infeed(stream))
    for i <- 1..10, do: assert(Stream.pop_outfeed(:my_stream) == {:ok, -i})
  end

  test "several are children of one supervisor, by their names" do
    start_supervised!({Stream, name: :words})
    start_supervised!({Stream, name: :pictures})
    :ok = Stream.push_infeed(:words, "word")
    :ok = Stream.push_infeed(:pictures, "picture")
    assert Stream.pop_infeed(:pictures) == {:ok, "picture"}
    assert Stream.pop_infeed(:words) == {:ok, "word"}
    assert {:error, _reason} = start_supervised({Stream, [:no_options]})

    assert %{id: "upscale"} = Tmesh.Engine.Server.child_spec(name: "upscale")
  end

  test "a pop waits for a value, and those who wait are served in turn" do
    stream = stream()

    tasks =
      for i <- 1..3 do
        task = later(fn -> Stream.pop_outfeed(stream) end)
        waiting(stream, i)
        task
      end

    for i <- 1..3, do: :ok = Stream.push_outfeed(stream, i)
    assert Task.await_many(tasks, :infinity) == [ok: 1, ok: 2, ok: 3]
  end

  test "a push waits for room" do
    stream = stream(infeed_limit: 2)
    for i <- 1..2, do: :ok = Stream.push_infeed(stream, i)

    tasks =
      for i <- 3..4 do
        task = later(fn -> Stream.push_infeed(stream, i) end)
        waiting(stream, i - 2)
        task
      end

    assert :sys.get_state(stream, :infinity).infeed.size == 2
    for i <- 1..4, do: assert(Stream.pop_infeed(stream) == {:ok, i})
    assert Task.await_many(tasks, :infinity) == [:ok, :ok]
  end

  test "time runs out, and nothing has happened" do
    stream = stream(infeed_limit: 1)

    for timeout <- [0, 20] do
      assert {:error, %Error{type: :timeout}} = Stream.pop_infeed(stream, timeout)
    end

    :ok = Stream.push_infeed(stream, 1)

    for timeout <- [0, 20] do
      assert {:error, %Error{type: :timeout, message: "timed out: the infeed is full"}} =
               Stream.push_infeed(stream, 2, timeout)
    end

    assert {:ok, 1} = Stream.pop_infeed(stream)
    assert {:error, %Error{type: :timeout}} = Stream.pop_infeed(stream, 0)
    assert :sys.get_state(stream, :infinity).waiting == %{}
  end

  test "a wait may be longer than any timer's, and costs the stream nothing" do
    stream = stream()
    waits = for bits <- [32, 64, 200], do: later(fn -> Stream.pop_infeed(stream, 2 ** bits) end)
    waiting(stream, 3)
    for _wait <- waits, do: :ok = Stream.push_infeed(stream, 1)
    assert Task.await_many(waits, :infinity) == [ok: 1, ok: 1, ok: 1]
  end

  test "who dies while waiting takes nothing and gives nothing" do
    stream = stream(outfeed_limit: 1)
    taker = spawn(fn -> Stream.pop_outfeed(stream, :infinity) end)
    waiting(stream, 1)
    Process.exit(taker, :kill)
    waiting(stream, 0)
    :ok = Stream.push_outfeed(stream, 1)

    giver = spawn(fn -> Stream.push_outfeed(stream, 2, :infinity) end)
    waiting(stream, 1)
    Process.exit(giver, :kill)
    waiting(stream, 0)
    assert {:ok, 1} = Stream.pop_outfeed(stream)
    assert {:error, %Error{type: :timeout}} = Stream.pop_outfeed(stream, 0)
  end

  test "no stream, and a stream that ends" do
    for stream <- [:no_such_stream, spawn(fn -> :ok end)] do
      for result <- [
            Stream.push_infeed(stream, 1),
            Stream.pop_infeed(stream),
            Stream.push_outfeed(stream, 1),
            Stream.pop_outfeed(stream)
          ] do
        assert {:error, %Error{type: :closed}} = result
      end
    end

    {:ok, stream} = GenServer.start(Stream, infeed_limit: 1, outfeed_limit: 1)
    :ok = Stream.push_infeed(stream, 1)
    popper = later(fn -> Stream.pop_outfeed(stream, :infinity) end)
    pusher = later(fn -> Stream.push_infeed(stream, 2, :infinity) end)
    waiting(stream, 2)
    Process.exit(stream, :kill)
    assert {:error, %Error{type: :closed, message: message}} = Task.await(popper, :infinity)
    assert {:error, %Error{type: :closed}} = Task.await(pusher, :infinity)
    assert message =~ inspect(stream)
  end

  test "values of native code come out, and an error stands in a lost value's place" do
    stream = stream(outfeed_limit: 2)
    for i <- 1..5, do: send(stream, {:tmesh_outfeed, i})
    assert {:ok, 1} = Stream.pop_outfeed(stream)
    assert {:ok, 2} = Stream.pop_outfeed(stream)

    assert {:error, %Error{type: :limit_exceeded, details: %{lost: 3}}} = Stream.pop_outfeed(stream)

    popper = later(fn -> Stream.pop_outfeed(stream) end)
    waiting(stream, 1)
    send(stream, {:tmesh_outfeed, 6})
    assert {:ok, 6} = Task.await(popper, :infinity)
    assert :sys.get_state(stream, :infinity).outfeed.size == 0
  end

  test "what tells of a loss takes up room as well" do
    stream = stream(outfeed_limit: 1)
    for i <- 1..2, do: send(stream, {:tmesh_outfeed, i})
    pusher = later(fn -> Stream.push_outfeed(stream, 3) end)
    waiting(stream, 1)
    assert {:ok, 1} = Stream.pop_outfeed(stream)
    waiting(stream, 1)
    assert {:error, %Error{type: :limit_exceeded}} = Stream.pop_outfeed(stream)
    assert :ok = Task.await(pusher, :infinity)
    assert {:ok, 3} = Stream.pop_outfeed(stream)
  end

  test "who dies while much waits costs no more for it" do
    stream = stream(outfeed_limit: 1)
    work = fn -> stream |> Process.info(:reductions) |> elem(1) end
    poppers = for _ <- 1..200, do: spawn(fn -> Stream.pop_outfeed(stream, :infinity) end)
    waiting(stream, 200)
    before = work.()
    :erlang.suspend_process(stream)
    Enum.each(poppers, &Process.exit(&1, :kill))
    eventually(fn -> not Enum.any?(poppers, &Process.alive?/1) end)
    for i <- 1..20_000, do: send(stream, {:tmesh_outfeed, i})
    :erlang.resume_process(stream)
    eventually(fn -> Process.info(stream, :message_queue_len) == {:message_queue_len, 0} end)
    assert :sys.get_state(stream, :infinity).waiting == %{}
    assert div(work.() - before, 20_000) < 100
  end

  test "a stranger's message does no harm" do
    stream = stream()

    for message <- [:x, {:late, make_ref()}, {:DOWN, make_ref(), :process, self(), :x}],
        do: send(stream, message)

    :ok = Stream.push_infeed(stream, 1)
    assert {:ok, 1} = Stream.pop_infeed(stream)
  end

  test "many at once: nothing is lost, nothing comes twice" do
    stream = stream(infeed_limit: 3)
    popper = fn -> for _ <- 1..200, do: elem(Stream.pop_infeed(stream), 1) end
    poppers = for _ <- 1..4, do: later(popper)

    pushers =
      for i <- 0..3,
          do: later(fn -> for j <- 1..200, do: :ok = Stream.push_infeed(stream, i * 200 + j) end)

    Task.await_many(pushers, 600_000)

    assert poppers |> Task.await_many(:infinity) |> Enum.concat() |> Enum.sort() ==
             Enum.to_list(1..800)
  end

  test "bad options and times" do
    for opts <- [[infeed_limit: 0], [outfeed_limit: :many], [colour: 1], :x, [1]] do
      assert {:error, %Error{type: :invalid}} = Stream.start_link(opts)
    end

    stream = stream()

    for timeout <- [-1, :never, 1.5] do
      assert {:error, %Error{type: :invalid}} = Stream.pop_infeed(stream, timeout)
    end
  end

  describe "a channel of the infeed" do
    defp infed(opts \\ []) do
      stream = stream(opts)
      {:ok, token} = Stream.attach_channel(stream, feed: :infeed, capacity: 2)
      {:ok, into} = Channel.open(token, :recv)
      {stream, into}
    end

    test "makes pushes wait while it is full, and keeps the order" do
      {stream, into} = infed(infeed_limit: 1)
      ref = ZeroCopy.from_binary!("abcd", [4], :uint8)
      :ok = Stream.push_infeed(stream, {ref, "first"})
      # Two values in slots, one with the outlet, and then those in the infeed.
      for n <- 1..3, do: :ok = Stream.push_infeed(stream, "#{n}")
      eventually(fn -> match?({:error, _}, Stream.push_infeed(stream, "no room", 20)) end)
      late = later(fn -> Stream.push_infeed(stream, "4") end)
      waiting(stream, 1)
      assert {:ok, {%TensorRef{} = got, "first"}} = Channel.recv(into)
      assert ZeroCopy.to_binary!(got) == "abcd"
      for n <- 1..4, do: assert(Channel.recv(into) == {:ok, "#{n}"})
      assert Task.await(late, :infinity) == :ok
      assert {:error, %Error{type: :timeout}} = Channel.recv(into, 0)
    end

    test "carries values that were pushed before, and keeps untaken values" do
      stream = stream()
      :ok = Stream.push_infeed(stream, "early")
      {:ok, token} = Stream.attach_channel(stream, feed: :infeed, capacity: 1)
      {:ok, into} = Channel.open(token, :recv)
      assert {:ok, "early"} = Channel.recv(into)
      :ok = Channel.close(into)

      eventually(fn ->
        match?({:error, %Error{type: :gone}}, Stream.push_infeed(stream, "late", 1_000))
      end)

      {:ok, token} = Stream.attach_channel(stream, feed: :infeed)
      {:ok, into} = Channel.open(token, :recv)
      :ok = Stream.push_infeed(stream, "last")
      # If it was pushed before the loss of the channel was seen, "late" is kept.
      assert Channel.recv!(into, 600_000) in ["late", "last"]
    end

    test "says whose error it was" do
      stream = stream()
      {:ok, token} = Stream.attach_channel(stream, feed: :infeed)
      {:ok, into} = Channel.open(token, :recv)
      :ok = Channel.close(into)
      eventually(fn -> has_gone?(stream) end)
      # The first push fails, and its value is not kept.
      assert {:error, %Error{type: :gone} = error} = Stream.push_infeed(stream, "late")
      assert error.details.channel == String.slice(token, 0, 13)
      refute inspect(error) =~ token
      assert {:error, %Error{type: :gone}} = Stream.push_infeed(stream, "late")
      {:ok, token} = Stream.attach_channel(stream, feed: :infeed)
      {:ok, into} = Channel.open(token, :recv)
      :ok = Stream.push_infeed(stream, "another")
      assert {:ok, "another"} = Channel.recv(into)
    end

    # The channel's maker notices the end of the receivers by itself, a moment later.
    defp has_gone?(stream) do
      channel = :sys.get_state(stream, :infinity).outlet_channel
      match?({:error, {:epipe, _why}}, Tmesh.Native.channel_gone(channel.native))
    end

    test "a receiver that is killed is gone for the first push" do
      stream = stream()
      {:ok, token} = Stream.attach_channel(stream, feed: :infeed)
      test = self()

      receiver =
        spawn(fn ->
          {:ok, into} = Channel.open(token, :recv)
          send(test, :joined)
          Process.sleep(:infinity)
          Channel.close(into)
        end)

      assert_receive :joined, 60_000
      Process.exit(receiver, :kill)
      eventually(fn -> has_gone?(stream) end)
      assert {:error, %Error{type: :gone}} = Stream.push_infeed(stream, "late")
    end

    test "ends the waits of those who push" do
      {stream, into} = infed(infeed_limit: 1)
      tasks = for n <- 1..8, do: later(fn -> Stream.push_infeed(stream, "#{n}") end)
      # Four have found room, and did not merely come later than the others.
      eventually(fn -> Enum.count(tasks, &(not Process.alive?(&1.pid))) == 4 end)
      waiting(stream, 4)
      :ok = Channel.close(into)
      results = Task.await_many(tasks, :infinity)
      assert Enum.count(results, &(&1 == :ok)) == 4
      assert Enum.count(results, &match?({:error, %Error{type: :gone}}, &1)) == 4
    end

    test "refuses what no channel carries" do
      {stream, into} = infed()
      ref = ZeroCopy.from_binary!("abcd", [4], :uint8)

      for bad <- [
            :atom,
            %{ref | handle: nil},
            {ref, :x},
            {ref, String.duplicate("x", 25)},
            String.duplicate("x", 57)
          ] do
        assert {:error, %Error{type: :invalid}} = Stream.push_infeed(stream, bad)
      end

      # Its tensor is released while it waits for its turn: the next push reports that.
      ZeroCopy.release!(ref)
      :ok = Stream.push_infeed(stream, ref)
      eventually(fn -> :sys.get_state(stream, :infinity).refused != nil end)
      assert {:error, %Error{type: :closed}} = Stream.push_infeed(stream, "not sent")
      :ok = Stream.push_infeed(stream, "good")
      assert {:ok, "good"} = Channel.recv(into)
    end

    test "is one, and may be refused" do
      {stream, _into} = infed()
      assert {:error, %Error{type: :busy}} = Stream.attach_channel(stream, feed: :infeed)
      :ok = stop_supervised(Stream)
      stream = stream()
      assert {:error, %Error{type: :invalid}} = Stream.attach_channel(stream, feed: :sideways)

      assert {:error, %Error{type: :protocol}} =
               Stream.attach_channel(stream, feed: :infeed, token: "nonsense")

      :ok = Stream.push_infeed(stream, :any_term)
      assert {:error, %Error{type: :invalid}} = Stream.attach_channel(stream, feed: :infeed)
      assert {:ok, :any_term} = Stream.pop_infeed(stream)
      assert {:ok, _token} = Stream.attach_channel(stream, feed: :infeed)
    end

    test "ends with the stream" do
      for reason <- [:normal, :kill] do
        {:ok, stream} = GenServer.start(Stream, infeed_limit: 1, outfeed_limit: 1)
        {:ok, token} = Stream.attach_channel(stream, feed: :infeed)
        {:ok, into} = Channel.open(token, :recv)
        if reason == :normal, do: GenServer.stop(stream), else: Process.exit(stream, :kill)
        assert {:error, %Error{type: :gone}} = Channel.recv(into, 600_000)
      end
    end
  end

  describe "a channel" do
    defp fed(opts \\ []) do
      stream = stream(opts)
      {:ok, token} = Stream.attach_channel(stream, capacity: 2)
      {:ok, out} = Channel.open(token, :send)
      {stream, out}
    end

    test "waits while the outfeed is full, and keeps the order" do
      {stream, out} = fed(outfeed_limit: 1)
      ref = ZeroCopy.from_binary!("abcd", [4], :uint8)
      :ok = Channel.send(out, {ref, "first"})
      # One in the outfeed, one with the feeder, and two in slots.
      for n <- 1..3, do: :ok = Channel.send(out, "#{n}")
      waiting(stream, 1)
      assert {:error, %Error{type: :timeout}} = Channel.send(out, "no room", 20)
      assert {:ok, {%TensorRef{} = got, "first"}} = Stream.pop_outfeed(stream)
      assert ZeroCopy.to_binary!(got) == "abcd"
      for n <- 1..3, do: assert(Stream.pop_outfeed(stream) == {:ok, "#{n}"})
      assert {:error, %Error{type: :timeout}} = Stream.pop_outfeed(stream, 0)
      # Used until here, so it is no garbage.
      :ok = Channel.close(out)
    end

    test "tells in its place that its senders are gone" do
      {stream, out} = fed()
      :ok = Channel.send(out, "last")
      :ok = Channel.close(out)
      assert {:ok, "last"} = Stream.pop_outfeed(stream)
      assert {:error, %Error{type: :gone, details: details}} = Stream.pop_outfeed(stream)
      # The error names the channel.
      assert details == %{channel: String.slice(out.token, 0, 13), errno: :epipe}
      assert {:error, %Error{type: :timeout}} = Stream.pop_outfeed(stream, 0)

      # The stream goes on, and other channels may be attached.
      {:ok, token} = Stream.attach_channel(stream)
      {:ok, out} = Channel.open(token, :send)
      :ok = Channel.send(out, "another")
      assert {:ok, "another"} = Stream.pop_outfeed(stream)
    end

    test "differs from another one that is attached" do
      {stream, first} = fed()
      {:ok, token} = Stream.attach_channel(stream)
      {:ok, second} = Channel.open(token, :send)
      assert first.token != second.token

      for {out, other} <- [{second, first}, {first, nil}] do
        :ok = Channel.close(out)
        assert {:error, %Error{type: :gone, details: details}} = Stream.pop_outfeed(stream)
        assert details.channel == String.slice(out.token, 0, 13)

        if other do
          :ok = Channel.send(other, "goes on")
          assert {:ok, "goes on"} = Stream.pop_outfeed(stream)
        end
      end
    end

    test "that another process has made" do
      stream = stream()
      {:ok, out} = Channel.create(:send)
      token = out.token
      assert {:ok, ^token} = Stream.attach_channel(stream, token: token)
      :ok = Channel.send(out, "here")
      assert {:ok, "here"} = Stream.pop_outfeed(stream)
    end

    test "ends with the stream" do
      for reason <- [:normal, :kill] do
        {:ok, stream} = GenServer.start(Stream, infeed_limit: 1, outfeed_limit: 1)
        {:ok, token} = Stream.attach_channel(stream)
        {:ok, out} = Channel.open(token, :send)
        [feeder] = :sys.get_state(stream, :infinity).feeders
        monitor = Process.monitor(feeder)
        if reason == :normal, do: GenServer.stop(stream), else: Process.exit(stream, :kill)
        assert_receive {:DOWN, ^monitor, :process, ^feeder, :killed}
        eventually(fn -> match?({:error, %Error{type: :gone}}, Channel.send(out, "x", 0)) end)
      end
    end

    test "cannot be attached" do
      stream = stream()

      for {opts, type} <- [
            {:x, :invalid},
            {[1], :invalid},
            {[capacity: 3], :invalid},
            {[colour: 1], :invalid},
            {[token: 5], :protocol},
            {[token: "nonsense"], :protocol},
            {[token: "x", capacity: 4], :invalid}
          ] do
        assert {:error, %Error{type: ^type}} = Stream.attach_channel(stream, opts)
      end

      :ok = Stream.push_outfeed(stream, "still good")
      assert {:ok, "still good"} = Stream.pop_outfeed(stream)
      :ok = stop_supervised(Stream)
      assert {:error, %Error{type: :closed}} = Stream.attach_channel(stream)
    end
  end

  describe "terms as tensors" do
    test "pids, also of other nodes" do
      # The external format of a pid of another, named node.
      node = "someone@a.rather.long.host.name.example"

      foreign =
        :erlang.binary_to_term(<<131, 88, 119, byte_size(node), node::binary, 1::32, 0::32, 7::32>>)

      for term <- [self(), foreign, {:tag, self(), make_ref()}, %{"a" => [1, 2.5, nil]}] do
        assert {:ok, bytes} = Stream.encode_term(term)
        assert byte_size(bytes) == 512
        ref = ZeroCopy.from_binary!(bytes, [512], :uint8)
        assert ref |> ZeroCopy.to_binary!() |> Stream.decode_term() == {:ok, term}
      end
    end

    test "what does not fit, and what is none" do
      assert {:error, %Error{type: :limit_exceeded}} = Stream.encode_term(self(), 8)

      assert {:error, %Error{type: :limit_exceeded}} =
               Stream.encode_term(String.duplicate("x", 600))

      # The size is exact.
      size = 8 + byte_size(:erlang.term_to_binary({:a, 1}))
      assert {:error, %Error{}} = Stream.encode_term({:a, 1}, size - 1)
      assert {:ok, exact} = Stream.encode_term({:a, 1}, size)
      assert byte_size(exact) == size and Stream.decode_term(exact) == {:ok, {:a, 1}}

      {:ok, bytes} = Stream.encode_term({:a, 1}, 64)

      for bad <- [
            "",
            "abc",
            <<9::64-little, 0>>,
            <<0::512>>,
            <<-1::64, 0::64>>,
            :crypto.strong_rand_bytes(64)
          ] do
        assert {:error, %Error{type: :protocol}} = Stream.decode_term(bad)
      end

      bomb = :erlang.term_to_binary(:binary.copy("x", 1_000_000), [:compressed])
      assert byte_size(bomb) < 2_000

      assert {:error, %Error{type: :protocol}} =
               Stream.decode_term(<<byte_size(bomb)::64-little, bomb::binary>>)

      unknown = "an_atom_that_nobody_has_ever_used_here"
      evil = <<131, 119, byte_size(unknown), unknown::binary>>

      assert {:error, %Error{type: :protocol}} =
               Stream.decode_term(<<byte_size(evil)::64-little, evil::binary>>)

      assert_raise ArgumentError, fn -> String.to_existing_atom(unknown) end
      assert {:ok, {:a, 1}} = Stream.decode_term(bytes)
    end
  end

  describe "a stream that follows another" do
    # tests/net/test_machines.py has streams between nodes, with tensors.
    test "has its values in their order, and no more ahead than it may" do
      home = stream(outfeed_limit: 1)
      {:ok, here} = Stream.start_link(from: home, ahead: 2)
      for value <- 1..3, do: :ok = Stream.push_outfeed(home, value, 600_000)
      # Two are here, one waits at home, and there is no more room.
      eventually(fn -> :queue.len(:sys.get_state(here, :infinity).outfeed.values) == 2 end)
      assert {:error, %Error{type: :timeout}} = Stream.push_outfeed(home, 4, 50)
      assert Stream.pop_outfeed(here, 600_000) == {:ok, 1}
      assert :ok = Stream.push_outfeed(home, 4, 600_000)
      for value <- 2..4, do: assert(Stream.pop_outfeed(here, 600_000) == {:ok, value})
      assert {:error, %Error{type: :timeout}} = Stream.pop_outfeed(here, 10)
      waits = later(fn -> Stream.pop_outfeed(here, 600_000) end)
      waiting(here, 1)
      :ok = Stream.push_outfeed(home, {:tuple, [%{5 => 5} | 6]})
      assert Task.await(waits, 600_000) == {:ok, {:tuple, [%{5 => 5} | 6]}}
    end

    test "gives back what was not popped" do
      home = stream()
      {:ok, here} = Stream.start_link(from: home, ahead: 3)
      for value <- 1..6, do: :ok = Stream.push_outfeed(home, value)
      assert Stream.pop_outfeed(here, 600_000) == {:ok, 1}
      eventually(fn -> :queue.len(:sys.get_state(here, :infinity).outfeed.values) == 3 end)
      :ok = GenServer.stop(here)
      eventually(fn -> :queue.len(:sys.get_state(home, :infinity).outfeed.values) == 5 end)
      for value <- 2..6, do: assert(Stream.pop_outfeed(home) == {:ok, value})
      # A reader that stops while it waits takes nothing along.
      {:ok, here} = Stream.start_link(from: home)
      waiting(home, 1)
      :ok = GenServer.stop(here)
      waiting(home, 0)
      :ok = Stream.push_outfeed(home, 7)
      assert Stream.pop_outfeed(home, 0) == {:ok, 7}

      for value <- 1..50 do
        {:ok, here} = Stream.start_link(from: home, ahead: 1)
        stops = later(fn -> GenServer.stop(here) end)
        :ok = Stream.push_outfeed(home, value)
        assert Task.await(stops, 600_000) == :ok
        assert Stream.pop_outfeed(home, 600_000) == {:ok, value}
      end
    end

    test "says that the other has ended, behind its last value, or is not there" do
      {:ok, home} = Stream.start_link()
      {:ok, here} = Stream.start_link(from: home)
      for value <- 1..2, do: :ok = Stream.push_outfeed(home, value)
      eventually(fn -> :queue.len(:sys.get_state(here, :infinity).outfeed.values) == 2 end)
      :ok = GenServer.stop(home)
      for value <- 1..2, do: assert(Stream.pop_outfeed(here, 600_000) == {:ok, value})
      for _ <- 1..2, do: assert({:error, %Error{type: :closed}} = Stream.pop_outfeed(here, 600_000))

      for {from, type} <- [{:nobody, :closed}, {{:nobody, node()}, :closed}, {"none", :not_found}] do
        {:ok, here} = Stream.start_link(from: from)
        assert {:error, %Error{type: ^type}} = Stream.pop_outfeed(here, 600_000)
      end

      for bad <- [[from: 1], [from: home, ahead: 0], [from: home, ahead: 65], [from: {1, 2}]],
          do: assert({:error, %Error{type: :invalid}} = Stream.start_link(bad))
    end

    test "goes on while a net stands still that what was opened is to be withdrawn from" do
      # It answers offers, and nothing else.
      net = spawn_link(&offers/0)
      Process.register(net, Tmesh.Net)
      home = stream()
      {:ok, sender} = GenServer.call(home, {:attach_far, self()}, :infinity)
      tell = &send(sender, {:tmesh_stream, 1, &1})
      tell.({:more, 3})

      for number <- 1..3 do
        ref = ZeroCopy.from_binary!("x", [1], :uint8)
        :ok = Stream.push_outfeed(home, %{x: ref})
        assert_receive {:tmesh_stream, 1, {:value, ^number, {:ok, _packed}}}
        tell.(if number == 1, do: {:opened, number}, else: {:popped, number})
      end

      kill(net)
    end

    defp offers do
      receive do
        {:"$gen_call", from, :began} ->
          GenServer.reply(from, :ok)

        {:"$gen_call", from, {:local, _secret, {:offer, _token}}} ->
          GenServer.reply(from, {:ok, %{"offer" => "1", "checksum" => "2", "region_bytes" => 3}})

        _other ->
          :nothing
      end

      offers()
    end

    test "gives the error of a value that cannot be opened in its place" do
      home = stream()
      {:ok, here} = Stream.start_link(from: home)
      :ok = Stream.push_outfeed(home, %{x: ZeroCopy.from_binary!("x", [1], :uint8)})
      :ok = Stream.push_outfeed(home, :next)
      assert {:error, %Error{type: :not_started}} = Stream.pop_outfeed(here, 600_000)
      assert Stream.pop_outfeed(here, 600_000) == {:ok, :next}
    end
  end
end
