# SPDX-License-Identifier: MIT
defmodule Tmesh.ReachTest do
  @moduledoc false
  # On both backends: without the module, a call that needs it reports that.
  use Tmesh.Case

  alias Tmesh.Descriptor

  @page 4096

  defp module?, do: Tmesh.backend() == {:ok, :kernel}

  defp unsupported(result) do
    assert {:error, %Error{type: :unsupported, message: message}} = result
    assert message =~ ~r/module|memfd/
  end

  if match?({:ok, :kernel}, Tmesh.backend()) do
    test "what was taken back says so" do
      ref = ZeroCopy.allocate!([@page], :uint8)
      assert ZeroCopy.revoke(ref) == :ok
      assert %{revoked: true} = ZeroCopy.info!(ref)
      assert inspect(ref) =~ "revoked"
    end
  end

  test "a dma-buf of a tensor delays the memory, and a process that waits gets the reason" do
    ref = ZeroCopy.allocate!([@page], :uint8)

    if module?() do
      descriptor = ZeroCopy.export_dmabuf!(ref)
      assert inspect(descriptor) == "#Tmesh.Descriptor<fd: #{descriptor.fd}, ...>"
      assert {:ok, "/dmabuf:" <> _} = File.read_link("/proc/self/fd/#{descriptor.fd}")
      assert %{exports: 1} = ZeroCopy.info!(ref)
      assert Descriptor.close(descriptor) == :ok
      assert Descriptor.close(descriptor) == :ok
      # Its number may belong to another file by now.
      refute match?({:ok, "/dmabuf:" <> _}, File.read_link("/proc/self/fd/#{descriptor.fd}"))
    else
      unsupported(ZeroCopy.export_dmabuf(ref))
    end

    for opts <- [[offset: 1], [bytes: -1], [offset: :x], [writable: 1], [colour: 1]] do
      assert {:error, %Error{type: type}} = ZeroCopy.export_dmabuf(ref, opts)
      assert type in [:invalid, :unsupported]
    end
  end

  test "what is no dma-buf" do
    {:ok, file} = File.open("/dev/null")

    for no_descriptor <- [-1, nil, "3", make_ref()] do
      assert {:error, %Error{type: :closed}} = ZeroCopy.from_dmabuf(no_descriptor, [1], :uint8)
    end

    {fd, _other} = Tmesh.Sockets.pair()
    assert {:error, %Error{type: type}} = ZeroCopy.from_dmabuf(fd, [1], :uint8)
    assert type == if(module?(), do: :invalid, else: :unsupported)
    File.close(file)
  end

  test "a lease that has lapsed says so" do
    ref = ZeroCopy.allocate!([4], :uint8)
    assert ZeroCopy.lease(ref, 10) == :ok
    assert %{lease_ns: 10_000_000} = ZeroCopy.info!(ref)
    eventually(fn -> ZeroCopy.info!(ref).lapsed end)
  end

  test "what is no lease" do
    other = ZeroCopy.allocate!([4], :uint8)

    for ms <- [0, -1, :infinity, 1.5, 0x1_0000_0000] do
      assert {:error, %Error{type: :invalid}} = ZeroCopy.lease(other, ms)
    end

    assert {:error, %Error{type: :invalid}} = ZeroCopy.lease(other, 100, process: :me)
    assert {:error, %Error{type: :not_found}} = ZeroCopy.lease(other, 100, process: 0x3FFF_FFFF)
    assert %{lease_ns: 0} = ZeroCopy.info!(other)
  end

  test "what is not permitted met no seal, and what is sealed did" do
    assert %Error{type: :access, details: %{errno: :eperm}} =
             Error.from_native({:eperm, "the driver does not permit it"})

    ref = ZeroCopy.from_binary!("abcd", [4], :uint8)

    assert {:error, %Error{type: :sealed, details: %{errno: :eperm}}} = ZeroCopy.write(ref, 0, "x")
  end

  if match?({:ok, :kernel}, Tmesh.backend()) do
    test "a handle with a lease, which gives no token, is not sealed" do
      ref = ZeroCopy.allocate!([@page], :uint8)
      :ok = ZeroCopy.lease(ref, 60_000)
      assert {:error, %Error{type: :access, message: message}} = ZeroCopy.grant(ref, :read)
      assert message =~ "lease"
    end
  end

  test "what no fence comes to" do
    ref = ZeroCopy.allocate!([@page], :uint8)

    for value <- [-1, :x, 1.0, 0x1_0000_0000_0000_0000] do
      assert {:error, %Error{type: :invalid}} = ZeroCopy.signal(ref, value)
      assert {:error, %Error{type: :invalid}} = ZeroCopy.wait(ref, value)
    end
  end

  if match?({:ok, :kernel}, Tmesh.backend()) do
    test "many who wait leave the schedulers to others, and can be killed" do
      ref = ZeroCopy.allocate!([@page], :uint8)
      :ok = ZeroCopy.signal(ref, 1)
      waiting = for _ <- 1..100, do: spawn(fn -> ZeroCopy.wait(ref, 2) end)
      assert {:ok, "root:" <> _} = File.read("/etc/passwd")
      assert {:ok, _same} = ZeroCopy.open(ref)
      for pid <- waiting, do: Process.exit(pid, :kill)
      eventually(fn -> not Enum.any?(waiting, &Process.alive?/1) end)
    end
  end

  test "parts of regions are one tensor" do
    one = ZeroCopy.from_binary!(String.duplicate("a", @page), [@page], :uint8)
    two = ZeroCopy.from_binary!(String.duplicate("b", 2 * @page), [2 * @page], :uint8)

    if module?() do
      whole = ZeroCopy.gather!([one, two], label: "whole")
      assert %TensorRef{dtype: :uint8, shape: [12_288]} = whole
      assert %{backing: :view, label: "whole"} = ZeroCopy.info!(whole)

      # It is not sealed, and its region cannot be pinned.
      assert {:error, %Error{type: :unsupported}} = ZeroCopy.to_binary(whole, copy: false)
      assert {:error, %Error{type: :invalid}} = ZeroCopy.gather([])
    end

    for parts <- [[one, :other], [{one, -1, 1}], [{one, 0}], :parts, [one | two]] do
      assert {:error, %Error{type: :invalid}} = ZeroCopy.gather(parts)
    end

    assert {:error, %Error{type: :invalid}} = ZeroCopy.gather([one], dtype: :uint8)
    ZeroCopy.release!(one)
    assert {:error, %Error{type: :closed}} = ZeroCopy.gather([one])
  end

  describe "by a socket" do
    test "goes a region (of :seqpacket too), and is described by another layout" do
      {one, other} = Tmesh.Sockets.open(:seqpacket)
      ref = ZeroCopy.allocate!([8], :uint8)
      :ok = ZeroCopy.send(ref, one)
      assert {:ok, same} = ZeroCopy.recv(other, shape: {2}, dtype: {:s, 16}, offset: 4)
      assert %TensorRef{shape: [2], dtype: :int16, offset: 4} = same
      :ok = ZeroCopy.send(ref, one)
      assert {:error, %Error{}} = ZeroCopy.recv(other, shape: [10_000_000], dtype: :float64)
      assert {:error, %Error{type: :invalid}} = ZeroCopy.recv(other, dtype: :int8)
    end

    test "of gen_tcp, and by its number" do
      path = Path.join(System.tmp_dir!(), "tmesh-#{System.pid()}-#{System.unique_integer()}")
      {:ok, listening} = :gen_tcp.listen(0, [:local, ifaddr: {:local, path}, active: false])
      {:ok, one} = :gen_tcp.connect({:local, path}, 0, [:local, active: false])
      {:ok, other} = :gen_tcp.accept(listening)
      ref = ZeroCopy.from_binary!("abcd", [4], :uint8)
      assert ZeroCopy.send(ref, one) == :ok
      {:ok, fd} = :inet.getfd(other)
      assert ZeroCopy.to_binary!(ZeroCopy.recv!(fd)) == "abcd"
      :gen_tcp.close(one)
      assert {:error, %Error{type: :gone}} = ZeroCopy.recv(other)
      File.rm!(path)
    end

    test "who waits can be killed, and what does not come is late or gone" do
      {one, other} = Tmesh.Sockets.open()
      assert {:error, %Error{type: :timeout}} = ZeroCopy.recv(other, timeout: 10)
      {pid, monitor} = spawn_monitor(fn -> ZeroCopy.recv(other) end)
      Process.exit(pid, :kill)
      assert_receive {:DOWN, ^monitor, :process, ^pid, :killed}
      :ok = :socket.send(one, String.duplicate("something else", 100))
      assert {:error, %Error{type: :protocol}} = ZeroCopy.recv(other)

      :ok = :socket.close(one)
      ref = ZeroCopy.allocate!([1], :uint8)
      assert {:error, %Error{type: :closed}} = ZeroCopy.send(ref, one)

      for no_socket <- [:socket, nil, "path", {1, 2}] do
        assert {:error, %Error{type: :closed}} = ZeroCopy.send(ref, no_socket)
        assert {:error, %Error{type: :closed}} = ZeroCopy.recv(no_socket)
      end

      assert {:error, %Error{type: :invalid}} = ZeroCopy.recv(other, timeout: -1)
    end
  end

  describe "options of a new region" do
    test "the mode is 0o600 and the hold 0 by default" do
      for ref <- [ZeroCopy.allocate!([4], :uint8), ZeroCopy.allocate!([4], :uint8, mode: 0o600)],
          do: assert(%{mode: 0o600, hold_ms: 0, node: nil} = ZeroCopy.info!(ref))
    end

    test "pin: false makes all binaries copies" do
      ref = ZeroCopy.from_binary!("abcd", [4], :uint8, pin: false)
      copied = stat(:bytes_copied)
      assert ZeroCopy.to_binary!(ref) == "abcd"
      assert stat(:bytes_copied) == copied + 4
      assert {:error, %Error{}} = ZeroCopy.to_binary(ref, copy: false)
    end

    test "gid, node and hold_ms are the region's, or refused with the reason" do
      own = "/proc/self" |> File.stat!() |> Map.fetch!(:gid)

      if module?() do
        ref = ZeroCopy.allocate!([@page], :uint8, gid: own, hold_ms: 20, node: 0, mode: 0o640)
        assert %{gid: ^own, hold_ms: 20, node: 0, mode: 0o640} = ZeroCopy.info!(ref)
      else
        for option <- [hold_ms: 20, mode: 0o640] do
          assert {:error, %Error{type: :unsupported}} = ZeroCopy.allocate([4], :uint8, [option])
        end
      end

      for {name, wrong} <- [
            node: -1,
            node: :any,
            gid: -1,
            gid: "users",
            gid: 0xFFFF_FFFF,
            hold_ms: -1,
            pin: nil
          ] do
        assert {:error, %Error{type: :invalid, message: message}} =
                 ZeroCopy.allocate([4], :uint8, [{name, wrong}])

        assert message =~ "#{name}"
        assert {:error, %Error{type: :invalid}} = Tmesh.Arena.create([{name, wrong}])
      end

      assert {:error, %Error{type: :invalid}} = ZeroCopy.allocate([4], :uint8, node: 4000)
      arena = Tmesh.Arena.create!()

      assert {:error, %Error{type: :invalid, message: message}} =
               ZeroCopy.allocate([4], :uint8, arena: arena, node: 0)

      assert message =~ "label, huge, mode, node, gid, hold_ms, pin"
    end
  end
end
