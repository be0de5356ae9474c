# SPDX-License-Identifier: MIT
defmodule Tmesh.OtherNodeTest do
  # Refs as terms between the nodes of one machine. A handle is valid only on its own node.
  use Tmesh.Case, backend: :any
  alias Tmesh.{Bundle, Channel}

  setup_all do
    paths = Enum.flat_map(:code.get_path(), &[~c"-pa", &1])
    {:ok, peer, _node} = :peer.start(%{connection: :standard_io, args: paths, wait_boot: 600_000})
    config = [:tmesh, :zero_copy, [timeout_ms: 600_000]]
    :ok = call(peer, Application, :put_env, config)
    :ok = call(peer, Application, :put_env, [:logger, :level, :error])
    {:ok, _started} = call(peer, Application, :ensure_all_started, [:tmesh])
    on_exit(fn -> :peer.stop(peer) end)
    %{peer: peer}
  end

  defp call(peer, module, function, arguments),
    do: :peer.call(peer, module, function, arguments, 600_000)

  # Make a term on the other node. A tensor that is kept for a lasting process is there until the node ends.
  defp there(peer, program) do
    keep = "keep = fn ref -> Tmesh.ZeroCopy.tie!(ref, Process.whereis(:code_server)); ref end\n"
    {term, _binding} = call(peer, Code, :eval_string, [keep <> program])
    term
  end

  @put "keep.(Tmesh.ZeroCopy.from_binary!(\"abcd\", [4], :uint8))"

  test "one that was not handed over says so", %{peer: peer} do
    ref = there(peer, @put)
    assert inspect(ref) =~ ", opened elsewhere"
    {:ok, into} = Channel.create(:recv)
    {:ok, out} = Channel.open(into.token, :send)

    for refused <- [
          ZeroCopy.open(ref),
          ZeroCopy.to_binary(ref),
          ZeroCopy.info(ref),
          ZeroCopy.write(ref, 0, "x"),
          ZeroCopy.tie(ref),
          ZeroCopy.release(ref),
          TensorRef.to_json(ref),
          Channel.send(out, ref),
          Bundle.put(%{"a" => ref}),
          Tmesh.keep(ref, "other-node")
        ] do
      assert {:error, %Error{type: :closed, message: why}} = refused
      assert why =~ "opened by another node" and why =~ "grant/2"
    end

    # This uses only its id.
    assert {:ok, [%{kind: _} | _]} = Tmesh.holders(ref)
    :ok = Channel.close(into)
  end

  test "one that is only a description says so" do
    description = %TensorRef{
      TensorRef.from_map!(TensorRef.to_map!(ZeroCopy.allocate!([1], :uint8)))
      | token: nil
    }

    assert {:error, %Error{type: :closed, message: why}} = ZeroCopy.info(description)
    assert why =~ "only a description"
    refute why =~ "node"
  end

  test "a granted one opens itself", %{peer: peer} do
    ref = there(peer, "#{@put} |> Tmesh.ZeroCopy.grant!(:read)")
    assert inspect(ref) =~ ", granted"
    assert ZeroCopy.to_binary!(ref) == "abcd"
    assert {:ok, %{sealed: true, id: id}} = ZeroCopy.info(ref)
    assert id == ref.id
    assert {:ok, _holders} = Tmesh.holders(ref)
    {:ok, into} = Channel.create(:recv)
    {:ok, out} = Channel.open(into.token, :send)
    :ok = Channel.send(out, {ref, "with it"})
    assert {:ok, {got, "with it"}} = Channel.recv(into)
    assert ZeroCopy.to_binary!(got) == "abcd"
    assert {:ok, bundle} = Bundle.put(%{"a" => ref})
    assert ZeroCopy.to_binary!(bundle["a"]) == "abcd"
    # Tensors opened for a call are released.
    for held <- [got, bundle["a"]], do: :ok = ZeroCopy.release(held)
    :ok = Channel.close(into)
    :ok = Channel.close(out)
    Bundle.release(bundle)
    eventually(fn -> stat(:regions_live) == 0 end)
  end

  test "one that was granted to write is written to", %{peer: peer} do
    ref =
      there(peer, "keep.(Tmesh.ZeroCopy.allocate!([4], :uint8)) |> Tmesh.ZeroCopy.grant!(:write)")

    assert :ok = ZeroCopy.write(ref, 1, "bc")
    assert ZeroCopy.to_binary!(ref) == <<0, "bc", 0>>

    read =
      there(peer, "keep.(Tmesh.ZeroCopy.allocate!([4], :uint8)) |> Tmesh.ZeroCopy.grant!(:read)")

    assert {:error, %Error{type: :access}} = ZeroCopy.write(read, 1, "bc")
  end
end
