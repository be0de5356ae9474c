# SPDX-License-Identifier: MIT
defmodule Tmesh.PeerTest do
  use Tmesh.Case

  alias Tmesh.{Bundle, Context, Native, Slot}

  @bytes 1_000_003
  @asks_nobody Tmesh.backend() == {:ok, :kernel} && "the module answers, not the peer"

  setup do
    %{peer: Peer.start()}
  end

  test "attacks through /proc change nothing" do
    # Sealed, unsealed, released, pooled: everything that this VM has open.
    sealed = ZeroCopy.from_binary!(Peer.pattern(@bytes), [@bytes], :uint8)
    binary = ZeroCopy.to_binary!(sealed, copy: false)
    part = binary_part(binary, @bytes - 251, 251)
    open = ZeroCopy.from_binary!(Peer.pattern(@bytes), [@bytes], :uint8, seal: false)
    peer = Peer.start()

    reader =
      Task.async(fn ->
        for _i <- 1..20, do: {ZeroCopy.to_binary(open), ZeroCopy.to_binary(sealed)}
      end)

    assert Peer.call(peer, "attack #{System.pid()}") =~ ~r/^\d+ of \d+$/
    reads = Task.await(reader, :infinity)

    assert Enum.all?(reads, fn {_open, sealed} -> sealed == {:ok, binary} end)
    assert binary == Peer.pattern(@bytes)
    assert part == binary_part(Peer.pattern(@bytes), @bytes - 251, 251)
    # Any process of this user may have written unsealed memory, but all of it is there.
    assert byte_size(ZeroCopy.to_binary!(open)) == @bytes
    assert {:ok, _ref} = ZeroCopy.from_binary(Peer.pattern(@bytes), [@bytes], :uint8)
  end

  @tag skip: @asks_nobody
  test "a stopped peer holds up its openers, not the VM", %{peer: peer} do
    configure(timeout_ms: 600_000)
    ref = Peer.put(peer, 4096)
    :ok = Peer.hide(peer, ref)
    :ok = Peer.stop(peer)
    opens = for _i <- 1..30, do: Task.async(fn -> ZeroCopy.open(ref) end)
    # File I/O shares its schedulers with opens that wait, and must not wait for all of them.
    assert {:ok, _text} = Task.async(fn -> File.read(__ENV__.file) end) |> Task.await(300_000)
    assert Enum.all?(opens, &Process.alive?(&1.pid))
    :ok = Peer.signal(peer, "CONT")

    for {:ok, opened} <- Task.await_many(opens, :infinity) do
      assert ZeroCopy.to_binary!(opened) == Peer.pattern(4096)
    end
  end

  @tag skip: @asks_nobody
  test "a stopped maker of a channel holds up those who join it, not the VM", %{peer: peer} do
    configure(timeout_ms: 20_000)
    token = Peer.call(peer, "channel")
    :ok = Peer.stop(peer)
    joins = for _i <- 1..30, do: Task.async(fn -> Tmesh.Channel.open(token, :recv) end)
    read = Task.async(fn -> File.read(__ENV__.file) end) |> Task.yield(10_000)
    wait? = Enum.all?(joins, &Process.alive?(&1.pid))
    :ok = Peer.signal(peer, "CONT")
    results = Task.await_many(joins, :infinity)
    assert {:ok, {:ok, _text}} = read
    assert wait?
    assert Enum.all?(results, &match?({:ok, _channel}, &1))
  end

  @tag skip: @asks_nobody
  test "no call waits for a scheduler that others hold for a stopped peer", %{peer: peer} do
    configure(timeout_ms: 600_000)
    context = Context.get()
    {:ok, slot} = Slot.create()
    {:ok, reader} = Slot.open(slot.token)
    sealed = ZeroCopy.from_binary!("abcd", [4], :uint8)
    bundle = Bundle.put!(%{"a" => sealed})
    json = Bundle.to_json!(bundle)
    {:ok, 1} = Slot.publish(slot, bundle)
    token = Peer.call(peer, "channel")
    :ok = Peer.stop(peer)
    joins = for _i <- 1..30, do: Task.async(fn -> Tmesh.Channel.open(token, :recv) end)
    eventually(fn -> refused?(Native.token_id(context, "none")) end)

    for call <- [
          fn -> Native.slot_read(reader.native, nil) end,
          fn -> Native.slot_watch(reader.native, :changed) end,
          fn -> Native.xla_bind(context, "busy", token, :recv) end,
          fn -> Native.gpu_open(context, "{}", nil, false) end,
          fn -> Native.keep_region(context, sealed.handle, "busy", {false, 0, 0, nil}) end,
          fn -> Native.open_kept(context, "busy", nil) end,
          fn -> Native.kept_path(context, "busy", nil) end,
          fn -> Native.kept_files(context, "busy") end,
          fn -> Native.list_kept(context) end,
          fn -> Native.drop_kept(context, "busy") end
        ],
        do: assert(refused?(call.()))

    # The public functions wait instead.
    read = Task.async(fn -> Slot.read(reader) end)
    open = Task.async(fn -> Bundle.open(json) end)
    holders = Task.async(fn -> Tmesh.holders(TensorRef.to_map!(sealed)["token"]) end)
    for waits <- [read, open, holders], do: assert(Task.yield(waits, 300) == nil)
    :ok = Peer.signal(peer, "CONT")
    assert {:ok, %Slot.Value{generation: 1}} = Task.await(read, :infinity)
    assert {:ok, %Bundle{names: ["a"]}} = Task.await(open, :infinity)
    assert {:ok, [_holder | _others]} = Task.await(holders, :infinity)
    for {:ok, channel} <- Task.await_many(joins, :infinity), do: Tmesh.Channel.close(channel)
    for one <- [reader, slot], do: Slot.close(one)
  end

  defp refused?(result), do: match?({:error, {:eagain, _why}}, result)

  @tag skip: @asks_nobody
  test "a stopped peer is given up after a while", %{peer: peer} do
    # Long enough for a peer that goes on, and that has to answer within the same time.
    configure(timeout_ms: 1_000)
    ref = Peer.put(peer, 4096)
    :ok = Peer.hide(peer, ref)
    :ok = Peer.stop(peer)
    assert {:error, %Error{type: :timeout}} = ZeroCopy.open(ref)
    :ok = Peer.signal(peer, "CONT")
    eventually(fn -> match?({:ok, _ref}, ZeroCopy.open(ref)) end)
  end

  test "ten thousand opens at once", %{peer: peer} do
    ref = Peer.put(peer, 4096)
    live = stat(:regions_live)
    pattern = Peer.pattern(4096)

    in_process(fn ->
      opens =
        for _i <- 1..10_000 do
          Task.async(fn ->
            with {:ok, opened} <- ZeroCopy.open(ref),
                 {:ok, binary} <- ZeroCopy.to_binary(opened, copy: false),
                 do: {:ok, opened, binary}
          end)
        end

      answers = Task.await_many(opens, :infinity)

      for answer <- answers do
        case answer do
          {:ok, _ref, binary} -> assert binary == pattern
          # If the VM has run out of files, that is only an error.
          {:error, error} -> assert %Error{} = error
        end
      end

      assert Enum.any?(answers, &match?({:ok, _ref, _binary}, &1))
    end)

    eventually(fn -> stat(:regions_live) == live end)
    assert ref |> ZeroCopy.open!() |> ZeroCopy.to_binary!() == pattern
  end
end
