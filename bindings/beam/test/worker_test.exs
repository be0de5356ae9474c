# SPDX-License-Identifier: MIT
defmodule Tmesh.WorkerTest do
  use Tmesh.Case, backend: :any

  alias Tmesh.{Arrow, Telemetry, Worker}
  alias Tmesh.ZeroCopy.AutoDetect

  unless Tmesh.PythonPool.available?() do
    @moduletag skip: Tmesh.PythonPool.why_not()
  end

  setup_all do
    if Tmesh.PythonPool.available?(), do: start_supervised!({Worker, Tmesh.PythonPool.options()})
    :ok
  end

  defp floats(values), do: for(x <- values, into: <<>>, do: <<x * 1.0::float-32-native>>)
  defp to_floats(binary), do: for(<<x::float-32-native <- binary>>, do: x)

  describe "arguments" do
    test "a ref is an array over the same memory, read-only" do
      ref = ZeroCopy.from_binary!(floats(1..6), [2, 3], :float32)
      copied = stat(:bytes_copied)

      assert {:ok, ["ndarray", "float32", [2, 3], false, 21.0]} =
               Worker.execute("operations.describe", [ref])

      assert stat(:bytes_copied) == copied
    end

    test "one that comes back is the same memory" do
      ref = ZeroCopy.from_binary!(floats(1..6), [2, 3], :float32)
      assert {:ok, %TensorRef{} = back} = Worker.execute("operations.echo", [ref])
      assert {:ok, %{id: id, sealed: true}} = ZeroCopy.info(back)
      assert {:ok, %{id: ^id}} = ZeroCopy.info(ref)
      assert ZeroCopy.to_binary!(back, copy: false) == floats(1..6)
    end

    test "positional, by keyword, and both" do
      ref = ZeroCopy.from_binary!(floats([1, 2]), [2], :float32)

      for payload <- [
            [ref, 3],
            %{"array" => ref, "scalar" => 3},
            %{array: ref, scalar: 3},
            %{"args" => [ref], "kwargs" => %{"scalar" => 3}},
            [ref, scalar: 3],
            [array: ref, scalar: 3]
          ] do
        assert {:ok, %TensorRef{} = result} = Worker.execute("operations.multiply", payload)
        assert result |> ZeroCopy.to_binary!() |> to_floats() == [3.0, 6.0]
      end
    end

    test "keywords twice, or before others, are none" do
      for payload <- [[1, a: 1, a: 2], [{:a, 1}, 2]] do
        assert {:error, %Error{type: :invalid}} = Worker.execute("operations.echo", payload)
      end
    end

    test "values come back as they went" do
      value = [nil, true, false, 0, -1, 0x7FFF_FFFF_FFFF_FFFF, -0x8000_0000_0000_0000, 0.1, 1.0e300]
      value = value ++ [-5.0e-324, "", "é", <<255, 0>>, [], %{}, %{"a" => [%{"b" => "c"}]}]
      value = value ++ [:nan, :infinity, :neg_infinity]
      assert {:ok, ^value} = Worker.execute("operations.echo", [value])
      assert {:ok, ["x", %{"k" => "v"}]} = Worker.execute("operations.echo", [[:x, %{k: :v}]])
    end

    test "Snakepit's map" do
      ref = ZeroCopy.from_binary!("abc", [3], :uint8)

      for inner <- [ref, TensorRef.to_map!(ref), ref.token || TensorRef.to_json(ref) |> elem(1)] do
        map = %{
          "__snakepit_zero_copy__" => true,
          "kind" => "dlpack",
          "ref" => inner,
          "copy" => false
        }

        assert {:ok, ["ndarray", "uint8", [3], false, 294.0]} =
                 Worker.execute("operations.describe", %{"value" => map})
      end

      # Used until here: its text holds nothing.
      :ok = ZeroCopy.release(ref)
      assert {:ok, [%TensorRef{}, %TensorRef{}] = both} = Worker.execute("operations.snakepit", [4])
      for back <- both, do: assert(ZeroCopy.to_binary!(back, copy: false) == <<0, 1, 2, 3>>)
    end

    test "what cannot be sent is refused, and nothing is left behind" do
      live = stat(:regions_live)
      large = :binary.copy("a", 2_000_000)
      deep = Enum.reduce(1..60, [], fn _n, list -> [list] end)
      dead = ZeroCopy.from_binary!("abc", [3], :uint8)
      :ok = ZeroCopy.release(dead)

      for bad <- [
            {1, 2},
            self(),
            make_ref(),
            fn -> 1 end,
            <<1::3>>,
            1..2,
            [1 | 2],
            %{1 => 2},
            %{<<255>> => 1},
            %{"a" => 1, a: 2},
            %{"__tmesh__" => "tensor"},
            0x8000_0000_0000_0000,
            deep,
            ~D[2020-01-01]
          ] do
        assert {:error, %Error{type: :invalid}} = Worker.execute("operations.echo", [large, bad])
      end

      assert {:error, %Error{type: :closed}} = Worker.execute("operations.echo", [large, dead])
      assert stat(:regions_live) == live
    end

    test "who waits looks at none of the messages that it had before" do
      {answer, looked_at} = with_backlog(fn -> Worker.execute("operations.echo", [1]) end)
      assert answer == {:ok, 1}
      assert looked_at < 100_000

      {answer, looked_at} = with_backlog(fn -> Worker.execute("operations.no_such", []) end)
      assert {:error, %Error{}} = answer
      assert looked_at < 100_000
    end

    test "wrong calls" do
      for {operation, payload, opts} <- [
            {"", [], []},
            {:echo, [], []},
            {<<255>>, [], []},
            {String.duplicate("x", 256), [], []},
            {"operations.echo", "x", []},
            {"operations.echo", 1..2, []},
            {"operations.echo", [1], [timeout: 0]},
            {"operations.echo", [1], [timeout: 1.5]},
            {"operations.echo", [1], [timeout: 0x1_0000_0000]},
            {"operations.echo", [1], [grace_ms: -1]},
            {"operations.echo", [1], [pool: "x"]},
            {"operations.echo", [1], [other: 1]},
            {"operations.echo", [1], :none}
          ] do
        assert {:error, %Error{type: :invalid}} = Worker.execute(operation, payload, opts)
      end

      assert {:error, %Error{type: :not_started}} =
               Worker.execute("operations.echo", [1], pool: NoSuchPool)
    end
  end

  # A generated wrapper, after the example in AutoDetect's documentation.
  defmodule Generated do
    alias Tmesh.ZeroCopy.AutoDetect

    def describe(value) do
      with {:ok, result} <-
             AutoDetect.with_shared(%{"value" => value}, fn arguments ->
               call("operations.describe", arguments)
             end),
           do: result
    end

    # A carrier of plain maps that knows nothing of tensors: here, the worker.
    defp call(operation, arguments), do: Tmesh.Worker.execute(operation, arguments)
  end

  test "generated wrappers" do
    live = stat(:regions_live)
    assert {:ok, ["int", "5"]} = Generated.describe(5)
    large = :binary.copy("a", 1_000_001)
    assert {:ok, ["ndarray", "uint8", [1_000_001], false, _sum]} = Generated.describe(large)
    assert stat(:regions_live) == live
    # The call is the ref's last use: the ref must live until the call is over.
    ref = ZeroCopy.from_binary!(floats([1, 2]), [2], :float32)
    assert {:ok, ["ndarray", "float32", [2], false, 3.0]} = Generated.describe(ref)
    assert {:error, %Error{type: :invalid}} = Generated.describe([large | 1])
    dead = ZeroCopy.allocate!([1], :uint8)
    :ok = ZeroCopy.release(dead)
    assert {:error, %Error{type: :closed}} = Generated.describe([large, dead])

    assert_raise RuntimeError, fn ->
      AutoDetect.with_shared(large, fn _arguments -> raise "it failed" end)
    end

    eventually(fn -> stat(:regions_live) <= live end)
  end

  describe "results" do
    test "are released by the worker, whether or not a caller took them" do
      # Two workers, each of which holds 256 results at most.
      for _n <- 1..600 do
        assert {:ok, ref} = Worker.execute("operations.shared", [1])
        :ok = ZeroCopy.release(ref)
      end

      for _n <- 1..600 do
        {:ok, call} = Worker.start("operations.shared", [1])
        :ok = Worker.cancel(call)
      end

      # Neither taken nor cancelled: its caller dies.
      for _n <- 1..600 do
        in_process(fn ->
          {:ok, _call} = Worker.start("operations.shared", [1])
          assert_receive {_reply, {:result, _value, _hold, _copied}}
        end)
      end

      assert {:ok, _ref} = Worker.execute("operations.shared", [1])
      assert [2, 3] = "operations.count" |> Worker.stream([600]) |> Enum.slice(2, 2)
    end

    test "errors" do
      assert {:error, %Error{type: :operation, message: "because", details: details}} =
               Worker.execute("operations.fail", ["because"])

      assert details.exception == "LookupError" and details.traceback =~ "in fail"

      assert {:error, %Error{type: :not_allowed}} = Worker.execute("os.system", ["ls"])
      assert {:error, %Error{type: :not_allowed}} = Worker.execute("operations.os.system", ["ls"])
      assert {:error, %Error{type: :invalid}} = Worker.execute("operations.unsendable", [])
      assert {:error, %Error{type: :invalid}} = Worker.execute("operations.count", [1])

      assert {:error, %Error{type: :limit_exceeded}} =
               Worker.execute("operations.text", [17_000_000])

      gone = %TensorRef{
        ZeroCopy.from_binary!("abc", [3], :uint8)
        | id: "0000000000000001",
          token: "tm1m-" <> String.duplicate("0", 32) <> "-" <> String.duplicate("0", 32),
          handle: nil
      }

      assert {:error, %Error{type: type}} = Worker.execute("operations.echo", [gone])
      assert type in [:not_found, :unsupported]
      assert {:ok, 1} = Worker.execute("operations.echo", [1])
    end

    test "a message that is too long" do
      text = String.duplicate("x", 900_000)
      assert {:ok, ^text} = Worker.execute("operations.echo", [text])

      live = stat(:regions_live)
      large = :binary.copy("x", 2_000_000)

      assert {:error, %Error{type: :limit_exceeded}} =
               Worker.execute("operations.echo", [large | List.duplicate(text, 20)])

      assert stat(:regions_live) == live
      assert {:ok, 1} = Worker.execute("operations.echo", [1])
    end
  end

  test "Nx tensors: above the threshold by shared memory, below it in the message" do
    nx = %{__struct__: Nx.Tensor, shape: {2}, type: {:f, 32}}
    assert {:error, %Error{type: :unsupported}} = Worker.execute("operations.echo", [nx])
    Code.require_file("support/nx.exs", __DIR__)
    copied = stat(:bytes_copied)
    small = apply(Nx, :from_binary, [floats([1, 2]), {:f, 32}])

    assert {:ok, ["ndarray", "float32", [2], true, 3.0]} =
             Worker.execute("operations.describe", [small])

    assert stat(:bytes_copied) == copied
    large = apply(Nx, :reshape, [apply(Nx, :from_binary, [floats(1..4), {:f, 32}]), {2, 2}])
    Application.put_env(:tmesh, :zero_copy, threshold_bytes: 15)

    assert {:ok, ["ndarray", "float32", [2, 2], false, 10.0]} =
             Worker.execute("operations.describe", [large])

    assert stat(:bytes_copied) == copied + 16

    assert {:ok, {:ok, ["ndarray", "float32", [2, 2], false, 10.0]}} =
             AutoDetect.with_shared([large], &Worker.execute("operations.describe", &1))
  after
    Application.delete_env(:tmesh, :zero_copy)

    for module <- [Nx, Nx.Tensor, Nx.BinaryBackend] do
      :code.delete(module)
      :code.purge(module)
    end

    Code.unrequire_files([Path.expand("support/nx.exs", __DIR__)])
  end

  unless match?(
           {_output, 0},
           System.cmd("sh", ["-c", "#{Tmesh.PythonPool.arrow()} -c 'import tmesh.arrow' 2>&1"])
         ) do
    @tag skip: "no Python with tmesh and pyarrow: make python-arrow"
  end

  test "Arrow tables go both ways" do
    options = Tmesh.PythonPool.options(name: ArrowPool, python: Tmesh.PythonPool.arrow(), size: 1)
    start_supervised!({Worker, options})
    opts = [pool: ArrowPool]
    {:ok, table} = Arrow.from_columns(%{"name" => ["Ann", "Bo", nil], "age" => [41, nil, 7]})
    copied = stat(:bytes_copied)

    assert {:ok, [3, ["age", "name"], [41, nil, 7]]} =
             Worker.execute("operations.names", %{table: table}, opts)

    assert {:ok, %Arrow.TableRef{num_rows: 3} = older} =
             Worker.execute("operations.older", [table], opts)

    assert stat(:bytes_copied) == copied
    assert {:ok, [42, nil, 8]} = Arrow.to_list(older, "age")
    assert {:ok, ["Ann", "Bo", nil]} = Arrow.to_list(older, "name")

    map = %{"__snakepit_zero_copy__" => true, "kind" => "arrow", "ref" => older.ref}
    assert {:ok, [3, _names, [42, nil, 8]]} = Worker.execute("operations.names", [map], opts)

    assert {:ok, %Arrow.TableRef{} = back} =
             Worker.execute("operations.snakepit_table", [map], opts)

    assert {:ok, [42, nil, 8]} = Arrow.to_list(back, "age")

    Application.put_env(:tmesh, :zero_copy, enabled: false)
    on_exit(fn -> Application.delete_env(:tmesh, :zero_copy) end)

    assert {:ok, %Arrow.TableRef{ref: nil} = copy} =
             Worker.execute("operations.older", [table], opts)

    assert {:ok, [42, nil, 8]} = Arrow.to_list(copy, "age")
    assert {:error, %Error{type: :closed}} = Worker.execute("operations.names", [copy], opts)

    Application.put_env(:tmesh, :zero_copy, arrow_enabled: false)
    assert {:error, %Error{type: :unsupported}} = Worker.execute("operations.names", [table], opts)
  end

  describe "streams" do
    test "come item by item" do
      sums =
        "operations.count"
        |> Worker.stream([50, 4])
        |> Enum.map(fn ref -> ref |> ZeroCopy.to_binary!() |> :binary.first() end)

      assert sums == Enum.to_list(0..49)
      assert ["only"] = Enum.to_list(Worker.stream("operations.echo", ["only"]))
    end

    test "end early" do
      assert [0, 1, 2] = "operations.count" |> Worker.stream([1_000_000]) |> Enum.take(3)
      assert {:ok, 1} = Worker.execute("operations.echo", [1])
    end

    test "raise" do
      assert_raise Error, fn -> Enum.to_list(Worker.stream("operations.fail", ["x"])) end
      assert_raise Error, fn -> Enum.to_list(Worker.stream("operations.count", [{1}])) end

      assert %Error{type: :worker_down} =
               catch_error(Enum.to_list(Worker.stream("operations.count_and_die", [3])))

      assert %Error{type: :timeout} =
               catch_error(
                 Enum.to_list(Worker.stream("operations.until_cancelled", [], timeout: 100))
               )
    end

    test "are over for the worker, too, where an item is none" do
      for _n <- 1..3 do
        assert %Error{type: :protocol} =
                 catch_error(Enum.to_list(Worker.stream("operations.malformed", [])))
      end

      assert {:ok, 1} = Worker.execute("operations.echo", [1])
    end
  end

  describe "calls" do
    test "run at once" do
      # As soon as both workers are up, after the effects of other tests.
      eventually(fn ->
        calls = for _n <- 1..2, do: Worker.start("operations.nap", [0.2])
        [{:ok, a}, {:ok, b}] = for {:ok, call} <- calls, do: Worker.await(call)
        a != b
      end)

      results =
        1..200
        |> Task.async_stream(&Worker.execute("operations.echo", [&1]), max_concurrency: 20)
        |> Enum.map(fn {:ok, {:ok, n}} -> n end)

      assert results == Enum.to_list(1..200)
    end

    test "time out, and the worker goes on when the operation heeds that" do
      assert {:error, %Error{type: :timeout}} =
               Worker.execute("operations.until_cancelled", [], timeout: 100)

      assert {:ok, 1} = Worker.execute("operations.echo", [1])
    end

    test "are killed when they do not" do
      assert {:error, %Error{type: :timeout}} =
               Worker.execute("operations.nap", [600], timeout: 100, grace_ms: 100)

      for _n <- 1..4, do: assert({:ok, 1} = Worker.execute("operations.echo", [1]))
    end

    test "end with their process when nothing else ends them" do
      options = Tmesh.PythonPool.options(name: Stuck, size: 1)
      start_supervised!({Worker, options})
      {:ok, pid} = Worker.execute("operations.pid", [], pool: Stuck)
      opts = [pool: Stuck, timeout: 100, grace_ms: 100]
      assert {:error, %Error{type: :timeout}} = Worker.execute("operations.stuck", [], opts)
      eventually(fn -> not File.exists?("/proc/#{pid}") end)
      assert {:ok, 1} = Worker.execute("operations.echo", [1], pool: Stuck)
    end

    test "end with their pool, and so does what they run" do
      {:ok, pool} = Worker.start_pool(Tmesh.PythonPool.options(name: Stuck, size: 1))
      {:ok, pid} = Worker.execute("operations.pid", [], pool: Stuck)
      {:ok, call} = Worker.start("operations.stuck", [], pool: Stuck)

      assert {:error, %Error{type: :invalid, message: "Stuck is running already: name another"}} =
               Worker.start_pool(Tmesh.PythonPool.options(name: Stuck, size: 1))

      eventually(fn -> is_map_key(:sys.get_state(Stuck, :infinity).running, call.reply) end)
      # It may be stuck by then. If not, it ends as well.
      Process.sleep(500)
      :ok = Worker.stop_pool(pool)
      assert {:error, %Error{type: :worker_down}} = Worker.await(call)
      eventually(fn -> not File.exists?("/proc/#{pid}") end)
    end

    test "are awaited once, by who started them" do
      opts = [timeout: :infinity]
      {:ok, call} = Worker.start("operations.echo", [1], opts)
      other = Task.async(fn -> Worker.await(call) end)
      assert {:error, %Error{type: :invalid}} = Task.await(other, :infinity)
      assert {:ok, 1} = Worker.await(call)
      assert {:error, %Error{type: :invalid}} = Worker.await(call)
      {:ok, call} = Worker.start("operations.echo", [1], opts)
      :ok = Worker.cancel(call)
      assert {:error, %Error{type: :invalid}} = Worker.await(call)
    end

    test "are cancelled by their caller" do
      {:ok, call} = Worker.start("operations.until_cancelled", [])
      assert :ok = Worker.cancel(call)
      {:ok, call} = Worker.start("operations.shared", [100_000])
      assert :ok = Worker.cancel(call)
      assert {:ok, 1} = Worker.execute("operations.echo", [1])
      refute_received _any
    end

    test "are let go when they are cancelled with their answer here" do
      # More results than one worker holds.
      for _n <- 1..600 do
        {:ok, call} = Worker.start("operations.shared", [1])
        eventually_here(1)
        :ok = Worker.cancel(call)
        eventually_here(0)
      end

      assert {:ok, ref} = Worker.execute("operations.shared", [1])
      :ok = ZeroCopy.release(ref)
      # And the pool has forgotten them.
      eventually(fn -> :sys.get_state(Worker, :infinity).running == %{} end)
    end

    defp eventually_here(messages) do
      unless Process.info(self(), :message_queue_len) == {:message_queue_len, messages} do
        Process.sleep(1)
        eventually_here(messages)
      end
    end

    test "are cancelled by the end of their caller" do
      pid = spawn(fn -> Worker.execute("operations.until_cancelled", [], timeout: :infinity) end)
      Process.sleep(100)
      Process.exit(pid, :kill)
      for _n <- 1..4, do: assert({:ok, 1} = Worker.execute("operations.echo", [1]))
    end

    # Start a call that occupies a pool's one worker, until the returned function is called.
    defp busy(pool) do
      path =
        Path.join(System.tmp_dir!(), "tmesh-#{System.pid()}-#{System.unique_integer([:positive])}")

      on_exit(fn -> File.rm(path) end)
      {:ok, call} = Worker.start("operations.until_file", [path], pool: pool)
      # The pool learns of earlier calls a moment later than their callers.
      eventually(fn -> is_map_key(:sys.get_state(pool, :infinity).running, call.reply) end)
      {call, fn -> File.write!(path, "") end}
    end

    test "are not begun when no caller waits for them any more" do
      start_supervised!({Worker, Tmesh.PythonPool.options(name: Noting, size: 1)})
      {busy, let_go} = busy(Noting)
      in_process(fn -> {:ok, _call} = Worker.start("operations.note", ["dead"], pool: Noting) end)
      {:ok, call} = Worker.start("operations.note", ["cancelled"], pool: Noting)
      :ok = Worker.cancel(call)
      let_go.()
      assert {:ok, _pid} = Worker.await(busy)
      assert {:ok, ["wanted"]} = Worker.execute("operations.note", ["wanted"], pool: Noting)
    end

    test "come one at a time to a worker that ended while it was idle" do
      start_supervised!({Worker, Tmesh.PythonPool.options(name: Idle, size: 1)})

      test = self()
      up = fn _event, _values, %{pool: pool}, nil -> send(test, {:up, pool}) end

      for _n <- 1..2 do
        {:ok, pid} = Worker.execute("operations.pid", [], pool: Idle)
        :ok = Telemetry.attach("the next life", [[:tmesh, :worker, :up]], up, nil)
        {"", 0} = System.cmd("kill", ["-KILL", "#{pid}"])
        # The pool has learnt of its end by then. A look from time to time could miss that state.
        assert_receive {:up, Idle}
        :ok = Telemetry.detach("the next life")
        eventually(fn -> Map.values(:sys.get_state(Idle, :infinity).workers) == [:idle] end)
      end

      calls = for _n <- 1..3, do: Worker.start("operations.nap", [0.2], pool: Idle)

      assert [{:ok, pid}, {:ok, pid}, {:ok, pid}] =
               for({:ok, call} <- calls, do: Worker.await(call))
    end

    test "are not ended by clocks that were set for something else" do
      start_supervised!({Worker, Tmesh.PythonPool.options(name: Clocks, size: 1)})
      {:ok, pid} = Worker.execute("operations.pid", [], pool: Clocks)
      [keeper] = Map.keys(:sys.get_state(Clocks, :infinity).workers)
      {busy, let_go} = busy(Clocks)
      %{life: life, running: id} = :sys.get_state(keeper, :infinity)

      for late <- [
            {:start_timeout, life},
            {:start_timeout, make_ref()},
            {:grace_over, life, id - 1},
            {:grace_over, make_ref(), id}
          ],
          do: send(keeper, late)

      let_go.()
      assert {:ok, ^pid} = Worker.await(busy)
    end

    test "lose nothing when who keeps their worker ends" do
      start_supervised!({Worker, Tmesh.PythonPool.options(name: Kept, size: 1)})
      {:ok, pid} = Worker.execute("operations.pid", [], pool: Kept)
      {busy, _let_go} = busy(Kept)
      {:ok, next} = Worker.start("operations.pid", [], pool: Kept)
      [keeper] = Map.keys(:sys.get_state(Kept, :infinity).workers)
      Process.exit(keeper, :kill)
      assert {:error, %Error{type: :worker_down}} = Worker.await(busy)
      assert {:ok, other} = Worker.await(next)
      assert other != pid
      eventually(fn -> not File.exists?("/proc/#{pid}") end)

      # Nor if it was idle.
      [keeper] = Map.keys(:sys.get_state(Kept, :infinity).workers)
      Process.exit(keeper, :kill)
      eventually(fn -> keeper not in Map.keys(:sys.get_state(Kept, :infinity).workers) end)
      assert {:ok, _pid} = Worker.execute("operations.pid", [], pool: Kept)
    end

    test "go on when the registry of held tensors crashes" do
      {:ok, pool} = Worker.start_pool(Tmesh.PythonPool.options(name: Outlives, size: 1))
      {:ok, pid} = Worker.execute("operations.pid", [], pool: Outlives)
      crashed = Process.whereis(Tmesh.Registry)
      Process.exit(crashed, :kill)
      eventually(fn -> Process.whereis(Tmesh.Registry) not in [nil, crashed] end)
      assert {:ok, ^pid} = Worker.execute("operations.pid", [], pool: Outlives)
      :ok = Worker.stop_pool(pool)
    end

    test "wait for a worker, and no more of them than may" do
      options = Tmesh.PythonPool.options(name: Short, size: 1, max_waiting: 1)
      start_supervised!({Worker, options})
      {busy, let_go} = busy(Short)
      {:ok, waiting} = Worker.start("operations.echo", [1], pool: Short)

      assert {:error, %Error{type: :limit_exceeded, message: message}} =
               Worker.start("operations.echo", [2], pool: Short)

      assert message =~ "wait for a worker"
      let_go.()
      assert {:ok, _pid} = Worker.await(busy)
      assert {:ok, 1} = Worker.await(waiting)
    end

    test "leave nothing behind where their pool ends before it has them" do
      live = stat(:regions_live)
      pool = spawn(fn -> receive do: (_call -> exit(:ended)) end)
      Process.register(pool, :ending_pool)
      payload = [:binary.copy("x", 1_000_001)]

      assert {:error, %Error{type: :not_started}} =
               Worker.start("operations.describe", payload, pool: :ending_pool)

      assert stat(:regions_live) == live
      refute Enum.any?(Process.get_keys(), &match?({Worker, _reply}, &1))
      refute_received {:DOWN, _monitor, :process, ^pool, _reason}
    end

    test "are looked for busily where the pool's options say so" do
      start_supervised!({Worker, Tmesh.PythonPool.options(name: Busy, size: 1, spin_us: 100)})
      opts = [pool: Busy]
      ref = ZeroCopy.from_binary!(floats(1..4), [4], :float32)

      for n <- 1..300 do
        assert {:ok, [^n, %TensorRef{} = back]} =
                 Worker.execute("operations.echo", [[n, ref]], opts)

        ZeroCopy.release!(back)
      end

      :erlang.trace(:processes, true, [:call])
      :erlang.trace_pattern({Tmesh.Native, :worker_recv, 2}, true, [])
      assert {:ok, 1} = Worker.execute("operations.echo", [1], opts)
      assert_receive {:trace, _keeper, :call, {Tmesh.Native, :worker_recv, [_socket, 100]}}
      assert {:ok, 1} = Worker.execute("operations.echo", [1])
      refute_receive {:trace, _keeper, :call, {Tmesh.Native, :worker_recv, [_socket, 100]}}, 50
      :erlang.trace_pattern({Tmesh.Native, :worker_recv, 2}, false, [])
      :erlang.trace(:processes, false, [:call])

      # Answers that come before a look, and answers that take longer than any look.
      for _n <- 1..20 do
        items = Worker.stream("operations.count", [20], opts)
        assert Enum.to_list(items) == Enum.to_list(0..19)
      end

      assert {:ok, _pid} = Worker.execute("operations.nap", [0.05], opts)
      large = :binary.copy("z", 100_000)
      assert {:ok, ^large} = Worker.execute("operations.echo", [large], opts)

      assert {:error, %Error{type: :timeout}} =
               Worker.execute("operations.until_cancelled", [], [timeout: 50] ++ opts)

      assert {:error, %Error{type: :operation}} = Worker.execute("operations.fail", ["x"], opts)
      assert {:error, %Error{type: :worker_down}} = Worker.execute("operations.die", [], opts)
      assert {:ok, pid} = Worker.execute("operations.pid", [], opts)

      # An end is also noticed without a look.
      System.cmd("kill", ["-STOP", Integer.to_string(pid)])
      {:ok, call} = Worker.start("operations.echo", [1], opts)
      System.cmd("kill", ["-KILL", Integer.to_string(pid)])
      assert {:error, %Error{type: :worker_down}} = Worker.await(call)
      assert {:ok, 1} = Worker.execute("operations.echo", [1], opts)
    end

    test "tell how much of results they copied" do
      test = self()

      handler = fn _event, %{copied_bytes: bytes}, _metadata, nil ->
        send(test, {:copied, bytes})
      end

      :ok = Telemetry.attach("copied", [[:tmesh, :worker, :call, :stop]], handler, nil)
      sealed = ZeroCopy.from_binary!(floats([1, 2, 3]), [3], :float32)
      assert {:ok, %TensorRef{id: id}} = Worker.execute("operations.echo", [sealed])
      assert_receive {:copied, 0}
      assert id == sealed.id
      assert {:ok, %TensorRef{}} = Worker.execute("operations.multiply", [sealed, 2])
      assert_receive {:copied, 12}
      assert [_, _, _] = Enum.to_list(Worker.stream("operations.count", [3]))
      assert_receive {:copied, bytes} when bytes >= 0
      :ok = Telemetry.detach("copied")
    end

    test "put results into an arena if an option names one" do
      refs =
        for n <- 1..8 do
          ref = ZeroCopy.from_binary!(floats([n]), [1], :float32)
          Worker.execute!("operations.multiply", [ref, 2], arena: true)
        end

      # Each worker has an arena of its own.
      assert refs |> Enum.uniq_by(& &1.id) |> length() < 8
      refute Enum.any?(refs, &ZeroCopy.info!(&1).sealed)

      assert for(ref <- refs, do: to_floats(ZeroCopy.to_binary!(ref))) ==
               for(n <- 1..8, do: [2.0 * n])

      assert {:error, %Error{type: :invalid}} = Worker.execute("numpy.sum", [1], arena: 1)
    end

    test "tell telemetry" do
      test = self()
      events = [[:call, :start], [:call, :stop], [:up], [:down]]

      handler = fn event, measurements, metadata, :config ->
        send(test, {List.last(event), measurements, metadata})
      end

      :ok =
        Telemetry.attach(
          "worker test",
          for(e <- events, do: [:tmesh, :worker | e]),
          handler,
          :config
        )

      start_supervised!({Worker, Tmesh.PythonPool.options(name: Told, size: 1)})
      assert_receive {:up, %{duration: duration}, %{pool: Told, pid: pid}} when duration > 0
      assert {:ok, ^pid} = Worker.execute("operations.pid", [], pool: Told)
      call = %{pool: Told, operation: "operations.pid"}
      assert_receive {:start, %{system_time: _, payload_bytes: _}, ^call}
      stop = Map.put(call, :result, :ok)
      assert_receive {:stop, %{duration: duration}, ^stop} when duration > 0
      {:error, _error} = Worker.execute("operations.fail", ["x"], pool: Told)
      assert_receive {:stop, _measurements, %{pool: Told, result: :operation}}
      {:error, _error} = Worker.execute("operations.die", [], pool: Told)
      assert_receive {:stop, _measurements, %{result: :worker_down}}
      assert_receive {:down, %{calls: 1}, %{pool: Told, reason: "exit status 9"}}
      :ok = Telemetry.detach("worker test")
    end
  end
end
