# SPDX-License-Identifier: MIT
defmodule Tmesh.GPUTest do
  # With the stand-in for the CUDA driver (tests/cuda), which shows nothing about a GPU. Its descriptors are memfds,
  # and the module takes those for no GPU's.
  use Tmesh.Case, backend: :any

  import Bitwise
  import ExUnit.CaptureLog
  alias Tmesh.{Config, DLPack, PythonPool, Telemetry, Worker}
  alias Tmesh.DLPack.GPUTensorRef
  alias Tmesh.ZeroCopy.AutoDetect

  test "stand-in: a tensor on each GPU, and its end" do
    for n <- [0, 1] do
      ref = ZeroCopy.allocate!([2, 3], :float32, device: {:cuda, n})
      assert %GPUTensorRef{shape: [2, 3], dtype: :float32, strides: [3, 1], byte_size: 24} = ref
      assert ref.device == {:cuda, n}
      refute inspect(ref) =~ "Reference"

      assert {:ok, %{kind: :own, device: {:cuda, ^n}, resident: {:cuda, ^n}} = info} =
               DLPack.info(ref)

      assert info.writable and not info.taken and info.pointer > 0

      assert {:ok, map} = DLPack.export_gpu_tensor(ref)

      assert %{"v" => 1, "shape" => [2, 3], "dtype" => "float32", "cuda" => %{"kind" => "vmm"}} =
               map

      assert map["device"] == "cuda:#{n}"

      assert {:ok, same} = DLPack.import_gpu_tensor(map)
      assert {:ok, %{pointer: pointer}} = DLPack.info(same)
      assert pointer == info.pointer
      assert :ok = ZeroCopy.release(ref)
      assert {:ok, _info} = DLPack.info(same)
      assert :ok = ZeroCopy.release(same)
      assert :ok = ZeroCopy.release(same)
      assert {:error, %Error{type: :closed}} = DLPack.info(same)
      assert {:error, %Error{type: :closed}} = DLPack.export_gpu_tensor(same)
      assert {:error, %Error{type: :closed}} = ZeroCopy.release(%GPUTensorRef{same | handle: nil})
      assert {:error, %Error{type: :not_found}} = DLPack.import_gpu_tensor(map)
    end
  end

  test "stand-in: bytes and tables of a worker's are on no GPU" do
    ref = ZeroCopy.allocate!([8], :uint8, device: {:cuda, 0})
    {:ok, map} = DLPack.export_gpu_tensor(ref)

    for kind <- ["bytes", "table"] do
      placeholder = %{"__tmesh__" => kind, "ref" => map}
      assert {:error, %Error{type: :protocol}} = Worker.Payload.decode([placeholder])
    end

    :ok = ZeroCopy.release(ref)
    assert {:error, %Error{type: :not_found}} = DLPack.import_gpu_tensor(map)
  end

  test "stand-in: memory without a holder is used again" do
    pointer = fn ->
      {:ok, info} = [4096] |> ZeroCopy.allocate!(:uint8, device: {:cuda, 0}) |> DLPack.info()
      info.pointer
    end

    first = in_process(pointer)

    eventually(fn ->
      Tmesh.Native.sweep()
      in_process(pointer) == first
    end)
  end

  test "stand-in: a tensor is kept for a process" do
    owner = spawn(fn -> Process.sleep(:infinity) end)

    pointer =
      in_process(fn ->
        ref = ZeroCopy.allocate!([4096], :uint8, device: {:cuda, 0})
        :ok = ZeroCopy.tie(ref, owner)
        {:ok, info} = DLPack.info(ref)
        info.pointer
      end)

    taken? = fn ->
      ref = ZeroCopy.allocate!([4096], :uint8, device: {:cuda, 0})
      {:ok, info} = DLPack.info(ref)
      ZeroCopy.release!(ref)
      info.pointer != pointer
    end

    Tmesh.Native.sweep()
    assert taken?.()
    Process.exit(owner, :kill)

    eventually(fn ->
      Tmesh.Native.sweep()
      not taken?.()
    end)
  end

  test "stand-in: allocations that fail" do
    for {opts, type} <- [
          {[device: {:cuda, 7}], :no_device},
          {[device: {:cuda, 0x1_0000_0000}], :no_device},
          {[device: {:cuda, -1}], :invalid},
          {[device: {:cuda, :all}], :invalid},
          {[device: {:cuda, 0}, alone: 1], :invalid},
          {[device: {:cuda, 0}, or_host: nil], :invalid},
          {[device: {:cuda, 0}, huge: true], :invalid},
          {[alone: true], :invalid}
        ] do
      assert {:error, %Error{type: ^type}} = ZeroCopy.allocate([1], :uint8, opts)
    end

    for {shape, dtype} <- [{[-1], :uint8}, {[1], :float31}, {:x, :uint8}, {[1 <<< 62, 9], :int8}] do
      assert {:error, %Error{type: :invalid}} =
               ZeroCopy.allocate(shape, dtype, device: {:cuda, 0}, or_host: true)
    end

    assert {:error, %Error{type: :no_memory, message: message}} =
             ZeroCopy.allocate([1 <<< 40], :uint8, device: {:cuda, 0})

    assert message =~ "CUDA_ERROR_OUT_OF_MEMORY"
  end

  test "stand-in: host memory instead, on request and told" do
    parent = self()
    event = [:tmesh, :gpu, :fallback]
    :ok = Telemetry.attach("gpu", [event], &send(parent, {&1, &2, &3, &4}), nil)
    big = ZeroCopy.allocate!([250 <<< 20], :uint8, device: {:cuda, 1})

    log =
      capture_log(fn ->
        assert {:ok, %TensorRef{device: :cpu, shape: [20, 1_048_576]} = ref} =
                 ZeroCopy.allocate([20, 1 <<< 20], :uint8, device: {:cuda, 1}, or_host: true)

        ZeroCopy.release!(ref)
      end)

    ZeroCopy.release!(big)
    :ok = Telemetry.detach("gpu")
    assert log =~ "20971520 bytes are in host memory and not on GPU 1"
    assert log =~ "CUDA_ERROR_OUT_OF_MEMORY"
    assert_received {^event, %{bytes: 20_971_520}, %{device: {:cuda, 1}}, nil}
  end

  test "stand-in: untrusted refs" do
    ref = ZeroCopy.allocate!([4], :uint8, device: {:cuda, 0})
    {:ok, map} = DLPack.export_gpu_tensor(ref)

    for {bad, type} <- [
          {%{}, :protocol},
          {"{", :protocol},
          {"", :protocol},
          {5, :protocol},
          {nil, :protocol},
          {%{"ipc_handle" => Base.encode64("x"), "shape" => [4]}, :protocol},
          {%{map | "cuda" => %{"kind" => "fabric"}}, :protocol},
          {%{map | "cuda" => %{}}, :protocol},
          {%{map | "cuda" => "vmm"}, :protocol},
          {%{map | "shape" => [1 <<< 40], "byte_size" => 1 <<< 40}, :protocol},
          {%{map | "offset" => 1 <<< 40}, :protocol},
          {%{map | "device" => "cuda:x"}, :protocol},
          {%{map | "token" => String.replace(map["token"], ~r/.$/, "0") <> "0"}, :protocol},
          {%{map | "token" => dead_token()}, :not_found}
        ] do
      assert {:error, %Error{type: ^type}} = DLPack.import_gpu_tensor(bad), inspect(bad)
    end

    for opts <- [:x, [colour: 1], [writable: 1], [device: :cpu], [device: 0]] do
      assert {:error, %Error{type: :invalid}} = DLPack.import_gpu_tensor(map, opts), inspect(opts)
    end

    assert {:error, %Error{type: :no_device}} = DLPack.import_gpu_tensor(map, device: {:cuda, 9})
    ZeroCopy.release!(ref)
  end

  test "stand-in: host memory for kernels" do
    host = ZeroCopy.allocate!([4], :uint8)
    {:ok, ref} = host |> TensorRef.to_map!() |> DLPack.import_gpu_tensor(device: {:cuda, 1})
    assert {:ok, %{kind: :host, device: {:cuda, 1}, resident: :cpu}} = DLPack.info(ref)
    assert ref.device == {:cuda, 1}
    assert {:ok, %{"device" => "cpu"}} = DLPack.export_gpu_tensor(ref)
    ZeroCopy.release!(ref)

    # The pointer is that of the part's first element.
    part = %{TensorRef.to_map!(host) | "shape" => [2], "byte_size" => 2, "offset" => 1}
    {:ok, ref} = DLPack.import_gpu_tensor(part)
    assert {:ok, %{pointer: pointer}} = DLPack.info(ref)
    assert rem(pointer, 4096) == 1
    ZeroCopy.release!(ref)
    ZeroCopy.release!(host)
  end

  test "stand-in: switched off" do
    ref = ZeroCopy.allocate!([4], :uint8, device: {:cuda, 0})
    {:ok, map} = DLPack.export_gpu_tensor(ref)
    on_exit(fn -> Application.delete_env(:tmesh, :zero_copy) end)
    Application.put_env(:tmesh, :zero_copy, gpu_enabled: false)
    refute Config.get!(:gpu_enabled)

    for call <- [
          fn -> ZeroCopy.allocate([4], :uint8, device: {:cuda, 0}, or_host: true) end,
          fn -> DLPack.import_gpu_tensor(map) end,
          fn -> DLPack.export_gpu_tensor(ref) end,
          fn -> Worker.Payload.encode([ref]) end,
          fn -> Worker.Payload.decode(%{"__tmesh__" => "tensor", "ref" => map}) end
        ] do
      assert {:error, %Error{type: :unsupported, message: message}} = call.()
      assert message =~ "gpu_enabled"
    end

    assert :ok = ZeroCopy.release(ref)
  end

  test "stand-in: as Snakepit's map" do
    ref = ZeroCopy.allocate!([4], :int16, device: {:cuda, 1})
    assert AutoDetect.should_use_zero_copy?(ref)

    assert {:ok, [1, %{"device" => "cuda:1", "bytes" => 8, "kind" => "dlpack", "ref" => inner}]} =
             AutoDetect.with_shared([1, ref], & &1)

    assert {:ok, %GPUTensorRef{device: {:cuda, 1}}} = DLPack.import_gpu_tensor(inner)
    ZeroCopy.release!(ref)
    assert {:error, %Error{type: :closed}} = AutoDetect.with_shared([ref], & &1)
  end

  # In an emulator of its own, because this one has loaded both already.
  test "stand-in: without libtmesh-cuda, and without a driver" do
    code = ~S"""
    {:ok, _apps} = Application.ensure_all_started(:tmesh)
    try = fn ->
      {:error, error} = Tmesh.ZeroCopy.allocate([1], :uint8, device: {:cuda, 0})
      IO.puts("#{error.type}: #{error.message}")
    end
    System.put_env("TMESH_CUDA_LIBRARY", "no-such-library.so")
    try.()
    System.put_env("TMESH_CUDA_LIBRARY", "libc.so.6")
    try.()
    System.put_env("TMESH_CUDA_LIBRARY", hd(System.argv()))
    try.()
    """

    library = System.get_env("LD_LIBRARY_PATH") |> String.split(":") |> List.last()
    ebin = :tmesh |> :code.lib_dir() |> Path.join("ebin")
    # The libraries of libtmesh-cuda are beside it.
    args = [
      "--erl",
      "-logger level warning",
      "-pa",
      ebin,
      "-e",
      code,
      Path.join(library, "libtmesh-cuda.so.0")
    ]

    {output, 0} = System.cmd("elixir", args, env: [{"LD_LIBRARY_PATH", library}])
    assert [without, wrong, no_driver] = String.split(output, "\n", trim: true)
    assert without =~ "unsupported: GPU memory needs libtmesh-cuda: no-such-library.so"
    assert wrong =~ "unsupported: GPU memory needs libtmesh-cuda: libc.so.6 has no tmesh_cuda_"
    assert no_driver =~ "no_device: there is no CUDA driver"
  end

  test "stand-in: memory of a kind that only a newer library knows" do
    code = ~S"""
    {:ok, _apps} = Application.ensure_all_started(:tmesh)
    {:ok, ref} = Tmesh.ZeroCopy.allocate([1], :uint8, device: {:cuda, 0})
    {:ok, info} = Tmesh.DLPack.info(ref)
    IO.puts("#{inspect(info.kind)} on #{inspect(info.device)}")
    """

    library = "LD_LIBRARY_PATH" |> System.get_env() |> String.split(":") |> hd()
    ebin = :tmesh |> :code.lib_dir() |> Path.join("ebin")
    later = Path.join(library, "later/libtmesh-cuda.so.0")
    args = ["--erl", "-logger level warning", "-pa", ebin, "-e", code]
    {output, 0} = System.cmd("elixir", args, env: [{"TMESH_CUDA_LIBRARY", later}])
    assert output == ":unknown on {:cuda, 0}\n"
  end

  if PythonPool.available?() do
    describe "stand-in: with workers," do
      setup do
        for name <- [GPUs, Others] do
          {:ok, pool} = Worker.start_pool(PythonPool.options(allow: ["gpu"], size: 1, name: name))
          on_exit(fn -> Worker.stop_pool(pool) end)
        end

        :ok
      end

      test "memory from here" do
        ref = ZeroCopy.allocate!([3, 4], :int16, device: {:cuda, 1})
        assert {:ok, nil} = call("gpu.fill", [Worker.writable(ref), 5])

        assert {:ok, ["Array", "cuda:1", "int16", [3, 4], false, "imported", 5]} =
                 call("gpu.describe", [ref])

        assert {:error, %Error{type: :operation, message: message}} = call("gpu.fill", [ref, 6])
        assert message =~ "may not"
        {:ok, map} = DLPack.export_gpu_tensor(ref)
        shared = %{"__snakepit_zero_copy__" => true, "kind" => "dlpack", "ref" => map}
        assert {:ok, ["Array" | _rest]} = call("gpu.describe", [shared])
        assert {:ok, ["Array" | _rest]} = call("gpu.describe", [%{shared | "ref" => ref}])
      end

      test "memory from there, which is sent on and outlives its maker" do
        assert {:ok, %{"a" => [ref], "pid" => maker}} = call("gpu.make", [[2, 3], "float32", 1, 7])
        assert %GPUTensorRef{shape: [2, 3], dtype: :float32, device: {:cuda, 1}} = ref
        assert {:ok, %{kind: :imported, writable: false}} = DLPack.info(ref)

        assert {:ok, ["Array", "cuda:1", "float32", [2, 3], false, "imported", 7]} =
                 call("gpu.describe", [ref], Others)

        assert {:ok, nil} = call("gpu.hold", [ref], Others)

        capture_log(fn ->
          {_output, 0} = System.cmd("kill", ["-KILL", "#{maker}"])
          eventually(fn -> not File.exists?("/proc/#{maker}") end)
        end)

        assert {:ok, %{taken: false}} = DLPack.info(ref)
        assert {:ok, %{"device" => "cuda:1"}} = DLPack.export_gpu_tensor(ref)
        # A process that first receives it after its maker's death does not need the maker, either.
        assert :ok = ZeroCopy.release(ref)
        assert {:ok, [map]} = call("gpu.held_ref", [], Others)
        assert map["cuda"]["waited"]
        assert {:ok, again} = DLPack.import_gpu_tensor(map)
        assert {:ok, %{kind: :imported}} = DLPack.info(again)
      end

      test "Snakepit's map from there" do
        assert {:ok, %GPUTensorRef{shape: [2, 3], device: {:cuda, 1}} = ref} =
                 call("gpu.snakepit", [1])

        assert {:ok, %{kind: :imported}} = DLPack.info(ref)
      end

      test "memory that tmesh did not allocate, and that says so" do
        assert {:ok, ref} = call("gpu.foreign", [9])
        assert %GPUTensorRef{shape: [2, 3], dtype: :float32, device: {:cuda, 0}} = ref
        assert {:ok, %{kind: :ipc}} = DLPack.info(ref)

        assert {:ok, %{"cuda" => %{"kind" => "ipc"}} = map} = DLPack.export_gpu_tensor(ref)
        assert {:ok, again} = DLPack.import_gpu_tensor(map)
        assert {:ok, %{kind: :ipc}} = DLPack.info(again)
        # Used until here: a map holds nothing.
        :ok = ZeroCopy.release(ref)
      end

      test "memory that is taken back" do
        assert {:ok, ref} = call("gpu.keep", [])
        assert {:ok, %{taken: false}} = DLPack.info(ref)
        assert {:ok, nil} = call("gpu.reclaim", [])
        eventually(fn -> match?({:ok, %{taken: true}}, DLPack.info(ref)) end)
        assert {:error, %Error{type: :stale}} = DLPack.export_gpu_tensor(ref)
        assert {:error, %Error{type: :stale}} = call("gpu.describe", [ref])
        assert :ok = ZeroCopy.release(ref)
      end

      test "refs go also where nothing else is shared" do
        on_exit(fn -> Application.delete_env(:tmesh, :zero_copy) end)
        Application.put_env(:tmesh, :zero_copy, enabled: false)
        assert {:ok, %{"a" => [ref]}} = call("gpu.make", [[4], "uint8", 0, 3])
        assert {:ok, ["Array", "cuda:0" | _rest]} = call("gpu.describe", [ref])
      end

      defp call(operation, payload, pool \\ GPUs),
        do: Worker.execute(operation, payload, pool: pool)
    end
  else
    @tag skip: PythonPool.why_not()
    test "stand-in: with workers"
  end

  defp dead_token do
    {:ok, backend} = Tmesh.backend()

    if backend == :kernel,
      do: "tm1k-" <> String.duplicate("0", 32),
      else: "tm1m-" <> String.duplicate("0", 32) <> "-" <> String.duplicate("0", 32)
  end
end
