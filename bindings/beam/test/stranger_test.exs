# SPDX-License-Identifier: MIT
defmodule Tmesh.StrangerTest do
  @moduledoc false
  # The first programs of a user who has read only the README: each works, or its error gives the remedy.
  use Tmesh.Case

  defp pixels(opts \\ []), do: ZeroCopy.from_binary!("abcd", [4], :uint8, opts)

  # Run `fun` so that its tensors are in no variable and no garbage.
  defp collected(fun) do
    result = in_process(fun)
    for pid <- Process.list(), do: :erlang.garbage_collect(pid)
    Tmesh.Native.sweep()
    result
  end

  defmodule Maker do
    use GenServer
    def init(ref), do: {:ok, ref}
    def handle_call(:ref, _from, ref), do: {:stop, :normal, ref, ref}
  end

  describe "a ref outlives its maker:" do
    test "returned by a function, a task, a process" do
      for make <- [
            fn -> pixels() end,
            fn -> Task.await(Task.async(fn -> pixels() end), :infinity) end,
            fn -> collected(fn -> pixels() end) end
          ] do
        assert ZeroCopy.to_binary!(make.()) == "abcd"
      end
    end

    test "the state of a GenServer that has ended" do
      {:ok, maker} = GenServer.start(Maker, pixels())
      monitor = Process.monitor(maker)
      ref = GenServer.call(maker, :ref, :infinity)
      assert_receive {:DOWN, ^monitor, :process, ^maker, :normal}
      for pid <- Process.list(), do: :erlang.garbage_collect(pid)
      assert ZeroCopy.to_binary!(ref) == "abcd"
    end

    test "sent to another process" do
      test = self()
      collected(fn -> send(test, {:ref, pixels()}) end)
      assert_receive {:ref, ref}
      assert ZeroCopy.to_binary!(ref) == "abcd"
    end

    test "in ETS, and as long as it is there" do
      table = :ets.new(:refs, [:public])
      collected(fn -> :ets.insert(table, {:pixels, pixels()}) end)
      assert stat(:regions_live) == 1
      # A process of its own reads it, so that nothing of it is left here.
      assert collected(fn -> ZeroCopy.to_binary!(:ets.lookup_element(table, :pixels, 2)) end) ==
               "abcd"

      :ets.delete(table)
      eventually(fn -> Tmesh.Native.sweep() && stat(:regions_live) == 0 end)
    end

    test "nothing is left of the tensors of a killed task" do
      collected(fn ->
        Task.shutdown(Task.async(fn -> pixels() && Process.sleep(:infinity) end), :brutal_kill)
      end)

      eventually(fn -> Tmesh.Native.sweep() && stat(:regions_live) == 0 end)
    end
  end

  test "a description as it came is opened" do
    ref = pixels(label: "first")
    assert ZeroCopy.to_binary!(ZeroCopy.open!(TensorRef.to_json!(ref))) == "abcd"
    assert ZeroCopy.to_binary!(ZeroCopy.open!(TensorRef.to_map!(ref))) == "abcd"

    for other <- ["", "{}", %{}],
        do: assert({:error, %Error{type: :protocol}} = ZeroCopy.open(other))

    assert inspect(ref) =~ "first" and "#{inspect([ref])}" =~ "TensorRef"
  end

  test "the error of a write to sealed or read-only memory names the remedy" do
    assert {:error, %Error{type: :sealed, message: message}} = ZeroCopy.write(pixels(), 0, "x")
    assert message =~ "seal: false"
    same = ZeroCopy.open!(ZeroCopy.allocate!([4], :uint8))
    assert {:error, %Error{type: :access, message: message}} = ZeroCopy.write(same, 0, "x")
    assert message =~ "writable: true" and message =~ "grant"
  end

  test "what was released says so, whatever is asked of it" do
    ref = pixels()
    binary = ZeroCopy.to_binary!(ref)
    :ok = ZeroCopy.release(ref)
    assert inspect(ref) =~ "released"

    for try <- [&ZeroCopy.to_binary/1, &ZeroCopy.open/1, &Tmesh.holders/1] do
      assert {:error, %Error{type: :closed, message: message}} = try.(ref)
      assert message =~ "released"
    end

    # The binary that was read from it is like others.
    assert binary == "abcd"
  end

  test "regions leave descriptors to files, sockets and processes" do
    highest = Enum.max(for name <- File.ls!("/proc/self/fd"), do: String.to_integer(name))
    limit_files(soft: highest + 100)
    refs = many([])
    assert {:ok, _text} = File.read("/proc/version")
    assert {:ok, socket} = :gen_tcp.listen(0, [])
    :gen_tcp.close(socket)
    assert {"", 0} = System.cmd("true", [])

    # An arena has room.
    :ok = refs |> hd() |> ZeroCopy.release()
    assert {:ok, arena} = Tmesh.Arena.create()
    assert {:ok, first} = ZeroCopy.allocate([1], :uint8, arena: arena)
    assert {:ok, second} = ZeroCopy.allocate([1], :uint8, arena: arena)
    Enum.each([first, second | refs], &ZeroCopy.release!/1)
  end

  defp many(refs) do
    case ZeroCopy.allocate([1], :uint8) do
      {:ok, ref} ->
        many([ref | refs])

      {:error, error} ->
        assert error.type == :too_many_files
        assert error.message =~ "left to"
        refs
    end
  end

  test "all modules are there when the application has started" do
    # Otherwise the modules that errors need would be loaded when no descriptor is free.
    module = Tmesh.Bang
    # Purge an earlier version, and then this one.
    :code.purge(module)
    true = :code.delete(module)
    :code.purge(module)
    refute :code.is_loaded(module)
    configure([])
    {:ok, modules} = :application.get_key(:tmesh, :modules)
    assert Enum.reject(modules, &:code.is_loaded/1) == []
  end

  test "a list, a shape that is a number and the like are refused in words" do
    for {try, words} <- [
          {fn -> ZeroCopy.from_binary([1, 2], [2], :uint8) end, "one binary of 2 bytes"},
          {fn -> ZeroCopy.from_binary("abc", [2], :uint8) end, "take 2 bytes, and the binary has 3"},
          {fn -> ZeroCopy.allocate(4, :float32) end, "shape must be a list"},
          {fn -> ZeroCopy.allocate([4], "float32") end, ":float32"},
          {fn -> Tmesh.Arrow.from_columns(%{age: [41]}) end, "name is a string"},
          {fn -> Tmesh.Arrow.from_columns(age: [41]) end, "not :age"}
        ] do
      assert {:error, %Error{type: :invalid, message: message}} = try.()
      assert message =~ words
    end
  end
end
