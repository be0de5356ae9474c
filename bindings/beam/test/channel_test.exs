# SPDX-License-Identifier: MIT
defmodule Tmesh.ChannelTest do
  use Tmesh.Case
  alias Tmesh.{Channel, Native}

  doctest Tmesh.Channel

  defp ends(opts \\ []) do
    {:ok, out} = Channel.create(:send, opts)
    {:ok, into} = Channel.open(out.token, :recv, Keyword.take(opts, [:spin_us]))
    {out, into}
  end

  test "a wait ends when a message comes, and leaves nothing in the mailbox" do
    for spin_us <- [0, 20] do
      {out, into} = ends(spin_us: spin_us)
      test = self()

      receiver =
        spawn_link(fn ->
          {:ok, own} = Channel.open(out.token, :recv, spin_us: spin_us)
          Kernel.send(test, :opened)

          for n <- 1..200 do
            text = "#{n}"
            {:ok, ^text} = Channel.recv(own, 60_000)
          end

          {:error, %Error{type: :timeout}} = Channel.recv(own, 10)
          Kernel.send(test, {:left, Process.info(self(), :messages)})
        end)

      # Before that no receiver would be left.
      assert_receive :opened, 60_000
      :ok = Channel.close(into)

      for n <- 1..200 do
        if rem(n, 20) == 0, do: Process.sleep(2)
        :ok = Channel.send(out, "#{n}")
      end

      assert_receive {:left, {:messages, []}}, 60_000
      Process.unlink(receiver)
    end
  end

  test "who waits looks at none of the messages that it had before" do
    {_result, scan} =
      with_backlog(fn ->
        receive do
          :nothing -> :ok
        after
          0 -> :ok
        end
      end)

    assert scan > 200_000

    {timeout, looked_at} = with_backlog(fn -> Channel.recv(Channel.create!(:recv), 1) end)

    assert {:error, %Error{type: :timeout}} = timeout
    assert looked_at < 100_000

    {came, looked_at} =
      with_backlog(fn ->
        {:ok, into} = Channel.create(:recv)
        waiting = self()

        spawn_link(fn ->
          {:ok, out} = Channel.open(into.token, :send)
          eventually(fn -> {:status, :waiting} == Process.info(waiting, :status) end)
          Channel.send!(out, "woken")
        end)

        Channel.recv(into)
      end)

    assert came == {:ok, "woken"}
    assert looked_at < 100_000
  end

  test "flush tells what it cannot do" do
    {out, into} = ends()
    :ok = Channel.send(out, "one")

    assert {:error,
            %Error{type: :timeout, message: "flush timed out: sent messages wait for a receiver"}} =
             Channel.flush(out, 10)

    assert {:error, %Error{type: :timeout, details: %{messages: messages}}} = Tmesh.flush(0)
    assert messages > 0
    assert {:error, %Error{type: :invalid}} = Channel.flush(into, 0)
    :ok = Channel.close(into)
    assert {:error, %Error{type: :gone}} = Channel.flush(out)
    :ok = Channel.close(out)
    assert {:error, %Error{type: :closed}} = Channel.flush(out)
  end

  test "an end goes with its process, and the other one knows" do
    {:ok, into} = Channel.create(:recv)

    in_process(fn ->
      {:ok, out} = Channel.open(into.token, :send)
      :ok = Channel.send(out, "last words")
    end)

    assert {:ok, "last words"} = Channel.recv(into)
    assert {:error, %Error{type: :gone}} = Channel.recv(into, 60_000)
  end

  test "a process that is killed while it waits is gone as well" do
    {:ok, out} = Channel.create(:send, capacity: 2)
    test = self()

    waiting =
      spawn(fn ->
        {:ok, into} = Channel.open(out.token, :recv)
        Kernel.send(test, :joined)
        Channel.recv(into, :infinity)
      end)

    assert_receive :joined
    Process.sleep(20)
    Process.exit(waiting, :kill)

    eventually(fn -> match?({:error, %Error{type: :gone}}, Channel.send(out, "x", 0)) end)
  end

  # Answer each message with the result of `fun`, until no process asks any more.
  defp answerer(fun, opts \\ []) do
    {:ok, out} = Channel.create(:send, opts)
    {:ok, into} = Channel.create(:recv, spin_us: 20)

    task =
      Task.async(fn ->
        {:ok, from} = Channel.open(out.token, :recv)
        {:ok, to} = Channel.open(into.token, :send)
        answer(from, to, fun)
      end)

    {out, into, task}
  end

  defp answer(from, to, fun) do
    with {:ok, message} <- Channel.recv(from, :infinity) do
      :ok = Channel.send(to, fun.(message))
      answer(from, to, fun)
    end
  end

  describe "call/4" do
    test "gives the ref that was given where the answer is about its tensor" do
      for pause <- [0, 2] do
        {out, into, task} =
          answerer(fn message ->
            Process.sleep(pause)
            message
          end)

        ref = ZeroCopy.from_binary!("abcdef", [2, 3], :uint8)
        assert {:ok, ^ref} = Channel.call(out, into, ref)
        opened = stat(:regions_opened)

        for n <- 1..50 do
          assert {:ok, ^ref} = Channel.call(out, into, ref)
          number = "#{n}"
          assert {:ok, {^ref, ^number}} = Channel.call(out, into, {ref, number})
          assert {:ok, ^number} = Channel.call(out, into, number)
        end

        assert stat(:regions_opened) == opened
        assert ZeroCopy.to_binary!(ref) == "abcdef"
        :ok = Channel.close(out)
        assert {:error, %Error{type: :gone}} = Task.await(task, :infinity)
      end
    end

    test "gives another part of the same memory as a ref of its own" do
      base = ZeroCopy.from_binary!("abcdefgh", [8], :uint8) |> ZeroCopy.grant!(:read)
      part = %{base | shape: [2, 2], strides: [2, 1], byte_size: 4}
      question = ZeroCopy.open!(part)

      for {other, bytes} <- [
            {%{part | offset: 4}, "efgh"},
            {%{part | strides: [1, 2]}, "acbd"},
            {%{part | dtype: :int8}, "abcd"}
          ] do
        answer = ZeroCopy.open!(other)
        {out, into, _task} = answerer(fn _message -> answer end)
        assert {:ok, got} = Channel.call(out, into, question)
        assert got.handle != question.handle
        assert {got.dtype, ZeroCopy.to_binary!(got)} == {other.dtype, bytes}
        :ok = Channel.close(out)
      end
    end

    test "gives any other tensor as a ref of its own" do
      region = ZeroCopy.from_binary!("abcdef", [6], :uint8)
      # Another description of the same bytes.
      other = ZeroCopy.open!(%{ZeroCopy.grant!(region, :read) | shape: [2, 3], strides: [3, 1]})
      equal = ZeroCopy.from_binary!("abcdef", [6], :uint8)
      same = ZeroCopy.open!(ZeroCopy.grant!(region, :read))

      for {answer, given?} <- [{other, false}, {equal, false}, {same, true}] do
        {out, into, _task} = answerer(fn _message -> answer end)
        assert {:ok, got} = Channel.call(out, into, region)
        assert got == region == given?
        assert got.shape == answer.shape
        assert ZeroCopy.to_binary!(got) == "abcdef"
        assert {:ok, %TensorRef{}} = Channel.call(out, into, "no tensor")
      end
    end

    test "waits for room, and for the answer" do
      {out, into, _task} =
        answerer(
          fn message ->
            Process.sleep(20)
            message
          end,
          capacity: 1
        )

      ref = ZeroCopy.from_binary!("x", [1], :uint8)
      for n <- 1..3, do: :ok = Channel.send(out, "#{n}")
      # The answers to earlier messages come first.
      assert {:ok, "1"} = Channel.call(out, into, ref)
      assert {:ok, "2"} = Channel.recv(into)
      assert {:ok, "3"} = Channel.recv(into)
      assert {:ok, %TensorRef{}} = Channel.recv(into)
      {out, from} = ends()
      assert {:error, %Error{type: :timeout}} = Channel.call(out, into, ref, 1)
      # The message was sent nevertheless.
      assert {:ok, %TensorRef{}} = Channel.recv(from)
    end

    test "bad use is refused and sends nothing" do
      {out, into} = ends()
      {:ok, answers} = Channel.create(:recv)
      closed = ZeroCopy.from_binary!("x", [1], :uint8)
      :ok = ZeroCopy.release(closed)

      for {type, call} <- [
            invalid: fn -> Channel.call(into, answers, "x") end,
            invalid: fn -> Channel.call(out, %{into | native: make_ref()}, "x") end,
            invalid: fn -> Channel.call(%{out | native: make_ref()}, answers, "x") end,
            invalid: fn -> Channel.call(out, answers, :binary.copy("x", 57)) end,
            invalid: fn -> Channel.call(out, out, "x") end,
            busy: fn ->
              Channel.call(%{answers | native: out.native}, %{answers | native: out.native}, "x")
            end,
            closed: fn -> Channel.call(out, answers, closed) end
          ] do
        assert {:error, %Error{type: ^type}} = call.()
      end

      assert {:error, %Error{type: :timeout, message: "receive timed out: no message is ready"}} =
               Channel.recv(into, 0)

      :ok = Channel.close(answers)
      assert {:error, %Error{type: :closed}} = Channel.call(out, answers, "x")
      assert {:error, %Error{type: :timeout}} = Channel.recv(into, 0)
      assert {:error, %Error{type: :invalid}} = Channel.call(out, into, "x", -1)
    end
  end

  test "bad use is refused and changes nothing" do
    {out, into} = ends()
    ref = ZeroCopy.from_binary!("x", [1], :uint8)

    for {type, call} <- [
          invalid: fn -> Channel.send(out, ~c"text") end,
          closed: fn -> Channel.send(out, %TensorRef{ref | handle: nil}) end,
          invalid: fn -> Channel.send(out, {"x", "y"}) end,
          invalid: fn -> Channel.send(%{out | native: make_ref()}, "x") end,
          invalid: fn -> Channel.recv(%{into | native: make_ref()}) end,
          invalid: fn -> Channel.create(:both) end,
          invalid: fn -> Channel.create(:send, capacity: -1) end,
          invalid: fn -> Channel.create(:send, spin_us: 101) end,
          invalid: fn -> Channel.create(:send, spin_us: :long) end,
          invalid: fn -> Channel.create(:send, capacity: 4, limit: 5) end,
          invalid: fn -> Channel.create(:send, limit: -1) end,
          invalid: fn -> Channel.create(:recv, limit: 1) end,
          invalid: fn -> Channel.create(:send, color: :blue) end,
          invalid: fn -> Channel.open(out.token, :recv, capacity: 4) end,
          protocol: fn -> Channel.open(:binary.copy("x", 1000), :send) end
        ] do
      assert {:error, %Error{type: ^type}} = call.()
    end

    assert :ok = Channel.send(out, "still good")
    assert {:ok, "still good"} = Channel.recv(into)
  end

  test "nothing stays" do
    once = fn ->
      in_process(fn ->
        {out, into} = ends()
        :ok = Channel.send(out, ZeroCopy.from_binary!("x", [1], :uint8))
        {:ok, _ref} = Channel.recv(into)
        {:error, _timeout} = Channel.recv(into, 1)
      end)
    end

    keeps_no_files(once, 20)
  end

  test "an end is open until its process ends, even if another process still has it" do
    {:ok, out} = Channel.create(:send)
    test = self()

    forgetful =
      spawn(fn ->
        wait_at(out.token)
        :erlang.garbage_collect()
        Kernel.send(test, :forgotten)
        Process.sleep(:infinity)
      end)

    assert_receive :forgotten, 60_000
    # Anything that could close it has been dropped by then.
    assert GenServer.call(Tmesh.Janitor, :sweep, 60_000) == :ok
    assert Channel.send(out, "x", 0) == :ok
    Process.exit(forgetful, :kill)
    eventually(fn -> match?({:error, %Error{type: :gone}}, Channel.send(out, "x", 0)) end)
  end

  defp wait_at(token) do
    {:ok, into} = Channel.open(token, :recv)
    {:error, %Error{type: :timeout}} = Channel.recv(into, 1)
  end

  test "where one process waits, others are refused and take nothing from it" do
    {out, into} = ends()
    waiting = waiter(into)
    assert {:error, %Error{type: :busy}} = Channel.recv(into, 10)
    :ok = Channel.send(out, "for the first")
    assert Task.await(waiting, :infinity) == {:ok, "for the first"}
    assert {:error, %Error{type: :timeout}} = Channel.recv(into, 1)

    # A dead process waits no more.
    Task.shutdown(waiter(into), :brutal_kill)
    :ok = Channel.send(out, "for the next")
    assert Channel.recv(into) == {:ok, "for the next"}
  end

  test "a process that waits when an end is closed gets an error, and keeps no message of it" do
    {_out, into} = ends()
    waiting = waiter(into)
    :ok = Channel.close(into)
    assert {:error, %Error{type: :closed}} = Task.await(waiting, :infinity)

    test = self()

    owner =
      spawn(fn ->
        {:ok, into} = Channel.create(:recv)
        Kernel.send(test, into)
        Process.sleep(:infinity)
      end)

    assert_receive %Channel{} = into
    waiting = waiter(into)
    Process.exit(owner, :kill)
    assert {:error, %Error{type: :closed}} = Task.await(waiting, :infinity)
  end

  # Start a process that waits for ever at an end, and has no message left when it is done.
  defp waiter(into) do
    task =
      Task.async(fn ->
        answer = Channel.recv(into, :infinity)
        refute_received _anything
        answer
      end)

    eventually(fn -> Process.info(task.pid, :status) == {:status, :waiting} end)
    task
  end

  test "a wait may be longer than the emulator's longest" do
    {out, into} = ends()
    :ok = Channel.send(out, "x")
    assert {:ok, "x"} = Channel.recv(into, 0x1_0000_0000)
    waiting = Task.async(fn -> Channel.recv(into, 0x1_0000_0000_0000) end)
    assert Task.yield(waiting, 20) == nil
    :ok = Channel.send(out, "y")
    assert Task.await(waiting, :infinity) == {:ok, "y"}
  end

  # A process that uses an end while it is closed finishes the close, exactly once.
  test "an end is closed while other processes use it" do
    once = fn ->
      in_process(fn ->
        {:ok, into} = Channel.create(:recv, spin_us: 100)
        {:ok, out} = Channel.open(into.token, :send)

        users =
          for _n <- 1..3 do
            Task.async(fn -> until_closed(out, into) end)
          end

        Process.sleep(:rand.uniform(3))
        for each <- [out, into], do: :ok = Channel.close(each)
        assert Task.await_many(users, :infinity) == [:closed, :closed, :closed]
      end)
    end

    keeps_no_files(once, 50)
  end

  # To free memory takes long, so the janitor does it on a scheduler that may wait.
  describe "what is released in the middle of a call goes the janitor's way" do
    any_backend(:describetag)

    if :erlang.system_info(:schedulers_online) < 2,
      do: @describetag(skip: "two schedulers are needed")

    test "receiving" do
      {out, into} = ends(spin_us: 100)

      released_meanwhile(fn handle ->
        # It looks long for a message only if the last look found one.
        :ok = Channel.send(out, "x")
        {:ok, "x"} = Channel.recv(into)
        fn -> Native.channel_recv(into.native, handle) end
      end)
    end

    test "sending" do
      {out, into} = full()

      released_meanwhile(fn handle ->
        fn -> Native.channel_send(out.native, handle, "") end
      end)

      assert Channel.recv(into) == {:ok, "x"}
    end

    test "calling" do
      {out, into} = full()

      released_meanwhile(fn handle ->
        fn -> Native.channel_call(out.native, into.native, handle, "") end
      end)

      assert Channel.recv(into) == {:ok, "x"}
    end
  end

  # The first tensor of all is sent on a dirty scheduler.
  defp full do
    {out, into} = ends(capacity: 1)
    :ok = Channel.send(out, "x")
    first = ZeroCopy.from_binary!("x", [1], :uint8)

    assert {:error, %Error{type: :timeout, message: "send timed out: the channel is full"}} =
             Channel.send(out, first, 0)

    {out, into}
  end

  defp released_meanwhile(prepare) do
    janitor = Process.whereis(Tmesh.Janitor)
    before = :erlang.process_flag(:scheduler, 1)
    :erlang.trace(janitor, true, [:receive])
    told = Enum.any?(1..10_000, &told_of?(janitor, prepare, &1))
    :erlang.trace(janitor, false, [:receive])
    :erlang.process_flag(:scheduler, before)
    assert told
  end

  # A release before the call or after it does not go to the janitor. Garbage of an earlier test may, in the first
  # rounds.
  defp told_of?(janitor, prepare, round) do
    flag = :atomics.new(1, [])
    ref = ZeroCopy.allocate!([8], :uint8)
    call = prepare.(ref.handle)

    release = fn ->
      :atomics.put(flag, 1, 1)
      spin_until(flag, 2)
      for _n <- 1..rem(round, 50)//1, do: :atomics.get(flag, 1)
      :ok = ZeroCopy.release(ref)
    end

    # Without this, both may run on one scheduler.
    {pid, monitor} = :erlang.spawn_opt(release, [:monitor, scheduler: 2])
    spin_until(flag, 1)
    :atomics.put(flag, 1, 2)
    answer = call.()
    assert answer == :eagain or match?({:error, {:ebadf, _message}}, answer)
    assert_receive {:DOWN, ^monitor, :process, ^pid, :normal}, 600_000
    swept?(janitor, :erlang.trace_delivered(janitor), false) and round > 10
  end

  defp spin_until(flag, value),
    do: if(:atomics.get(flag, 1) != value, do: spin_until(flag, value))

  defp swept?(janitor, delivered, swept) do
    receive do
      {:trace, ^janitor, :receive, what} -> swept?(janitor, delivered, swept or what == :sweep)
      {:trace_delivered, ^janitor, ^delivered} -> swept
    end
  end

  defp keeps_no_files(once, times) do
    once.()
    files = fn -> length(File.ls!("/proc/self/fd")) end
    Process.sleep(100)
    before = files.()
    for _n <- 1..times, do: once.()
    eventually(fn -> files.() <= before end)
  end

  defp until_closed(out, into) do
    case Channel.call(out, into, "again", 0) do
      {:error, %Error{type: type}} when type in [:closed, :gone] -> :closed
      _other -> until_closed(out, into)
    end
  end

  defmodule Watcher do
    use GenServer

    def start_link(arguments), do: GenServer.start_link(__MODULE__, arguments)

    @impl true
    def init({token, test}) do
      {:ok, channel} = Channel.open(token, :recv)
      :ok = Channel.watch(channel)
      {:ok, %{channel: channel, test: test}}
    end

    @impl true
    def handle_info({:tmesh_channel, tag}, %{channel: %{tag: tag}} = state) do
      with {:ok, message} <- Channel.recv(state.channel, 0),
           do: Kernel.send(state.test, {:came, message})

      case Channel.watch(state.channel) do
        :ok -> {:noreply, state}
        {:error, %Error{type: type}} when type in [:gone, :closed] -> {:stop, :normal, state}
      end
    end

    @impl true
    def handle_call(:close, _from, state), do: {:reply, Channel.close(state.channel), state}
  end

  test "a server learns of each message, and of the end" do
    {:ok, out} = Channel.create(:send, capacity: 4)
    {:ok, server} = Watcher.start_link({out.token, self()})
    monitor = Process.monitor(server)

    for n <- 1..100 do
      if rem(n, 20) == 0, do: Process.sleep(2)
      :ok = Channel.send(out, "#{n}")
    end

    for n <- 1..100 do
      text = "#{n}"
      assert_receive {:came, ^text}, 60_000
    end

    assert {:error, %Error{type: :busy}} = elsewhere(server)
    :ok = Channel.close(out)
    assert_receive {:DOWN, ^monitor, :process, ^server, :normal}, 60_000
  end

  test "a server that closes its end ends, too" do
    {:ok, out} = Channel.create(:send)
    {:ok, server} = Watcher.start_link({out.token, self()})
    monitor = Process.monitor(server)
    :ok = GenServer.call(server, :close, 60_000)
    assert_receive {:DOWN, ^monitor, :process, ^server, :normal}, 60_000
  end

  # Use the end's term in another process than the one that watches.
  defp elsewhere(server), do: Channel.recv(:sys.get_state(server, :infinity).channel, 0)

  test "a watch sends one message, at once if a message is there, and also at a close" do
    {out, into} = ends()
    tag = into.tag
    :ok = Channel.send(out, "one")
    :ok = Channel.watch(into)
    assert_receive {:tmesh_channel, ^tag}, 60_000
    assert {:ok, "one"} = Channel.recv(into, 0)
    # After this look nothing is left to look at.
    assert {:error, %Error{type: :timeout}} = Channel.recv(into, 0)
    :ok = Channel.watch(into)
    refute_receive {:tmesh_channel, ^tag}, 20
    # A call that does not wait leaves the watch.
    assert {:error, %Error{type: :timeout}} = Channel.recv(into, 0)
    assert {:error, %Error{type: :busy}} = recv_elsewhere(into)
    :ok = Channel.send(out, "two")
    assert_receive {:tmesh_channel, ^tag}, 60_000
    assert {:ok, "two"} = Channel.recv(into, 0)
    # The watch is over.
    assert {:error, %Error{type: :timeout}} = recv_elsewhere(into)
    # A wait ends the watch, and takes its own message.
    :ok = Channel.watch(into)
    assert {:error, %Error{type: :timeout}} = Channel.recv(into, 10)
    :ok = Channel.watch(into)
    :ok = Channel.close(into)
    assert_receive {:tmesh_channel, ^tag}, 60_000
    assert {:error, %Error{type: :closed}} = Channel.watch(into)
    assert {:error, %Error{type: :closed}} = Channel.recv(into, 0)
  end

  defp recv_elsewhere(into), do: Task.await(Task.async(fn -> Channel.recv(into, 0) end), 60_000)

  test "a watch gives the sent messages, and then that no sender is left" do
    {out, into} = ends()
    :ok = Channel.send(out, "last")
    :ok = Channel.close(out)
    :ok = Channel.watch(into)
    tag = into.tag
    assert_receive {:tmesh_channel, ^tag}, 60_000
    assert {:ok, "last"} = Channel.recv(into, 0)
    assert told_until_gone(into) == :gone
    assert {:error, %Error{type: :invalid}} = Channel.watch(out)
  end

  # Another thread closes the sender's end.
  defp told_until_gone(%Channel{tag: tag} = into) do
    with :ok <- Channel.watch(into) do
      assert_receive {:tmesh_channel, ^tag}, 60_000
      assert {:error, %Error{type: type}} = Channel.recv(into, 0)
      if type == :timeout, do: told_until_gone(into), else: type
    else
      {:error, %Error{type: type}} -> type
    end
  end
end
