# SPDX-License-Identifier: MIT
defmodule Tmesh.WorkerHostileTest do
  use Tmesh.Case, backend: :any

  import ExUnit.{CaptureIO, CaptureLog}
  alias Tmesh.{PythonPool, Telemetry, Worker}

  @hostile Path.expand("support/hostile_worker.py", __DIR__)

  # Call a pool of one worker that breaks the protocol, and return the result.
  defp call(how, opts \\ []) do
    env = [{"HOSTILE", how}, {"SEED", "#{opts[:seed]}"}]
    options = [name: HostilePool, python: @hostile, allow: ["x"], size: 1, env: env]

    # A Python may take long to start. Tests that want that time to end make it short.
    start_timeout_ms = opts[:start_timeout_ms] || 600_000
    start_supervised!({Worker, [start_timeout_ms: start_timeout_ms] ++ options})
    ref = ZeroCopy.from_binary!("abcd", [4], :uint8)

    try do
      Worker.execute("x.y", [ref], pool: HostilePool, timeout: opts[:timeout] || 600_000)
    after
      assert ZeroCopy.to_binary!(ref) == "abcd"
      :ok = stop_supervised(HostilePool)
    end
  end

  defp quietly(fun) do
    test = self()
    capture_log(fn -> send(test, {:result, fun.()}) end)
    assert_received {:result, result}
    result
  end

  for how <- ["exit", "ready without a socket"] do
    test "a worker that cannot be started: #{how}" do
      assert {:error, %Error{type: :worker_down, message: "no worker can be started" <> _}} =
               quietly(fn -> call(unquote(how), start_timeout_ms: 1_000) end)
    end
  end

  test "a pool of workers that cannot be started is none, and the error quotes why" do
    said = fn ->
      capture_io(:standard_error, fn ->
        options = [python: PythonPool.python(), allow: ["no_such_module_of_anybody"], size: 2]
        options = [start_timeout_ms: 600_000] ++ options
        result = quietly(fn -> Worker.start_pool([name: Unstartable] ++ options) end)
        assert {:error, %Error{type: :worker_down, message: message}} = result
        assert message =~ "exit status 2"
        assert message =~ "No module named 'no_such_module_of_anybody'"
      end)
    end

    if PythonPool.available?(), do: assert(said.() =~ "no_such_module_of_anybody")
    assert Process.whereis(Unstartable) == nil

    # Without Python's package, or for any other reason before it runs.
    result =
      quietly(fn ->
        env = [{"HOSTILE", "exit"}]
        options = [python: @hostile, allow: ["x"], size: 1, env: env, start_timeout_ms: 600_000]
        Worker.start_pool([name: Unstartable] ++ options)
      end)

    assert {:error, %Error{type: :worker_down, message: message}} = result
    assert message =~ "exit status 3"
  end

  for how <- ["silent", "chatty"] do
    test "a worker that does not come up: #{how}" do
      assert {:error, %Error{type: :worker_down}} =
               quietly(fn -> call(unquote(how), start_timeout_ms: 300) end)

      assert {:error, %Error{type: :timeout}} = quietly(fn -> call(unquote(how), timeout: 300) end)
    end
  end

  # Only a signal ends such a process.
  test "a worker that holds the interpreter's lock while it starts is ended" do
    path = Path.join(System.tmp_dir!(), "pids-#{System.pid()}")
    on_exit(fn -> File.rm(path) end)

    started = fn ->
      with({:ok, text} <- File.read(path), do: String.split(text), else: (_ -> []))
    end

    lives? = &File.exists?("/proc/#{&1}")
    env = [{'HOSTILE', 'locked'}, {'PIDS', String.to_charlist(path)}]

    options = %{
      name: :none,
      python: @hostile,
      allow: ["x"],
      env: env,
      start_timeout_ms: 600_000,
      spin_us: 0
    }

    # This process is the pool.
    quietly(fn ->
      worker = start_supervised!({Worker.Process, {self(), options}})
      eventually(fn -> started.() != [] end)
      [first] = started.()
      %{life: life} = :sys.get_state(worker, :infinity)
      send(worker, {:start_timeout, life})
      assert_receive {:"$gen_cast", {:down, ^worker, {:failed, _why}}}
      eventually(fn -> not lives?.(first) end, 400)
      eventually(fn -> Enum.any?(started.(), lives?) end)
      :ok = stop_supervised(Worker.Process)
      eventually(fn -> not Enum.any?(started.(), lives?) end, 400)
    end)
  end

  test "a worker that ends as soon as it is up is started later and later" do
    test = self()
    down = fn _event, _values, %{pool: IdlePool}, nil -> send(test, {:down, now()}) end
    :ok = Telemetry.attach("idle ends", [[:tmesh, :worker, :down]], down, nil)
    env = [{"HOSTILE", "hello twice"}]

    ends =
      quietly(fn ->
        {:ok, pool} =
          Worker.start_pool(name: IdlePool, python: @hostile, allow: ["x"], size: 1, env: env)

        ends = for _n <- 1..5, do: assert_receive({:down, _ms})
        :ok = Worker.stop_pool(pool)
        ends
      end)

    :ok = Telemetry.detach("idle ends")
    [{:down, fourth}, {:down, fifth}] = Enum.take(ends, -2)
    assert fifth - fourth >= 400
  end

  defp now, do: System.monotonic_time(:millisecond)

  for how <- [
        "no JSON",
        "a list",
        "not UTF-8",
        "no type",
        "other version",
        "hello without pid",
        "pid as text",
        "result first",
        "error first",
        "member twice",
        "deep",
        "deep objects",
        "long",
        "big integer",
        "big real",
        "body of a pipe",
        "hang in a body",
        "two descriptors",
        "many descriptors",
        "body of an unanswered file",
        "bodies of an unanswered file",
        "unsealed body",
        "body too short",
        "body too large",
        "hello twice",
        "answer without a call",
        "id of another call",
        "id as text",
        "no value",
        "held as text",
        "unknown answer",
        "error without words",
        "error as text",
        "sequence as text",
        "deep value",
        "close"
      ] do
    test "a worker that breaks the protocol is ended: #{how}" do
      assert {:error, %Error{type: :worker_down, message: message}} =
               quietly(fn -> call(unquote(how)) end)

      assert byte_size(message) > 20
    end
  end

  for {how, type} <- [
        {"unknown error", :system},
        {"item without a stream", :protocol},
        {"end without a stream", :protocol},
        {"dead ref", :worker_down},
        {"no ref", :protocol},
        {"ref as number", :protocol},
        {"unknown placeholder", :protocol},
        {"placeholder as list", :protocol},
        {"unknown dtype", :protocol},
        {"ref beyond its region", :protocol},
        {"ref too large", :protocol},
        {"ref wraps", :protocol},
        {"shape of text", :protocol},
        {"bytes beyond", :protocol},
        {"bad base64", :protocol},
        {"base64 as number", :protocol},
        {"array of another size", :invalid},
        {"array of no dtype", :protocol},
        {"array of no shape", :invalid},
        {"no table", :protocol},
        {"no table's text", :protocol},
        {"table of nothing", :protocol},
        {"Snakepit's of no kind", :protocol},
        {"Snakepit's of an unknown kind", :protocol},
        {"Snakepit's without a ref", :protocol},
        {"Snakepit's without a name", :protocol},
        {"Snakepit's other dtype", :protocol},
        {"Snakepit's other shape", :protocol},
        {"Snakepit's other bytes", :protocol},
        {"Snakepit's other device", :protocol},
        {"Snakepit's no table", :protocol},
        {"Snakepit's table of nothing", :protocol},
        {"float of no name", :protocol},
        {"one good, one bad", :protocol}
      ] do
    test "an answer that cannot be is an error: #{how}" do
      assert {:error, %Error{type: unquote(type)}} = quietly(fn -> call(unquote(how)) end)
    end
  end

  # Otherwise its keeper and its supervisor would end again and again, and with them every other pool.
  test "what the emulator refuses to start is a worker that cannot be started" do
    options = %{
      name: :none,
      python: PythonPool.python(),
      allow: ["x"],
      env: [{'A=B', '1'}],
      start_timeout_ms: 20_000,
      spin_us: 0
    }

    quietly(fn ->
      worker = start_supervised!({Worker.Process, {self(), options}})
      assert_receive {:"$gen_cast", {:down, ^worker, {:failed, why}}}
      assert why =~ "invalid option"
      :ok = stop_supervised(Worker.Process)
    end)
  end

  test "a call whose workers end before it begins is tried twice, not for ever" do
    options = %{
      name: :none,
      python: System.find_executable("true"),
      allow: [],
      env: [],
      start_timeout_ms: 20_000,
      spin_us: 0
    }

    # This process is the pool, and the worker is never up.
    quietly(fn ->
      worker = start_supervised!({Worker.Process, {self(), options}})
      reply = :erlang.alias()
      call = %{reply: reply, caller: self(), again: false}
      Worker.Process.run(worker, call)
      assert_receive {:"$gen_cast", {:again, %{reply: ^reply} = call}}
      Worker.Process.run(worker, call)
      assert_receive {^reply, {:error, %Error{type: :worker_down}}}
      :ok = stop_supervised(Worker.Process)
    end)
  end

  test "a flood of items without a request is ended" do
    assert {:error, %Error{}} = quietly(fn -> call("flood") end)
  end

  for how <- ["flood", "flood of a stream"] do
    test "a worker that sends more items than were released is ended: #{how}" do
      env = [{"HOSTILE", unquote(how)}]
      options = [name: HostilePool, python: @hostile, allow: ["x"], size: 1, env: env]
      start_supervised!({Worker, [start_timeout_ms: 600_000] ++ options})

      quietly(fn ->
        items = Worker.stream("x.y", [], pool: HostilePool, timeout: 600_000)

        error =
          assert_raise Error, fn ->
            Enum.each(items, fn _item ->
              Process.sleep(10)
              # Eight items, and the error.
              assert {:message_queue_len, n} = Process.info(self(), :message_queue_len)
              assert n <= 9
            end)
          end

        assert error.type == :worker_down and error.message =~ "8 items"
      end)
    end
  end

  test "random messages" do
    rounds = if System.get_env("TMESH_TEST_LENGTH") == "full", do: 60, else: 6

    for seed <- 1..rounds do
      assert {:error, %Error{}} = quietly(fn -> call("random", seed: seed, timeout: 5_000) end)
    end
  end

  test "no atoms are made of what workers say" do
    assert {:ok, %{"no_such_atom_ever_6" => ["no_such_atom_ever_7"]}} =
             quietly(fn -> call("no such atoms") end)

    for n <- 1..7 do
      name = "no_such_atom_ever_" <> Integer.to_string(n)
      assert_raise ArgumentError, fn -> String.to_existing_atom(name) end
    end
  end

  test "pools with wrong options are refused" do
    for bad <- [
          [],
          [allow: []],
          [allow: "numpy"],
          [allow: [:numpy]],
          [allow: ["x\0"]],
          [size: 0],
          [size: 5000],
          [name: "x"],
          [python: "no-such-python"],
          [python: :python],
          [env: [a: 1]],
          [env: :none],
          [env: [{"A=B", "1"}]],
          [env: [{"", "1"}]],
          [max_waiting: -1],
          [start_timeout_ms: 0],
          [spin_us: -1],
          [spin_us: 101],
          [spin_us: 0.5],
          [other: 1]
        ] do
      options = if bad == [], do: [], else: Keyword.merge([allow: ["x"]], bad)
      assert {:error, %Error{type: :invalid}} = Worker.start_pool(options)
    end

    assert {:error, %Error{type: :invalid}} = Worker.start_pool(:none)
    assert {:error, %Error{type: :not_started}} = Worker.stop_pool(self())
  end

  test "the NIFs refuse what is no socket, no name, no text" do
    alias Tmesh.Native

    for bad <- [nil, "", 1, [], String.duplicate("x", 200)] do
      assert {:error, {:einval, _why}} = Native.worker_connect(bad)
    end

    assert {:error, {:econnrefused, _why}} = Native.worker_connect("no-such-worker")

    assert {:error, {:einval, _why}} = Native.worker_kill(make_ref())
    assert {:error, {:einval, _why}} = Native.worker_kill_unready(0, "x")
    assert {:error, {:einval, _why}} = Native.worker_kill_unready(1, "")
    # Another process has that number.
    assert :ok = Native.worker_kill_unready(String.to_integer(System.pid()), "tmesh-worker-0")

    for bad <- [-1, 101, 0.5, nil] do
      assert {:error, {:einval, "a busy look" <> _why}} = Native.worker_recv(make_ref(), bad)
    end

    assert {:error, {:einval, _why}} = Native.worker_recv(make_ref(), 0)

    assert {:error, {:einval, _why}} = Native.worker_send(make_ref(), "x")
    assert {:error, {:einval, _why}} = Native.worker_send(make_ref(), "")
    assert {:error, {:einval, _why}} = Native.worker_send(make_ref(), :x)
    assert {:error, {:edquot, _why}} = Native.worker_send(make_ref(), :binary.copy("x", 16_777_217))
    assert :ok = Native.worker_close(make_ref())
    assert {:error, {:einval, _why}} = Native.json_decode(:x)

    for bad <- ["", "x", "[]", "1", ~s({"a":1,"a":2}), ~s({"a":"\\ud800"}), ~s({"a":NaN}), "{}x"] do
      assert {:error, {:eproto, _why}} = Native.json_decode(bad)
    end

    assert {:ok, %{"a" => "\0"}} = Native.json_decode(~S({"a":"\u0000"}))
    long = ~s({"a":") <> :binary.copy("x", 100_000) <> ~s("})
    assert {:ok, %{"a" => text}} = Native.json_decode(long)
    assert byte_size(text) == 100_000
  end

  # Start a process that listens as a worker does, and sends nothing more.
  defp listen do
    name = "tmesh-test-" <> Base.encode16(:crypto.strong_rand_bytes(8))

    script = """
    import socket, sys
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.bind("\\0" + sys.argv[1])
    s.listen()
    print("ready", flush=True)
    sys.stdin.read()
    """

    python = System.find_executable("python3")
    opts = [:binary, line: 100, args: ["-c", script, name]]
    port = Port.open({:spawn_executable, python}, opts)
    assert_receive {^port, {:data, {:eol, "ready"}}}
    name
  end

  test "a socket and what is known of its process are closed, also by its owner's end" do
    alias Tmesh.Native
    name = listen()
    before = files()

    # Count only files of this test: files of earlier tests may still be closed meanwhile.
    here = fn -> files() |> MapSet.difference(before) |> MapSet.size() end

    in_process(fn ->
      {:ok, socket} = Native.worker_connect(name)
      # Processes that look at all regions of the machine may open more here for a moment.
      eventually(fn -> here.() == 2 end)
      # The socket is selected, so the emulator holds it.
      assert :eagain = Native.worker_recv(socket, 0)
      :ok = Native.worker_close(socket)
      eventually(fn -> here.() == 0 end)
      assert {:error, {:ebadf, _why}} = Native.worker_recv(socket, 0)

      {:ok, socket} = Native.worker_connect(name)
      assert :eagain = Native.worker_recv(socket, 0)
    end)

    eventually(fn -> here.() == 0 end)
  end

  test "a long message is copied before the socket is locked" do
    alias Tmesh.Native
    {:ok, socket} = Native.worker_connect(listen())
    :ok = Native.worker_close(socket)
    long = :binary.copy("x", 65_537)
    # The copy needs a descriptor. Only after it does the call look at the socket.
    send_long = fn -> Native.worker_send(socket, long) end
    assert {:error, {:emfile, _why}} = without_files(send_long)
    assert {:error, {:ebadf, _why}} = send_long.()
  end

  # Return the sockets and processes that are open here.
  defp files do
    for name <- File.ls!("/proc/self/fd"),
        {:ok, target} <- [File.read_link("/proc/self/fd/#{name}")],
        target =~ "socket:" or target =~ "pidfd",
        into: MapSet.new(),
        do: {name, target}
  end

  # Return the next message, without a long wait.
  defp next_message(socket) do
    case Tmesh.Native.worker_recv(socket, 0) do
      :eagain ->
        Process.sleep(1)
        next_message(socket)

      other ->
        other
    end
  end

  test "one worker has few unserved files in the VM, however many it sends" do
    alias Tmesh.Native
    name = "tmesh-test-" <> Base.encode16(:crypto.strong_rand_bytes(8))
    script = Path.expand("support/unanswered_worker.py", __DIR__)
    opts = [:binary, line: 300, args: [script, name, "40"]]
    port = Port.open({:spawn_executable, System.find_executable("python3")}, opts)
    assert_receive {^port, {:data, {:eol, kind}}}
    {:ok, socket} = Native.worker_connect(name)

    whys =
      for _n <- 1..40 do
        assert {:error, {:eproto, why}} = next_message(socket)
        why
      end

    # TMESH_FOREIGN_OF_PROCESS have come, and wait to be closed. Without FUSE none waits.
    {came, left} = Enum.split_while(whys, &(&1 =~ "no sealed memfd"))
    assert length(came) == if(kind == "FUSE", do: 8, else: 40)
    assert Enum.all?(left, &(&1 =~ "has no room"))
    # Once they are closed there is room again.
    eventually(fn ->
      true = Port.command(port, "\n")
      next_message(socket) == {:ok, "0123456789"}
    end)

    :ok = Native.worker_close(socket)
    true = Port.close(port)
  end

  if PythonPool.available?() do
    test "random kills: the VM, its tensors and its pool live on" do
      start_supervised!({Worker, PythonPool.options(name: Soak, size: 2)})
      wanted = if System.get_env("TMESH_TEST_LENGTH") == "full", do: 100, else: 5
      ref = ZeroCopy.from_binary!(:binary.copy(<<1>>, 100_000), [100_000], :uint8)
      files = open_files()
      kills = :counters.new(1, [])

      log =
        capture_log(fn ->
          killer = spawn_link(fn -> kill_workers(kills) end)
          enough? = fn good -> good >= wanted and :counters.get(kills, 1) >= wanted end
          callers = for n <- 1..4, do: Task.async(fn -> soak(ref, n, enough?, 0) end)
          Task.await_many(callers, :infinity)
          Process.unlink(killer)
          Process.exit(killer, :kill)
        end)

      assert log =~ "exit status 137"
      assert ZeroCopy.to_binary!(ref) == :binary.copy(<<1>>, 100_000)
      eventually(fn -> match?({:ok, 1}, Worker.execute("operations.echo", [1], pool: Soak)) end)

      # Everything in transit when a worker was killed has been released.
      eventually(fn ->
        Enum.each(Process.list(), &:erlang.garbage_collect/1)
        Tmesh.Native.sweep()
        open_files() <= files
      end)
    end
  else
    @tag skip: PythonPool.why_not()
    test "random kills: the VM, its tensors and its pool live on"
  end

  # Make every kind of call, each of which works or gives an error, until enough have worked and enough workers were
  # killed.
  defp soak(ref, n, enough?, good) do
    if not enough?.(good) do
      opts = [pool: Soak]

      result =
        case rem(n, 5) do
          0 -> Worker.execute("operations.multiply", [ref, 2], opts)
          1 -> Worker.execute("operations.echo", [:binary.copy("x", 1_100_000)], opts)
          2 -> stream(opts)
          3 -> Worker.execute("operations.shared", [50_000], opts)
          4 -> Worker.execute("operations.describe", [ref], opts)
        end

      case result do
        {:ok, %TensorRef{} = tensor} ->
          assert :binary.first(ZeroCopy.to_binary!(tensor)) in [2, 5]
          ZeroCopy.release!(tensor)
          soak(ref, n + 1, enough?, good + 1)

        {:ok, _value} ->
          soak(ref, n + 1, enough?, good + 1)

        {:error, %Error{type: type}} ->
          assert type in [:worker_down, :timeout]
          soak(ref, n + 1, enough?, good)
      end
    end
  end

  defp stream(opts) do
    {:ok, "operations.count" |> Worker.stream([20, 100], opts) |> Enum.each(&ZeroCopy.release!/1)}
  rescue
    error in Error -> {:error, error}
  end

  defp kill_workers(kills) do
    Process.sleep(:rand.uniform(150))

    with {:ok, pid} <- Worker.execute("operations.pid", [], pool: Soak) do
      System.cmd("kill", ["-KILL", "#{pid}"], stderr_to_stdout: true)
      :counters.add(kills, 1, 1)
    end

    kill_workers(kills)
  end
end
