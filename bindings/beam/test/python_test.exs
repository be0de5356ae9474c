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
