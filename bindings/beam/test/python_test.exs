# SPDX-License-Identifier: MIT
defmodule Tmesh.PythonTest do
  use Tmesh.Case

  @python System.get_env("TMESH_TEST_PYTHON", "python3")

  unless match?({_output, 0}, System.cmd("sh", ["-c", "#{@python} -c 'import tmesh, numpy' 2>&1"])) do
    @moduletag skip: "no Python with the tmesh package: make python"
  end

  setup do
    script = Path.expand("support/peer.py", __DIR__)
    %{peer: Peer.open(System.find_executable(@python), [script])}
  end

  test "Elixir reads a NumPy array in place", %{peer: peer} do
    {:ok, ref} = peer |> Peer.call("put") |> TensorRef.from_json()
    assert %{shape: [3, 4], dtype: :float32, strides: [4, 1]} = ref
    ref = ZeroCopy.open!(ref)
    copied = stat(:bytes_copied)
    binary = ZeroCopy.to_binary!(ref, copy: false)
    assert for(<<x::float-32-native <- binary>>, do: x) == Enum.map(0..11, &(&1 * 1.0))

    row = binary_part(binary, 16, 16)
    assert for(<<x::float-32-native <- row>>, do: x) == [4.0, 5.0, 6.0, 7.0]
    assert stat(:bytes_copied) == copied
  end

  test "Elixir reads a transposed array in its own order", %{peer: peer} do
    _ref = Peer.call(peer, "put")
    {:ok, ref} = peer |> Peer.call("transposed") |> TensorRef.from_json()
    assert %{shape: [4, 3], strides: [1, 4]} = ref

    assert for(<<x::float-32-native <- ZeroCopy.to_binary!(ref)>>, do: trunc(x)) ==
             [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]
  end

  test "Python reads what Elixir put", %{peer: peer} do
    data = for x <- 1..100, into: <<>>, do: <<x * 1.0::float-64-native>>
    ref = ZeroCopy.from_binary!(data, [10, 10], :float64)
    {:ok, json} = TensorRef.to_json(ref)
    assert Peer.call(peer, "sum " <> json) == "5050.0"
    assert :ok = ZeroCopy.release(ref)
    assert Peer.call(peer, "sum " <> json) =~ "Error"
  end

  test "Python writes into what Elixir allocated, when it was granted that", %{peer: peer} do
    ref = ZeroCopy.from_binary!(<<1::32-native, 2::32-native>>, [2], :int32, seal: false)
    {:ok, readable} = TensorRef.to_json(ref)
    {:ok, writable} = ref |> ZeroCopy.grant!(:write) |> TensorRef.to_json()
    assert Peer.call(peer, "double " <> readable) =~ "Error"
    assert Peer.call(peer, "double " <> writable) == "ok"
    assert ZeroCopy.to_binary!(ref) == <<2::32-native, 4::32-native>>
  end

  test "binaries outlive the Python process", %{peer: peer} do
    {:ok, ref} = peer |> Peer.call("put") |> TensorRef.from_json()
    binary = ref |> ZeroCopy.open!() |> ZeroCopy.to_binary!(copy: false)
    kept = :binary.copy(binary)
    :ok = Peer.kill(peer)
    # The memory is held by the binary now. On the module its token lives as long as it does.
    assert match?({:ok, _ref}, ZeroCopy.open(ref)) == (Tmesh.backend() == {:ok, :kernel})
    assert binary == kept
  end
end
