# SPDX-License-Identifier: MIT
defmodule Tmesh.NxTest do
  use Tmesh.Case

  # The compiler need not know what is not there.
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
            ref |> TensorRef.to_map() |> TensorRef.from_map!() |> ZeroCopy.open!(),
            ref |> TensorRef.to_json!() |> TensorRef.from_json!() |> ZeroCopy.open!(),
            ZeroCopy.open!(ref)
          ] do
        tensor = Tmesh.Nx.to_nx!(travelled)
        assert {Nx.names(tensor), Nx.shape(tensor)} == {[:batch, nil], {2, 3}}
      end

      assert [:rows, :columns] = ref |> Tmesh.Nx.to_nx!(names: [:rows, :columns]) |> Nx.names()

      for names <- [[:rows], :rows, [1, 2]] do
        assert {:error, %Error{type: :invalid}} = Tmesh.Nx.to_nx(ref, names: names)
      end

      assert %TensorRef{names: nil} = Tmesh.Nx.from_nx!(Nx.tensor("ab", {:u, 8}, {2}))
    end

    test "names from elsewhere make no atoms, and must be names" do
      map = "ab" |> ZeroCopy.from_binary!([2], :uint8) |> TensorRef.to_map()
      foreign = "an axis of #{System.unique_integer()}"
      {:ok, ref} = map |> Map.put("names", [foreign]) |> TensorRef.from_map()
      ref = ZeroCopy.open!(ref)
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

    test "a vectorized tensor is refused, and says what to do" do
      tensor = Nx.tensor("abcdef", {:u, 8}, {2, 3}) |> Nx.vectorize(:users)
      assert {:error, %Error{type: :unsupported, message: message}} = Tmesh.Nx.from_nx(tensor)
      assert message =~ "users" and message =~ "devectorize"
      ref = tensor |> Nx.devectorize() |> Tmesh.Nx.from_nx!()
      assert %TensorRef{shape: [2, 3], names: ["users", nil]} = ref
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
      other = Nx.tensor(<<0>>, {:s, 2}, {4})

      assert {:error, %Error{type: :unsupported, message: "tmesh has no {:s, 2}"}} =
               Tmesh.Nx.from_nx(other)

      assert {:error, %Error{type: :invalid}} = Tmesh.Nx.from_nx([1, 2])
      tensor = Nx.tensor("ab", {:u, 8}, {2})
      assert {:error, %Error{type: :invalid}} = Tmesh.Nx.from_nx(tensor, colour: 1)

      released = ZeroCopy.from_binary!("ab", [2], :uint8)
      :ok = ZeroCopy.release(released)
      assert {:error, %Error{type: :closed}} = Tmesh.Nx.to_nx(released)
    end
  end
end
