# SPDX-License-Identifier: MIT
defmodule Tmesh.SeeTest do
  use Tmesh.Case

  @vocabulary __DIR__ |> Path.join("../../../tests/vocabulary.md") |> File.read!()

  # Return the names in the first column of one of its tables.
  defp members(table) do
    [_, rows] = Regex.run(~r/<!-- #{table} -->\n(.*?)<!-- \/#{table} -->/s, @vocabulary)
    ["| name " <> _, "| ---" <> _ | rows] = String.split(rows, "\n", trim: true)

    for row <- rows,
        [names | _] = String.split(row, "|", trim: true),
        [name] <- Regex.scan(~r/`(\w+)`/, names, capture: :all_but_first),
        do: String.to_atom(name)
  end

  test "regions/0 has each member of the vocabulary, and no others" do
    # All regions of the machine are listed.
    label = "seen-#{System.pid()}"
    ref = ZeroCopy.from_binary!(<<0::size(6 * 32)>>, [2, 3], :float32, label: label, mode: 0o600)

    assert region = Enum.find(Tmesh.regions!(), &(&1.label == label))
    assert Enum.sort(Map.keys(region)) == Enum.sort(members("region members"))
    id = ref.id
    assert {:ok, %{id: ^id}} = ZeroCopy.grant(ref, :read)

    assert %{
             id: ^id,
             sealed: true,
             revoked: false,
             bytes: 24,
             mode: 0o600,
             node: nil,
             fence: :idle,
             fence_value: 0,
             handles: handles,
             tensor: %{dtype: :float32, shape: [2, 3], strides: [3, 1], offset: 0, byte_size: 24}
           } = region

    {:ok, backend} = Tmesh.backend()
    assert handles >= 1 and region.backend == backend
    assert region.backing == if(backend == :kernel, do: :pages, else: :memfd)
    assert region.description =~ "float32"
    # info!/1 shows the same, and the handle's own members.
    assert %{rights: rights} = info = ZeroCopy.info!(ref)
    assert :read in rights
    own = [:rights, :lease_ns, :lease_left_ns, :lapsed]
    assert info |> Map.drop(own) |> Map.keys() == Map.keys(region)
    ZeroCopy.release!(ref)
    refute Enum.any?(Tmesh.regions!(), &(&1.id == id))
  end

  test "what is no tensor has none" do
    arena = Tmesh.Arena.create!(label: "no tensor-#{System.pid()}")
    ref = ZeroCopy.from_binary!("abcd", [4], :uint8, arena: arena)
    assert %{tensor: nil} = Enum.find(Tmesh.regions!(), &(&1.label == arena.label))
    ZeroCopy.release!(ref)
  end

  test "holders/1 of a ref, an id or a token has each member of the vocabulary" do
    ref = ZeroCopy.allocate!([4096], :uint8)
    {:ok, named} = ZeroCopy.grant(ref, :read)
    own = String.to_integer(System.pid())

    for of <- [ref, named, named.id, String.upcase(named.id), named.token] do
      assert [_ | _] = holders = Tmesh.holders!(of)
      assert holder = Enum.find(holders, &(&1.pid == own))
      assert Enum.sort(Map.keys(holder)) == Enum.sort(members("holder members"))
      assert holder.kind in [:handle, :mapping] and :read in holder.rights
      assert is_binary(holder.command) and holder.device == nil and holder.view == nil
      assert holder.lapsed == false and holder.producer == false
    end

    peer = Tmesh.Peer.start()
    {:ok, writable} = ZeroCopy.grant(ref, :write)
    assert "ok" = Tmesh.Peer.call(peer, "map " <> TensorRef.to_json!(writable))
    # A process that looks at all regions of the machine may be a holder for a moment.
    eventually(fn ->
      pids = for holder <- Tmesh.holders!(ref), uniq: true, do: holder.pid
      length(pids) == 2 and own in pids
    end)

    ZeroCopy.release!(ref)
  end

  test "regions without a holder, and malformed ids, have no list of holders" do
    ref = ZeroCopy.allocate!([1], :uint8)
    {:ok, named} = ZeroCopy.grant(ref, :read)
    ZeroCopy.release!(ref)
    assert {:error, %Error{type: :closed}} = Tmesh.holders(ref)
    assert {:error, %Error{type: :not_found}} = Tmesh.holders(%{named | handle: nil})
    assert {:error, %Error{type: :not_found}} = Tmesh.holders(named.token)
    assert {:error, %Error{type: :not_found}} = Tmesh.holders("0000000000000000")

    # A new tensor has its id at once, and no token yet.
    new = ZeroCopy.allocate!([1], :uint8)
    assert new.token == nil
    assert {:ok, [_ | _]} = Tmesh.holders(new.id)

    for other <- ["", "xyz", "000000000000000x", nil, 7, "tm1", "tm1m-0", self()],
        do: assert({:error, %Error{type: :protocol}} = Tmesh.holders(other))
  end
end
