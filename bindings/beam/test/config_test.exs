# SPDX-License-Identifier: MIT
defmodule Tmesh.ConfigTest do
  use Tmesh.Case, backend: :any

  import ExUnit.CaptureLog
  alias Tmesh.{PythonPool, Telemetry, Worker}
  alias Tmesh.Worker.Payload
  alias Tmesh.ZeroCopy.AutoDetect

  doctest Tmesh.ZeroCopy.AutoDetect
  doctest Tmesh.Telemetry

  # Set it while the application runs, for the rest of the test.
  defp set(config) do
    on_exit(fn -> Application.delete_env(:tmesh, :zero_copy) end)
    Application.put_env(:tmesh, :zero_copy, config)
  end

  describe "threshold_bytes" do
    test "is strict, and true to each type's bits" do
      set(threshold_bytes: 12)
      ref = ZeroCopy.allocate!([1], :uint8)

      for {term, wanted} <- [
            {:binary.copy("x", 12), false},
            {:binary.copy("x", 13), true},
            {ref, true},
            {[ref], false},
            {nil, false},
            {<<1::3>>, false},
            {nx({3}, {:f, 32}), false},
            {nx({4}, {:f, 32}), true},
            {nx({12}, {:u, 8}), false},
            {nx({13}, {:u, 8}), true},
            {nx({6}, {:bf, 16}), false},
            {nx({7}, {:bf, 16}), true},
            {nx({24}, {:u, 4}), false},
            {nx({25}, {:u, 4}), true},
            {nx({2, 0}, {:f, 64}), false},
            {nx({}, {:c, 128}), true},
            {%{__struct__: Nx.Tensor, shape: nil, type: {:f, 32}}, false}
          ] do
        assert AutoDetect.should_use_zero_copy?(term) == wanted, inspect(term)
      end

      set(threshold_bytes: 100)
      refute AutoDetect.should_use_zero_copy?(:binary.copy("x", 13))
    end
  end

  # The members of Nx's struct that tmesh reads. Nx itself is not available here.
  defp nx(shape, type), do: %{__struct__: Nx.Tensor, shape: shape, type: type}

  describe "enabled: false" do
    test "says no to everything" do
      set(enabled: false, threshold_bytes: 0)
      refute AutoDetect.should_use_zero_copy?("abc")
      refute AutoDetect.should_use_zero_copy?(ZeroCopy.allocate!([1], :uint8))
    end

    if PythonPool.available?() do
      test "falls back, loudly" do
        start_supervised!({Worker, PythonPool.options(name: Fallback, size: 1)})
        set(enabled: false, threshold_bytes: 100)
        test = self()

        :ok =
          Telemetry.attach(
            "fallback",
            [[:tmesh, :worker, :fallback]],
            fn _event, %{bytes: bytes}, %{operation: operation}, nil ->
              send(test, {:fallback, operation, bytes})
            end,
            nil
          )

        created = stat(:regions_created)

        log =
          capture_log(fn ->
            data = :binary.copy(<<255>>, 200)

            assert {:ok, ^data} = Worker.execute("operations.echo", [data], pool: Fallback)
          end)

        assert log =~ "200 bytes for operations.echo are copied"
        assert log =~ "200 bytes from operations.echo are copied"
        # In both directions.
        assert_received {:fallback, "operations.echo", 200}
        assert_received {:fallback, "operations.echo", 200}
        assert stat(:regions_created) == created

        # An array arrives as bytes, and becomes a tensor again.
        log =
          capture_log(fn ->
            assert {:ok, %{"sums" => %TensorRef{dtype: :int64, shape: [2]} = sums}} =
                     Worker.execute("operations.table", [2], pool: Fallback)

            assert ZeroCopy.to_binary!(sums) == <<0::64, 1::64-native>>
          end)

        # The bytes of two arrays with two elements each, and of a blob.
        assert log =~ "#{2 * 16 + 2048} bytes from operations.table are copied"
        assert_received {:fallback, "operations.table", 2080}

        log =
          capture_log(fn ->
            assert {:ok, 1} = Worker.execute("operations.echo", [1], pool: Fallback)

            assert [%TensorRef{}, %TensorRef{}] =
                     Enum.to_list(Worker.stream("operations.count", [2, 8], pool: Fallback))
          end)

        assert length(String.split(log, "8 bytes from operations.count")) == 3
        refute log =~ "echo"

        # Memory that is shared already stays shared.
        ref = ZeroCopy.from_binary!("abcd", [4], :uint8)

        assert {:ok, ["ndarray", "uint8", [4], false, 394.0]} =
                 Worker.execute("operations.describe", [ref], pool: Fallback)

        assert {:error, %Error{type: :limit_exceeded}} =
                 Worker.execute("operations.text", [17_000_000], pool: Fallback)

        :ok = Telemetry.detach("fallback")
      end
    else
      @tag skip: PythonPool.why_not()
      test "falls back, loudly"
    end
  end

  test "gpu_enabled: false refuses GPU tensors" do
    gpu = %TensorRef{
      ZeroCopy.from_binary!("abcd", [4], :uint8)
      | id: "0000000000000001",
        token: "tm1k-" <> String.duplicate("0", 32),
        device: {:cuda, 0},
        handle: nil
    }

    assert {:ok, %{json: json}} = Payload.encode([gpu])
    assert IO.iodata_to_binary(json) =~ ~s("device":"cuda:0")
    set(gpu_enabled: false)
    assert {:error, %Error{type: :unsupported, message: message}} = Payload.encode([gpu])
    assert message =~ "gpu_enabled"
  end

  describe "max_shared_memory_mb" do
    test "refuses what passes it, and takes nothing away" do
      ref = ZeroCopy.allocate!([3, 1_048_576], :uint8)
      set(max_shared_memory_mb: 2)

      for make <- [
            fn -> ZeroCopy.allocate([1], :uint8) end,
            fn -> ZeroCopy.from_binary("x", [1], :uint8) end,
            fn -> ZeroCopy.to_binary(ref) end
          ] do
        assert {:error, %Error{type: :limit_exceeded, message: message}} = make.()
        assert message =~ "max_shared_memory_mb" and not (message =~ "max_bytes")
      end

      set(max_shared_memory_mb: 4)
      assert {:ok, _binary} = ZeroCopy.to_binary(ref)
      more = ZeroCopy.allocate!([1_048_576], :uint8)
      assert {:error, %Error{type: :limit_exceeded}} = ZeroCopy.allocate([1], :uint8)
      :ok = ZeroCopy.release(more)
      assert {:ok, _ref} = ZeroCopy.allocate([1], :uint8)
      # Used until here, so it is no garbage.
      :ok = ZeroCopy.release(ref)
      set(max_shared_memory_mb: 0)
      assert {:ok, _ref} = ZeroCopy.allocate([8, 1_048_576], :uint8)
    end

    test "counts no garbage" do
      set(max_shared_memory_mb: 4)

      for n <- 1..40 do
        assert {:ok, _ref} = ZeroCopy.allocate([1_048_576], :uint8)
        assert {:ok, _ref} = ZeroCopy.from_binary(<<n>>, [1], :uint8)
      end
    end
  end

  test "cleanup_interval_ms drives the janitor" do
    test = self()
    sweep = fn _event, %{duration: duration}, _metadata, nil -> send(test, {:sweep, duration}) end
    set(cleanup_interval_ms: 10)
    # The janitor reads the new value at its next sweep.
    send(Tmesh.Janitor, :sweep)
    :ok = Telemetry.attach("sweeps", [[:tmesh, :janitor, :sweep]], sweep, nil)
    for _n <- 1..5, do: assert_receive({:sweep, duration} when duration > 0)

    log =
      capture_log(fn ->
        set(cleanup_interval_ms: :often)
        # The first sweep may have begun before. At its end the janitor reads the value.
        flush()
        for _n <- 1..2, do: assert_receive({:sweep, _duration})
      end)

    assert log =~ "cleanup_interval_ms"
    set(cleanup_interval_ms: 0)
    # It sleeps now, because the garbage of others has been swept.
    eventually(fn ->
      flush()
      not sweeps_within?(300)
    end)

    # Garbage still wakes it.
    in_process(fn -> is_struct(ZeroCopy.allocate!([1], :uint8)) end)
    assert_receive {:sweep, _duration}
    :ok = Telemetry.detach("sweeps")
    Application.delete_env(:tmesh, :zero_copy)
    send(Tmesh.Janitor, :sweep)
  end

  defp flush do
    if sweeps_within?(0), do: flush()
  end

  defp sweeps_within?(ms) do
    receive do
      {:sweep, _duration} -> true
    after
      ms -> false
    end
  end

  test "a call that needs a wrong value reports it" do
    for {key, value, call} <- [
          {:threshold_bytes, -1, fn -> Payload.encode(["x"]) end},
          {:threshold_bytes, "1", fn -> Payload.encode(["x"]) end},
          {:enabled, :maybe, fn -> Payload.encode(["x"]) end},
          {:enabled, :maybe, fn -> AutoDetect.with_shared(["x"], & &1) end},
          {:threshold_bytes, -1, fn -> AutoDetect.with_shared(["x"], & &1) end},
          {:max_shared_memory_mb, 1.5, fn -> ZeroCopy.allocate([1], :uint8) end},
          {:max_shared_memory_mb, nil, fn -> ZeroCopy.from_binary("x", [1], :uint8) end}
        ] do
      set([{key, value}])
      assert {:error, %Error{type: :invalid, message: message}} = call.()
      assert message =~ "#{key}" and message =~ inspect(value)
    end

    set(enabled: nil)
    assert_raise Error, fn -> AutoDetect.should_use_zero_copy?("x") end
  end

  test "a value that is no configuration is reported, and stops nothing" do
    janitor = Process.whereis(Tmesh.Janitor)

    for config <- [%{enabled: false}, :none, [1], [{:enabled, true} | :rest]] do
      set(config)
      assert {:error, %Error{type: :invalid, message: message}} = ZeroCopy.allocate([1], :uint8)
      assert message =~ "zero_copy"
      log = capture_log(fn -> :ok = GenServer.call(Tmesh.Janitor, :sweep, :infinity) end)
      assert log =~ "zero_copy"
    end

    assert Process.whereis(Tmesh.Janitor) == janitor
  end

  test "a handler that fails is detached, and disturbs no caller" do
    event = [:tmesh, :janitor, :sweep]
    janitor = Process.whereis(Tmesh.Janitor)

    for fail <- [fn -> raise "no" end, fn -> throw(:no) end, fn -> GenServer.call(:no_such, 1) end] do
      log =
        capture_log(fn ->
          # The janitor may sweep without a message at once.
          :ok = Telemetry.attach("bad", [event], fn _, _, _, _ -> fail.() end, nil)
          :ok = GenServer.call(Tmesh.Janitor, :sweep, :infinity)
        end)

      assert log =~ "detached"
      assert {:error, :not_found} = Telemetry.detach("bad")
    end

    assert Process.whereis(Tmesh.Janitor) == janitor
  end

  test "a handler is called also when :telemetry is loaded later, and that one's are" do
    event = [:tmesh, :gpu, :fallback]
    test = self()
    tell = fn _event, measurements, _metadata, who -> send(test, {who, measurements}) end
    :ok = Telemetry.attach("early", [event], tell, :early)

    # The functions of :telemetry that tmesh calls, for one handler.
    code =
      quote do
        def attach_many(_id, [event], handler, who),
          do: :persistent_term.put(__MODULE__, {event, handler, who})

        def detach(_id), do: if(:persistent_term.erase(__MODULE__), do: :ok)

        def execute(event, measurements, metadata) do
          {^event, handler, who} = :persistent_term.get(__MODULE__)
          handler.(event, measurements, metadata, who)
        end
      end

    {:module, telemetry, _code, _last} =
      Module.create(:telemetry, code, Macro.Env.location(__ENV__))

    try do
      :ok = Telemetry.attach("late", [event], tell, :late)
      :ok = Telemetry.execute(event, %{bytes: 1}, %{})
      assert_received {:early, %{bytes: 1}}
      assert_received {:late, %{bytes: 1}}
      assert :ok = Telemetry.detach("early")
      assert :ok = Telemetry.detach("late")
    after
      :code.purge(telemetry)
      :code.delete(telemetry)
    end
  end

  test "a name that means nothing is refused when the application starts" do
    on_exit(&patient/0)

    for {key, value, words} <- [
          {:zero_copy, [thresold_bytes: 5], "did you mean :threshold_bytes?"},
          {:zero_copy, [timeout: 5], "config :tmesh, :zero_copy has no key :timeout"},
          {:zero_cpy, [], "config :tmesh has no key :zero_cpy; did you mean :zero_copy?"}
        ] do
      _stopped = Application.stop(:tmesh)
      before = Application.get_env(:tmesh, key)
      Application.put_env(:tmesh, key, value)
      started = ExUnit.CaptureLog.with_log(fn -> Application.start(:tmesh) end) |> elem(0)

      if before,
        do: Application.put_env(:tmesh, key, before),
        else: Application.delete_env(:tmesh, key)

      assert {:error, {%Error{type: :invalid, message: why}, _callback}} = started
      assert why =~ words
    end

    {:ok, _started} = Application.ensure_all_started(:tmesh)
  end

  test "without its library, as in an escript, the application says why it does not start" do
    folder = Path.join(System.tmp_dir!(), "tmesh-#{System.pid()}-escript")
    on_exit(fn -> File.rm_rf!(folder) end)
    File.mkdir_p!(Path.join(folder, "tmesh"))
    File.cp_r!(Application.app_dir(:tmesh, "ebin"), Path.join(folder, "tmesh/ebin"))

    program = """
    {:error, {:tmesh, {why, _callback}}} = Application.ensure_all_started(:tmesh)
    IO.write(Exception.message(why))
    """

    args = ["-pa", Path.join(folder, "tmesh/ebin"), "-e", program]
    assert {said, 0} = System.cmd("elixir", args, stderr_to_stdout: true)
    assert said =~ "an escript carries no libraries, so run it as a release"
  end

  test "a stranger's message does no harm" do
    for name <- [Tmesh.Janitor, Tmesh.Registry] do
      pid = Process.whereis(name)

      for message <- [:x, {:DOWN, make_ref(), :process, self(), :x}, {make_ref(), :late}],
          do: send(pid, message)

      _state = :sys.get_state(name, :infinity)
      assert Process.whereis(name) == pid
    end
  end
end
