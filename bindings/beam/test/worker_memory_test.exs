# SPDX-License-Identifier: MIT
defmodule Tmesh.WorkerMemoryTest do
  # Memory that workers and this VM have of each other. worker_test.exs has their messages.
  use Tmesh.Case

  alias Tmesh.{Telemetry, Worker}

  unless Tmesh.PythonPool.available?() do
    @moduletag skip: Tmesh.PythonPool.why_not()
  end

  setup_all do
    if Tmesh.PythonPool.available?(), do: start_supervised!({Worker, Tmesh.PythonPool.options()})
    :ok
  end

  defp floats(values), do: for(x <- values, into: <<>>, do: <<x * 1.0::float-32-native>>)
  defp to_floats(binary), do: for(<<x::float-32-native <- binary>>, do: x)

  test "a writable ref is changed in place" do
    ref = ZeroCopy.from_binary!(floats([1, 2]), [2], :float32, seal: false)
    assert {:ok, nil} = Worker.execute("operations.multiply", [Worker.writable(ref), 10])
    assert ref |> ZeroCopy.to_binary!() |> to_floats() == [10.0, 20.0]
    # The worker has released it.
    assert :ok = ZeroCopy.seal(ref)

    assert {:error, %Error{type: :sealed}} =
             Worker.execute("operations.multiply", [Worker.writable(ref), 10])
  end

  test "large binaries go by shared memory, small ones as text or bytes" do
    large = :binary.copy("ab", 600_000)
    copied = stat(:bytes_copied)
    live = stat(:regions_live)

    assert {:ok, ["memoryview", 1_200_000, ?a, ?b]} = Worker.execute("operations.describe", [large])

    assert stat(:bytes_copied) == copied + 1_200_000
    assert stat(:regions_live) == live

    assert {:ok, ["str", "é\n\"\\\0"]} = Worker.execute("operations.describe", ["é\n\"\\\0"])
    assert {:ok, ["bytes", "b'\\xff'"]} = Worker.execute("operations.describe", [<<255>>])
  end

  test "arrays anywhere in a result become refs, which outlive the worker" do
    assert {:ok, result} = Worker.execute("operations.table", [3])
    assert %{"sums" => %TensorRef{dtype: :int64, shape: [3]} = sums} = result
    assert %{"names" => ["a", %{"deep" => %TensorRef{dtype: :float64} = deep}]} = result
    assert result["blob"] == :binary.copy(for(b <- 0..255, into: <<>>, do: <<b>>), 8)
    assert {result["nan"], result["inf"]} == {:nan, [:infinity, :neg_infinity]}

    {:ok, pid} = Worker.execute("operations.pid", [])
    test = self()
    down = fn _event, %{calls: 0}, %{reason: reason}, nil -> send(test, {:down, reason}) end
    :ok = Telemetry.attach("a worker's end", [[:tmesh, :worker, :down]], down, nil)
    {_out, 0} = System.cmd("kill", ["-KILL", "#{pid}"])
    assert_receive {:down, "exit status 137"}
    :ok = Telemetry.detach("a worker's end")

    assert ZeroCopy.to_binary!(sums, copy: false) == <<0::64, 1::64-native, 2::64-native>>
    assert byte_size(ZeroCopy.to_binary!(deep, copy: false)) == 16
    # This VM gives it a new token.
    {:ok, again} = sums |> TensorRef.to_map!() |> TensorRef.from_map()
    assert {:ok, _ref} = ZeroCopy.open(again)
    :ok = ZeroCopy.release(sums)
  end

  test "a tensor the operation made is not copied" do
    assert {:ok, %TensorRef{shape: [1000]} = ref} = Worker.execute("operations.shared", [1000])
    refute ZeroCopy.info!(ref).sealed
    assert ZeroCopy.to_binary!(ref) == :binary.copy(<<5>>, 1000)
  end

  test "large bytes are a binary over the worker's memory" do
    assert {:ok, text} = Worker.execute("operations.text", [100_000])
    assert text == String.duplicate("x", 100_000)
    Application.put_env(:tmesh, :zero_copy, threshold_bytes: 1000)
    on_exit(fn -> Application.delete_env(:tmesh, :zero_copy) end)
    copied = stat(:bytes_copied)
    assert {:ok, %{"blob" => blob}} = Worker.execute("operations.table", [1])
    assert byte_size(blob) == 2048 and binary_part(blob, 255, 2) == <<255, 0>>
    assert stat(:bytes_copied) == copied
  end

  test "calls hold what they were given while they wait" do
    naps = for _n <- 1..2, do: Worker.start("operations.nap", [0.3])
    {:ok, call} = start_with_new_ref()
    :erlang.garbage_collect()
    Tmesh.Native.sweep()
    assert {:ok, ["ndarray", "uint8", [4], false, 394.0]} = Worker.await(call)
    for {:ok, nap} <- naps, do: {:ok, _pid} = Worker.await(nap)
  end

  # No variable has the ref any more.
  defp start_with_new_ref do
    Worker.start("operations.describe", [ZeroCopy.from_binary!("abcd", [4], :uint8)])
  end

  test "calls lose their worker, and nothing else" do
    ref = ZeroCopy.from_binary!(floats(1..4), [4], :float32)
    large = :binary.copy("z", 2_000_000)
    assert {:error, %Error{type: :worker_down}} = Worker.execute("operations.die", [])
    {:ok, call} = Worker.start("operations.nap", [60])
    {:ok, other} = Worker.start("operations.echo", [[ref, large]])
    assert {:ok, [%TensorRef{} = back, ^large]} = Worker.await(other)
    assert ZeroCopy.to_binary!(back) == ZeroCopy.to_binary!(ref)
    :ok = Worker.cancel(call)
    assert ref |> ZeroCopy.to_binary!() |> to_floats() == [1.0, 2.0, 3.0, 4.0]
    assert {:ok, 1} = Worker.execute("operations.echo", [1])
  end
end
