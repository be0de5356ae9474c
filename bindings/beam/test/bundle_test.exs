# SPDX-License-Identifier: MIT
defmodule Tmesh.BundleTest do
  use Tmesh.Case

  alias Tmesh.Bundle

  doctest Bundle

  defp bundle(opts \\ []) do
    ref = ZeroCopy.from_binary!("abcd", [4], :uint8, seal: false)

    Bundle.put!([{"w", {<<1::32-native, 2::32-native>>, {1, 2}, {:s, 32}}}, {"b", ref}], opts)
  end

  test "goes as JSON and as a map, and is enumerable" do
    made = bundle(label: "model", metadata: ~s({"format":"test"}))

    for ref <- [Bundle.to_json!(made), Bundle.to_map!(made)] do
      same = Bundle.open!(ref)
      assert %Bundle{names: ["w", "b"], byte_size: 12, metadata: ~s({"format":"test"})} = same
      assert for({name, ref} <- same, do: {name, ref.shape}) == [{"w", [1, 2]}, {"b", [4]}]
      assert Enum.count(same) == 2 and Enum.map(Enum.take(same, 1), &elem(&1, 0)) == ["w"]
    end

    # The bundle is held until here.
    :ok = Bundle.release(made)
  end

  test "what was taken from it stays when it is released, and is a ref like others" do
    made = bundle()
    ref = made["w"]
    :ok = Bundle.release(made)
    :ok = Bundle.release(made)
    assert ZeroCopy.to_binary!(ref) == <<1::32-native, 2::32-native>>
    assert {:ok, _same} = ref |> TensorRef.to_json!() |> ZeroCopy.open()
    :ok = ZeroCopy.release(ref)
    assert {:error, %Error{type: :closed}} = Bundle.to_json(made)
    assert_raise Error, fn -> made["w"] end
  end

  test "a name that it has not" do
    made = bundle()
    assert made["x"] == nil and made[7] == nil
    assert Bundle.fetch(made, "x") == :error
    assert_raise KeyError, fn -> Bundle.fetch!(made, "x") end
    refute inspect(made) =~ "tm1"
  end

  test "a name that was given as an atom is found by it" do
    made = Bundle.put!(%{a: {"abcd", {4}, :u8}})
    assert made.names == ["a"]
    assert ZeroCopy.to_binary!(made[:a]) == "abcd" and ZeroCopy.to_binary!(made["a"]) == "abcd"
    assert Bundle.fetch(made, :b) == :error and made[nil] == nil
  end

  test "by a socket: a bundle that does not come, an object that is no bundle, and one that is no socket" do
    {one, other} = Tmesh.Sockets.open(:seqpacket)
    made = bundle()
    assert Bundle.send(made, one) == :ok
    assert {:ok, %Bundle{names: ["w", "b"]}} = Bundle.recv(other)
    assert {:error, %Error{type: :timeout}} = Bundle.recv(other, timeout: 10)
    assert {:error, %Error{type: :invalid}} = Bundle.recv(other, timeout: -1)
    assert {:error, %Error{type: :invalid}} = Bundle.send(made, one, writable: 1)
    assert {:error, %Error{type: :closed}} = Bundle.send(made, :socket)
    :ok = Bundle.release(made)
    assert {:error, %Error{type: :closed}} = Bundle.send(made, one)
  end

  test "what is no bundle is refused, and nothing is left behind" do
    released = ZeroCopy.allocate!([1], :uint8)
    :ok = ZeroCopy.release(released)

    for {tensors, type} <- [
          {%{"a" => 1}, :invalid},
          {%{"a" => {"abc", [4], :uint8}}, :invalid},
          {[{"a", {"a", [1], :u8}}, {"a", {"a", [1], :u8}}], :invalid},
          {[{"a", {"a", [1], :u8}}, {"b\0", {"a", [1], :u8}}], :invalid},
          {[{7, {"a", [1], :u8}}], :invalid},
          {[:a], :invalid},
          {[{"a", 1} | :b], :invalid},
          {"abc", :invalid},
          {%{"a" => released}, :closed}
        ] do
      assert {:error, %Error{type: ^type}} = Bundle.put(tensors), inspect(tensors)
    end

    for opts <- [[seal: 1], [label: 5], [metadata: 5], [metadata: <<0xFF>>], [colour: 1]],
        do: assert({:error, %Error{type: :invalid}} = Bundle.put(%{}, opts))

    tensor = TensorRef.to_json!(ZeroCopy.from_binary!("a", [1], :uint8))

    for ref <- ["", "{}", tensor, %{}, %{"kind" => "bundle"}, nil],
        do: assert({:error, %Error{type: :protocol}} = Bundle.open(ref))

    made = bundle()
    json = Bundle.to_json!(made)
    assert {:error, %Error{type: :invalid}} = Bundle.open(json, writable: 1)
    :ok = Bundle.release(made)
  end
end
