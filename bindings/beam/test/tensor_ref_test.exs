# SPDX-License-Identifier: MIT
defmodule Tmesh.TensorRefTest do
  use Tmesh.Case

  # Make it in each test, because ExUnit keeps its context. Hold it, because some tests use only the description.
  defp named do
    ref = ZeroCopy.from_binary!(:binary.copy("ab", 12), [3, 2], :float32)
    :ok = ZeroCopy.tie(ref)
    ZeroCopy.grant!(ref, :read)
  end

  test "goes through a map and back, less its handle" do
    ref = named()
    map = TensorRef.to_map!(ref)
    assert Enum.all?(Map.keys(map), &is_binary/1)
    assert {:ok, back} = TensorRef.from_map(map)
    assert back == %{ref | handle: nil}
    assert {:ok, ^back} = TensorRef.from_map(Map.put(map, "note", "ignored"))
  end

  test "goes through JSON and back, less its handle" do
    ref = named()
    {:ok, json} = TensorRef.to_json(ref)
    assert String.printable?(json)
    assert TensorRef.from_json(json) == {:ok, %{ref | handle: nil}}
  end

  test "other devices are described too" do
    ref = named()
    {:ok, back} = %{ref | device: {:cuda, 3}} |> TensorRef.to_map!() |> TensorRef.from_map()
    assert back.device == {:cuda, 3}
    assert {:error, %Error{type: :unsupported}} = ZeroCopy.open(back)
  end

  test "does not show its token" do
    ref = named()
    refute inspect(ref) =~ ref.token
  end

  # The first call uses a dirty scheduler, later ones the kept name.
  test "has one name for every process, until it is released" do
    ref = ZeroCopy.from_binary!("abcd", [4], :uint8)
    {:ok, %TensorRef{id: id, token: token}} = ZeroCopy.grant(ref, :read)

    for _time <- 1..3 do
      assert %{"id" => ^id, "token" => ^token, "shape" => [4]} = TensorRef.to_map!(ref)
      {:ok, json} = TensorRef.to_json(ref)
      assert {:ok, %TensorRef{id: ^id, token: ^token}} = TensorRef.from_json(json)
    end

    assert ZeroCopy.to_binary!(ZeroCopy.open!(ref)) == "abcd"
    ZeroCopy.release!(ref)
    assert {:error, %Error{type: :closed}} = TensorRef.to_json(ref)
    assert_raise Error, fn -> TensorRef.to_map!(ref) end
  end

  test "maps of strangers make no atoms and no trouble" do
    ref = named()
    good = TensorRef.to_map!(ref)
    # Once to load code, once to count.
    refuse_strangers(good)

    # Processes of the emulator may make some atoms meanwhile, but not for ever. So other words are refused each time.
    eventually(fn ->
      atoms = :erlang.system_info(:atom_count)
      refuse_strangers(good)
      :erlang.system_info(:atom_count) == atoms
    end)
  end

  defp refuse_strangers(good) do
    nasty = [nil, true, -1, 1.5, "", "x", [], %{}, [[]], <<255>>, "a\0b", 0x1_0000_0000_0000_0000]

    for key <- Map.keys(good), value <- nasty do
      case TensorRef.from_map(Map.put(good, key, value)) do
        # A description may have an empty token or shape, but cannot be opened.
        {:ok, back} -> assert {:error, %Error{}} = ZeroCopy.open(back)
        {:error, error} -> assert error.type == :protocol
      end
    end

    for key <- Map.keys(good) -- ["token"] do
      assert {:error, %Error{type: :protocol}} = TensorRef.from_map(Map.delete(good, key))
    end

    assert {:ok, %TensorRef{token: nil}} = TensorRef.from_map(Map.delete(good, "token"))

    for change <- [
          %{"dtype" => "never_an_atom_#{System.unique_integer()}"},
          %{"shape" => [1 | 2]},
          %{"token" => String.duplicate("a", 100_000)}
        ] do
      assert {:error, %Error{type: :protocol}} = TensorRef.from_map(Map.merge(good, change)),
             inspect(change)
    end

    for other <- [%{}, [], nil, "x", 5, %{v: 1}] do
      assert {:error, %Error{type: :protocol}} = TensorRef.from_map(other)
    end
  end

  test "JSON of strangers is refused" do
    ref = named()
    {:ok, good} = TensorRef.to_json(ref)

    for bad <-
          ["", "{", "[]", "null", good <> "x", "[" <> good <> "]", <<255>>, :x, 5, nil] ++
            [String.duplicate("[", 100_000), String.replace(good, "float32", "float31")] ++
            [String.replace(good, ~s("v":1), ~s("v":1,"v":1))] do
      assert {:error, %Error{type: :protocol}} = TensorRef.from_json(bad)
    end
  end

  test "a ref whose numbers do not fit its region opens nothing" do
    ref = named()
    live = stat(:regions_live)

    for change <- [
          %{shape: :x},
          %{id: "0000000000000000x"},
          %{id: 7},
          %{token: 5},
          %{device: :mps},
          %{dtype: "float32"}
        ] do
      assert {:error, %Error{type: type}} = ref |> Map.merge(change) |> ZeroCopy.open()
      assert type in [:protocol, :invalid], "#{inspect(change)}: #{type}"
    end

    assert stat(:regions_live) == live
  end
end
