# SPDX-License-Identifier: MIT
defmodule Tmesh.NxTest do
  use Tmesh.Case, backend: :any

  # The compiler must not warn of the missing Nx.
  @compile {:no_warn_undefined, Nx}

  defp with_nx(_context) do
    Code.require_file("support/nx.exs", __DIR__)
    on_exit(&without_nx/0)
  end

  defp without_nx do
    for module <- [Nx, Nx.Tensor, Nx.BinaryBackend] do
      :code.purge(module)
      :code.delete(module)
    end

    Code.unrequire_files([Path.expand("support/nx.exs", __DIR__)])
  end

  test "without Nx both say so" do
    without_nx()
    ref = ZeroCopy.from_binary!("abcd", [4], :uint8)
    assert {:error, %Error{type: :unsupported, message: message}} = Tmesh.Nx.to_nx(ref)
    assert message =~ "Nx is not loaded"
    assert {:error, %Error{type: :unsupported}} = Tmesh.Nx.from_nx(%{__struct__: Nx.Tensor})
  end

  describe "with Nx (a stand-in)" do
    setup :with_nx

    test "a sealed tensor is read in place" do
      data = for x <- 1..2000, into: <<>>, do: <<x * 1.0::float-32-native>>
      ref = ZeroCopy.from_binary!(data, [20, 100], :float32)
      copied = stat(:bytes_copied)
      assert {:ok, tensor} = Tmesh.Nx.to_nx(ref, copy: false)
      assert {Nx.type(tensor), Nx.shape(tensor)} == {{:f, 32}, {20, 100}}
      assert stat(:bytes_copied) == copied
      assert :binary.referenced_byte_size(Nx.to_binary(tensor)) < byte_size(data)
      :ok = ZeroCopy.release(ref)
      assert Nx.to_binary(tensor) == data
    end

    test "one that is not sealed is copied, or refused" do
      ref = ZeroCopy.from_binary!("abcd", [4], :uint8, seal: false)
      copied = stat(:bytes_copied)
      assert {:ok, tensor} = Tmesh.Nx.to_nx(ref)
      assert Nx.to_binary(tensor) == "abcd" and stat(:bytes_copied) == copied + 4
      assert {:error, %Error{type: :unsupported}} = Tmesh.Nx.to_nx(ref, copy: false)
    end

    test "every type there and back" do
      for dtype <- TensorRef.dtypes() do
        ref = ZeroCopy.allocate!([2, 2], dtype)

        case Tmesh.Nx.to_nx(ref) do
          {:ok, tensor} ->
            assert {:ok, same} = Tmesh.Nx.from_nx(tensor, label: "back")
            back = if dtype == :bool, do: :uint8, else: dtype
            assert %{dtype: ^back, shape: [2, 2]} = same
            assert ZeroCopy.to_binary!(same) == ZeroCopy.to_binary!(ref)
            assert %{sealed: true, label: "back"} = ZeroCopy.info!(same)

          {:error, %Error{type: :unsupported, message: message}} ->
            assert dtype in [:int4, :uint4, :float4_e2m1fn]
            assert message =~ "#{dtype}"
        end
      end
    end

    test "names of axes survive, here and on the way" do
      named = Nx.reshape(Nx.tensor("abcdef", {:u, 8}, {6}), {2, 3}, names: [:batch, nil])
      ref = Tmesh.Nx.from_nx!(named)
      assert ref.names == ["batch", nil]

      for travelled <- [
            ref,
            ref |> TensorRef.to_map!() |> TensorRef.from_map!() |> ZeroCopy.open!(),
            ref |> TensorRef.to_json!() |> TensorRef.from_json!() |> ZeroCopy.open!(),
            ZeroCopy.open!(ref)
          ] do
        tensor = Tmesh.Nx.to_nx!(travelled)
        assert {Nx.names(tensor), Nx.shape(tensor)} == {[:batch, nil], {2, 3}}
      end

      assert [:rows, :columns] = ref |> Tmesh.Nx.to_nx!(names: [:rows, :columns]) |> Nx.names()

      for names <- [[:rows], :rows, [1, 2], [:rows, :rows]] do
        assert {:error, %Error{type: :invalid}} = Tmesh.Nx.to_nx(ref, names: names)
      end

      assert %TensorRef{names: nil} = Tmesh.Nx.from_nx!(Nx.tensor("ab", {:u, 8}, {2}))
    end

    test "names from elsewhere make no atoms, and must be names" do
      original = ZeroCopy.from_binary!("ab", [2], :uint8)
      map = TensorRef.to_map!(original)
      foreign = "an axis of #{System.unique_integer()}"
      {:ok, ref} = map |> Map.put("names", [foreign]) |> TensorRef.from_map()
      ref = ZeroCopy.open!(ref)
      ZeroCopy.release!(original)
      assert {:error, %Error{type: :unsupported, message: message}} = Tmesh.Nx.to_nx(ref)
      assert message =~ foreign
      assert {:ok, _tensor} = Tmesh.Nx.to_nx(ref, names: [nil])

      for names <- [["a", "b"], "a", [1], [<<0xFF>>], %{}, []] do
        assert {:error, %Error{type: :protocol}} =
                 map |> Map.put("names", names) |> TensorRef.from_map()
      end

      long = %TensorRef{ref | names: [String.duplicate("x", 768)]}
      assert {:error, %Error{type: :invalid}} = TensorRef.to_json(long)
    end

    test "vectorized axes survive, here and on the way" do
      named =
        Nx.reshape(Nx.tensor("abcdefghijkl", {:u, 8}, {12}), {2, 3, 2}, names: [nil, nil, :users])

      tensor = Nx.vectorize(named, [:users, :heads])
      ref = Tmesh.Nx.from_nx!(tensor)
      assert %{shape: [2, 3, 2], vectorized: ["users", "heads"]} = ref
      assert ref.names == ["users", "heads", "users"]

      for travelled <- [
            ref,
            ref |> TensorRef.to_map!() |> TensorRef.from_map!() |> ZeroCopy.open!(),
            ref |> TensorRef.to_json!() |> TensorRef.from_json!() |> ZeroCopy.open!(),
            ZeroCopy.open!(ref)
          ] do
        assert Tmesh.Nx.to_nx!(travelled) == tensor
      end

      assert %{vectorized_axes: [x: 2], names: [:y, :z]} =
               Tmesh.Nx.to_nx!(ref, vectorized: [:x], names: [:y, :z])

      assert %{vectorized_axes: [], shape: {2, 3, 2}, names: [nil, nil, nil]} =
               Tmesh.Nx.to_nx!(ref, vectorized: [], names: [nil, nil, nil])

      for vectorized <- [[:a, :a], [:a, :b, :c, :d], [nil], :a, [1]] do
        assert {:error, %Error{type: :invalid}} = Tmesh.Nx.to_nx(ref, vectorized: vectorized)
      end

      assert {:error, %Error{type: :invalid}} = Tmesh.Nx.to_nx(ref, vectorized: [])
      assert {:error, %Error{type: :invalid}} = Tmesh.Nx.to_nx(ref, names: [:one, :for, :each])
    end

    test "of a vectorized tensor with the rest a scalar" do
      tensor = Nx.tensor("ab", {:u, 8}, {2}) |> Nx.vectorize(:users)
      assert tensor |> Tmesh.Nx.from_nx!() |> Tmesh.Nx.to_nx!() == tensor
      assert %TensorRef{vectorized: nil} = Tmesh.Nx.from_nx!(Nx.devectorize(tensor))
    end

    test "vectorized axes from elsewhere must be names of first axes" do
      original = ZeroCopy.from_binary!("ab", [2, 1], :uint8)
      map = TensorRef.to_map!(original)
      foreign = "an axis of #{System.unique_integer()}"
      ref = map |> Map.put("vectorized", [foreign]) |> TensorRef.from_map!() |> ZeroCopy.open!()
      ZeroCopy.release!(original)
      assert {:error, %Error{type: :unsupported, message: message}} = Tmesh.Nx.to_nx(ref)
      assert message =~ foreign and message =~ "vectorized:"

      for wrong <- [["a", "b", "c"], ["a", "a"], "a", [1], [nil], [<<0xFF>>], %{}, []] do
        assert {:error, %Error{type: :protocol}} =
                 map |> Map.put("vectorized", wrong) |> TensorRef.from_map()
      end

      long = %TensorRef{ref | vectorized: [String.duplicate("x", 768)]}
      assert {:error, %Error{type: :invalid}} = TensorRef.to_json(long)
    end

    test "a type that this Nx has not" do
      :code.purge(Nx)
      :code.delete(Nx)

      defmodule Elixir.Nx do
        def from_binary(_binary, type),
          do: raise(ArgumentError, "invalid numerical type: #{inspect(type)}")
      end

      ref = ZeroCopy.allocate!([1], :float8_e4m3fn)
      assert {:error, %Error{type: :unsupported, message: message}} = Tmesh.Nx.to_nx(ref)
      assert message =~ "f8_e4m3fn"
    end

    test "a scalar" do
      ref = ZeroCopy.from_binary!(<<7::64-native>>, [], :int64)
      assert {:ok, tensor} = Tmesh.Nx.to_nx(ref)
      assert Nx.shape(tensor) == {}
      assert {:ok, %{shape: [], dtype: :int64}} = Tmesh.Nx.from_nx(tensor)
    end

    test "what Nx or tmesh has not" do
      empty = ZeroCopy.allocate!([0, 3], :int8)
      assert {:error, %Error{type: :unsupported}} = Tmesh.Nx.to_nx(empty)

      for {kind, bits} = type <- [s: 2, u: 4] do
        few = Nx.tensor(<<0>>, type, {div(8, bits)})
        assert {:error, %Error{type: :unsupported, message: message}} = Tmesh.Nx.from_nx(few)
        assert message =~ "as_type(tensor, {:#{kind}, 8})"
      end

      other = Nx.tensor(<<0>>, {:f8_e4m3, 8}, {1})
      assert {:error, %Error{type: :unsupported, message: message}} = Tmesh.Nx.from_nx(other)
      assert message =~ "{:f8_e4m3, 8}" and message =~ "as_type"

      assert {:error, %Error{type: :invalid}} = Tmesh.Nx.from_nx([1, 2])
      tensor = Nx.tensor("ab", {:u, 8}, {2})
      assert {:error, %Error{type: :invalid}} = Tmesh.Nx.from_nx(tensor, colour: 1)

      released = ZeroCopy.from_binary!("ab", [2], :uint8)
      :ok = ZeroCopy.release(released)
      assert {:error, %Error{type: :closed}} = Tmesh.Nx.to_nx(released)
    end
  end
end
