# SPDX-License-Identifier: MIT
defmodule Tmesh.EngineTest do
  @moduledoc false
  # With the real ONNX Runtime, in a process of its own.
  use Tmesh.Case

  alias Tmesh.Engine
  alias Tmesh.Engine.Tensor

  @models System.get_env("TMESH_ENGINE_MODELS", "/nonexistent")
  unless System.get_env("TMESH_ONNXRUNTIME", "") != "" and File.dir?(@models) do
    @moduletag skip: "only with ONNX Runtime and the models that tests/engine/models.py makes"
  end

  setup do
    name = "beam-#{System.pid()}-#{System.unique_integer([:positive])}"
    # A busy machine's delay must not end an engine or client.
    start_supervised!({Engine.Server, name: name, models: [@models], limit: 900, patience: 62.5})
    %{name: name}
  end

  # Return the arguments of the engine's supervisor.
  defp given(engine) do
    parent = File.read!("/proc/#{Engine.info(engine).pid}/status")
    [_all, supervisor] = Regex.run(~r/PPid:\s+(\d+)/, parent)
    String.split(File.read!("/proc/#{supervisor}/cmdline"), "\0")
  end

  defp model(file), do: Path.join(@models, file)
  defp rows(value), do: for(_i <- 1..8, into: <<>>, do: <<value::float-32-native>>)
  defp tensor(value), do: ZeroCopy.from_binary!(rows(value), [2, 4], :float32)

  defp kill_process(engine) do
    # It may be dead from the last time, if no call has reached the new one yet.
    System.cmd("kill", ["-KILL", "#{Engine.info(engine).pid}"], stderr_to_stdout: true)
  end

  test "a graph runs in another process, on the tensors' own memory", %{name: name} do
    engine = Engine.connect!(name, timeout: 30_000)
    assert %{backend: "onnx", version: version, pid: pid} = Engine.info(engine)
    assert version =~ "." and Integer.to_string(pid) != System.pid()
    assert inspect(engine) =~ name

    graph = Engine.graph!(engine, model("dynamic.onnx"))
    assert [{"a", :float32, ["rows", 4]}, {"b", :float32, ["rows", 4]}] = graph.inputs
    assert Enum.any?(graph.outputs, &match?({"sum", :float32, _shape}, &1))

    out = ZeroCopy.allocate!([2, 4], :float32)
    copied = stat(:bytes_copied)
    assert Engine.dispatch(graph, %{"a" => tensor(1.5), "b" => tensor(2.0)}, %{"sum" => out}) == :ok
    # Only the two inputs were copied.
    assert stat(:bytes_copied) - copied == 64
    assert ZeroCopy.to_binary!(out) == rows(3.5)

    binding =
      Engine.bind!(graph, %{"a" => out, "b" => tensor(1.0)}, %{"sum" => out},
        in_place: %{"sum" => "a"}
      )

    for _step <- 1..10, do: assert(Engine.dispatch(binding) == :ok)
    assert ZeroCopy.to_binary!(out) == rows(13.5)
  end

  test "weights are used where they lie, also by the process that comes after", %{name: name} do
    engine = Engine.connect!(name)

    <<_magic::binary-8, length::16-little, header::binary-size(length), weight::binary>> =
      File.read!(model("weights_w.npy"))

    [_all, rows, columns] = Regex.run(~r/\((\d+), (\d+)\)/, header)
    shape = [String.to_integer(rows), String.to_integer(columns)]
    sealed = ZeroCopy.from_binary!(weight, shape, :float32)
    graph = Engine.graph!(engine, model("weights.onnx"), weights: %{"w" => sealed})
    [{input, :float32, dims}] = graph.inputs
    [{output, :float32, out_dims}] = graph.outputs
    fixed = fn dims -> Enum.map(dims, &if(is_integer(&1), do: &1, else: 1)) end
    x = ZeroCopy.allocate!(fixed.(dims), :float32)
    out = ZeroCopy.allocate!(fixed.(out_dims), :float32)
    binding = Engine.bind!(graph, %{input => x}, %{output => out})
    assert Engine.dispatch!(binding) == :ok
    first = ZeroCopy.to_binary!(out)
    kill_process(engine)
    assert Engine.dispatch!(binding) == :ok
    assert ZeroCopy.to_binary!(out) == first
    id = TensorRef.to_map!(sealed)["id"]
    maps = File.read!("/proc/#{Engine.info(engine).pid}/maps")
    assert maps |> String.split("\n") |> Enum.any?(&(&1 =~ id and &1 =~ "r--s"))

    unsealed = ZeroCopy.allocate!(shape, :float32)

    assert {:error, %Error{type: :invalid, message: message}} =
             Engine.graph(engine, model("weights.onnx"), weights: %{"w" => unsealed})

    assert message =~ "not sealed"
  end

  test "a killed engine costs at most the call that it was running", %{name: name} do
    engine = Engine.connect!(name)
    graph = Engine.graph!(engine, model("dynamic.onnx"))
    out = ZeroCopy.allocate!([2, 4], :float32)
    binding = Engine.bind!(graph, %{"a" => tensor(1.0), "b" => tensor(1.0)}, %{"sum" => out})

    for _round <- 1..5 do
      pid = Engine.info(engine).pid
      kill_process(engine)
      assert Engine.dispatch(binding) == :ok
      assert Engine.info(engine).pid != pid
    end

    # While it works, each result is right, or the call gives :gone.
    killer =
      Task.async(fn ->
        for _round <- 1..5,
            do:
              (
                Process.sleep(40)
                kill_process(engine)
              )
      end)

    for _step <- 1..1000 do
      case Engine.dispatch(binding) do
        :ok -> assert ZeroCopy.to_binary!(out) == rows(2.0)
        {:error, %Error{type: :gone}} -> :ok
      end
    end

    Task.await(killer, :infinity)
    assert Engine.dispatch(binding) == :ok
  end

  test "device tensors: reads and writes by their flags, until they are destroyed", %{name: name} do
    engine = Engine.connect!(name)
    graph = Engine.graph!(engine, model("dynamic.onnx"))
    all = [readable: true, writable: true, exportable: true]
    x = Tensor.create!(engine, {2, 4}, {:f, 32}, all)
    assert %{shape: [2, 4], dtype: :float32, byte_size: 32, device: :cpu} = x
    assert %{backend: "onnx", rights: :write} = x
    assert {x.readable, x.writable, x.exportable} == {true, true, true}
    assert Tensor.read!(x) == rows(0.0)
    assert Tensor.write!(x, rows(3.0)) == :ok
    assert Tensor.read!(x) == rows(3.0)
    exported = Tensor.export!(x)
    assert ZeroCopy.to_binary!(exported) == rows(3.0)

    # In any mixture with tensors, with and without bindings.
    y = Tensor.create!(engine, [2, 4], :float32, readable: true)
    assert Engine.dispatch(graph, %{"a" => x, "b" => tensor(1.0)}, %{"sum" => y}) == :ok
    assert Tensor.read!(y) == rows(4.0)
    copied = stat(:bytes_copied)
    binding = Engine.bind!(graph, %{"a" => y, "b" => x}, %{"sum" => y}, in_place: %{"sum" => "a"})
    assert Engine.dispatch(binding) == :ok
    assert Engine.rebind(binding, %{"b" => y}) |> refused() == :invalid
    assert stat(:bytes_copied) == copied
    assert Tensor.read!(y) == rows(7.0)

    # A view of a tensor, for reading alone.
    sealed = tensor(2.0)
    view = Tensor.wrap!(engine, sealed, readable: true)
    assert {view.rights, view.readable, view.writable} == {:read, true, false}
    assert Tensor.read!(view) == rows(2.0)
    assert Engine.dispatch(graph, %{"a" => x, "b" => x}, %{"sum" => view}) |> refused() == :access
    assert Tensor.wrap(engine, sealed, rights: :write) |> refused() == :sealed
    assert Tensor.wrap(engine, sealed, rights: :all) |> refused() == :invalid
    assert Tensor.wrap(engine, %TensorRef{sealed | handle: nil}) |> refused() == :closed
    writable = ZeroCopy.allocate!([2, 4], :float32)
    output = Tensor.wrap!(engine, writable, rights: :write)
    assert Engine.dispatch(graph, %{"a" => x, "b" => x}, %{"sum" => output}) == :ok
    assert ZeroCopy.to_binary!(writable) == rows(6.0)

    # Operations that no flag allows.
    hidden = Tensor.create!(engine, [4], :float64)
    assert Tensor.read(hidden) |> refused() == :access
    assert Tensor.write(hidden, <<0::256>>) |> refused() == :access
    assert Tensor.export(hidden) |> refused() == :access
    assert Tensor.write(x, "short") |> refused() == :invalid
    assert Tensor.write(x, :none) |> refused() == :invalid
    assert Tensor.create(engine, [-1], :float32) |> refused() == :invalid
    assert Tensor.create(engine, [1], :none) |> refused() == :invalid
    assert Tensor.create(engine, [1], :float32, readable: 1) |> refused() == :invalid
    assert Tensor.create(engine, [1], :float32, wrong: true) |> refused() == :invalid
    later = Tensor.create!(engine, [2, 4], :float32, all)
    assert ZeroCopy.seal!(Tensor.export!(later))
    assert Tensor.write(later, rows(1.0)) |> refused() == :sealed
    other = Engine.connect!(name)
    foreign = Tensor.create!(other, [2, 4], :float32)

    assert Engine.dispatch(graph, %{"a" => foreign, "b" => x}, %{"sum" => y}) |> refused() ==
             :invalid

    assert Engine.dispatch(graph, %{"a" => "x", "b" => x}, %{"sum" => y}) |> refused() == :invalid

    assert Engine.graph(engine, model("weights.onnx"), weights: %{"w" => x}) |> refused() ==
             :invalid

    # After destroy/1 every operation gives its own error, also for a binding that has it.
    assert Tensor.destroy(x) == :ok and Tensor.destroy(x) == :ok
    assert Tensor.read(x) |> refused() == :closed
    assert Tensor.write(x, rows(1.0)) |> refused() == :closed
    assert Tensor.export(x) |> refused() == :closed
    assert Engine.dispatch(binding) |> refused() == :closed
    assert Engine.dispatch(graph, %{"a" => x, "b" => y}, %{"sum" => y}) |> refused() == :closed
    assert ZeroCopy.to_binary!(exported) == rows(3.0)
    assert_raise Error, ~r/destroyed/, fn -> Tensor.read!(x) end
  end

  test "outputs for which memory is made", %{name: name} do
    engine = Engine.connect!(name)
    graph = Engine.graph!(engine, model("dynamic.onnx"))
    inputs = %{"a" => tensor(1.0), "b" => tensor(2.0)}
    assert {:ok, results} = Engine.dispatch(graph, inputs, %{"sum" => :host})
    assert results == %{"sum" => rows(3.0)}
    less = ZeroCopy.allocate!([2, 4], :float32)

    assert %{"sum" => sum} =
             results = Engine.dispatch!(graph, inputs, %{"sum" => :engine, "less" => less})

    assert map_size(results) == 1
    assert %{shape: [2, 4], dtype: :float32, readable: true, writable: true} = sum
    assert Tensor.read!(sum) == rows(3.0)
    # The shape may also follow from a device tensor.
    assert %{"sum" => more} = Engine.dispatch!(graph, %{inputs | "a" => sum}, %{"sum" => :host})
    assert more == rows(5.0)

    assert Engine.bind(graph, inputs, %{"sum" => :host}) |> refused() == :invalid
    assert Engine.dispatch(graph, inputs, %{"none" => :host}) |> refused() == :not_found
    assert Engine.dispatch(graph, inputs, %{"sum" => :elsewhere}) |> refused() == :invalid
    assert Engine.dispatch(graph, %{"b" => less}, %{"sum" => :host}) |> refused() == :invalid
    assert Engine.dispatch(graph, %{}, %{"sum" => :engine}) |> refused() == :unsupported
  end

  defp refused({:error, %Error{type: type}}), do: type

  test "what is wrong is refused, in words", %{name: name} do
    engine = Engine.connect!(name)
    graph = Engine.graph!(engine, model("dynamic.onnx"))
    {a, out} = {tensor(1.0), ZeroCopy.allocate!([2, 4], :float32)}
    long = ZeroCopy.allocate!([3, 4], :float32)

    for {inputs, outputs, opts, type, words} <- [
          {%{"a" => a}, %{"sum" => out}, [], :invalid, "missing"},
          {%{"a" => a, "c" => a}, %{"sum" => out}, [], :not_found, "no input"},
          {%{"a" => a, "b" => a}, %{"no" => out}, [], :not_found, "no output"},
          {%{"a" => a, "b" => a}, %{"sum" => long}, [], :invalid, "rows"},
          {%{"a" => out, "b" => a}, %{"sum" => out}, [], :invalid, "overlaps"},
          {%{"a" => a, "b" => a}, %{"sum" => a}, [], :sealed, "sealed"},
          {%{"a" => a, "b" => a}, %{"sum" => out}, [in_place: %{"x" => "a"}], :not_found, "x"},
          {%{"a" => a, "b" => a}, %{"sum" => out}, [wrong: 1], :invalid, "wrong"}
        ] do
      assert {:error, %Error{type: ^type, message: message}} =
               Engine.dispatch(graph, inputs, outputs, opts)

      assert message =~ words
    end

    assert {:error, %Error{type: :not_found, message: message}} = Engine.connect("nobody")
    assert message =~ "no engine is served"
    assert {:error, %Error{type: :invalid}} = Engine.connect(name, timeout: 0)
    assert {:error, %Error{type: :invalid}} = Engine.connect("No Name")
    assert {:error, %Error{type: :not_found}} = Engine.graph(engine, model("none.onnx"))
    assert Engine.dispatch(graph, %{"a" => a, "b" => a}, %{"sum" => out}) == :ok
  end

  test "the server ends with its supervisor, and says why it does not start", %{name: name} do
    engine = Engine.connect!(name)
    graph = Engine.graph!(engine, model("dynamic.onnx"))
    a = tensor(1.0)
    Process.flag(:trap_exit, true)
    assert {:error, %Error{message: message}} = Engine.Server.start_link(name: name)
    assert message =~ "already"
    assert {:error, %Error{type: :invalid}} = Engine.Server.start_link(engine: "onnx")
    assert {:error, %Error{type: :invalid}} = Engine.Server.start_link(wrong: 1)
    assert {:error, %Error{type: :invalid}} = Engine.Server.start_link(name: "x", patience: 0)
    assert {:error, %Error{message: message}} = Engine.Server.start_link(name: "x", engine: "none")
    assert message =~ "tmesh-engine-none.so"
    # It was started with the given options.
    given = given(engine)
    assert "--limit=900" in given and "--patience=62.5" in given and "--unconfined" not in given
    start_supervised!({Engine.Server, name: name <> "-free", models: [@models], confined: false})
    assert "--unconfined" in given(Engine.connect!(name <> "-free"))
    stop_supervised!(name)
    out = ZeroCopy.allocate!([2, 4], :float32)

    eventually(fn ->
      match?(
        {:error, %Error{type: :gone}},
        Engine.dispatch(graph, %{"a" => a, "b" => a}, %{"sum" => out})
      )
    end)
  end

  defp long(name) do
    engine = Engine.connect!(name)
    trips = ZeroCopy.from_binary!(<<1_099_511_627_776::64-native>>, [1], :int64)
    graph = Engine.graph!(engine, model("long.onnx"))
    out = ZeroCopy.allocate!([2, 4], :float32)
    binding = Engine.bind!(graph, %{"trips" => trips, "x" => tensor(0.0)}, %{"y" => out})
    {engine, binding}
  end

  defp works?(name) do
    out = ZeroCopy.allocate!([2, 4], :float32)
    graph = name |> Engine.connect!() |> Engine.graph!(model("dynamic.onnx"))
    :ok = Engine.dispatch!(graph, %{"a" => tensor(1.0), "b" => tensor(2.0)}, %{"sum" => out})
    ZeroCopy.to_binary!(out) == rows(3.0)
  end

  test "a call is called off from another process", %{name: name} do
    {engine, binding} = long(name)
    pid = Engine.info(engine).pid
    stop = Engine.cancellable!()
    waits = Task.async(fn -> Engine.dispatch(binding, cancellable: stop) end)
    Process.sleep(50)
    assert Engine.cancel(stop) == :ok
    assert {:error, %Error{type: :cancelled}} = Task.await(waits, 60_000)
    assert {:error, %Error{type: :cancelled}} = Engine.dispatch(binding, cancellable: stop)
    assert {:error, %Error{type: :invalid}} = Engine.dispatch(binding, cancellable: :stop)
    assert works?(name)
    assert Engine.info(engine).pid == pid
  end

  # Run dispatches that end only when they are called off, however long the engine takes to begin one.
  defp running(tasks) do
    Process.sleep(300)
    assert Enum.all?(tasks, &Process.alive?(&1.pid))
    tasks
  end

  defp sum_inputs, do: %{"a" => tensor(1.0), "b" => tensor(1.0)}
  defp sum_outputs, do: %{"sum" => ZeroCopy.allocate!([2, 4], :float32)}

  test "calls that wait for an engine keep nothing else of the VM waiting", %{name: name} do
    {engine, binding} = long(name)
    graph = Engine.graph!(engine, model("dynamic.onnx"))
    stop = Engine.cancellable!()
    many = 1..(:erlang.system_info(:dirty_io_schedulers) + 2)
    dispatch = fn -> Engine.dispatch(binding, cancellable: stop) end
    dispatches = running(for _task <- many, do: Task.async(dispatch))
    bind = fn -> Engine.bind(graph, sum_inputs(), sum_outputs()) end
    waiting = running(dispatches ++ for(_task <- many, do: Task.async(bind)))

    tensor = tensor(1.0)
    json = TensorRef.to_json!(tensor)
    open = fn -> ZeroCopy.open!(TensorRef.from_json!(json)) end
    opens = for _open <- 1..20, do: Task.async(open)
    for opened <- Task.await_many(opens, 60_000), do: assert(opened.shape == tensor.shape)
    assert ZeroCopy.to_binary!(tensor) == rows(1.0)

    assert Enum.all?(waiting, &Process.alive?(&1.pid))
    assert Engine.cancel(stop) == :ok

    for result <- Task.await_many(dispatches, 60_000),
        do: assert({:error, %Error{type: :cancelled}} = result)

    for result <- Task.await_many(waiting -- dispatches, 60_000),
        do: assert({:ok, %Engine.Binding{}} = result)
  end

  test "the janitor waits for no engine that is to let a binding go", %{name: name} do
    {engine, binding} = long(name)
    graph = Engine.graph!(engine, model("dynamic.onnx"))
    stop = Engine.cancellable!()
    me = self()

    {holder, monitor} =
      spawn_monitor(fn ->
        held = Engine.bind!(graph, sum_inputs(), sum_outputs())
        send(me, :bound)
        receive do: (:go -> held)
      end)

    assert_receive :bound, 60_000
    dispatch = fn -> Engine.dispatch(binding, cancellable: stop) end
    [task] = running([Task.async(dispatch)])
    send(holder, :go)
    assert_receive {:DOWN, ^monitor, :process, ^holder, :normal}, 60_000
    assert GenServer.call(Tmesh.Janitor, :sweep, 60_000) == :ok
    assert Process.alive?(task.pid)
    assert Engine.cancel(stop) == :ok
    assert {:error, %Error{type: :cancelled}} = Task.await(task, 60_000)
  end

  test "a process that dies in a dispatch calls off no other dispatch", %{name: name} do
    stop = Engine.cancellable!()
    {_engine, first} = long(name)
    {_other, second} = long(name)
    {killed, monitor} = spawn_monitor(fn -> Engine.dispatch(first, cancellable: stop) end)
    tasks = running([Task.async(fn -> Engine.dispatch(second, cancellable: stop) end)])
    Process.exit(killed, :kill)
    assert_receive {:DOWN, ^monitor, :process, ^killed, :killed}, 60_000
    [task] = running(tasks)
    assert Engine.cancel(stop) == :ok
    assert {:error, %Error{type: :cancelled}} = Task.await(task, 60_000)
  end

  test "a process that is killed takes its call along", %{name: name} do
    {engine, binding} = long(name)
    pid = Engine.info(engine).pid
    caller = spawn(fn -> Engine.dispatch(binding) end)
    Process.sleep(200)
    Process.exit(caller, :kill)

    # It waits for its turn after that call, which nothing else would end within the engine's 900 seconds.
    assert works?(name)
    assert Engine.info(engine).pid == pid
  end
end
