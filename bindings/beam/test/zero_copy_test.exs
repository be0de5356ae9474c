# SPDX-License-Identifier: MIT
defmodule Tmesh.ZeroCopyTest do
  use Tmesh.Case
  import Bitwise

  doctest Tmesh
  doctest Tmesh.ZeroCopy
  doctest Tmesh.ZeroCopy.TensorRef

  @page 4096

  describe "from_binary/4" do
    test "keeps the bytes and describes them" do
      data = :crypto.strong_rand_bytes(24)
      assert {:ok, ref} = ZeroCopy.from_binary(data, [2, 3], :float32, label: "six floats")

      assert %TensorRef{shape: [2, 3], dtype: :float32, strides: [3, 1], offset: 0} = ref
      assert %TensorRef{byte_size: 24, device: :cpu} = ref
      assert %TensorRef{id: id, token: nil} = ref
      assert {:ok, %TensorRef{id: ^id, token: "tm1" <> _rest}} = ZeroCopy.grant(ref, :read)
      assert id =~ ~r/^[0-9a-f]{16}$/
      assert ZeroCopy.info!(ref).id == id
      assert ZeroCopy.to_binary(ref) == {:ok, data}
      assert %{label: "six floats", bytes: 24, rights: rights} = ZeroCopy.info!(ref)
      assert :read in rights
    end

    test "wants exactly the bytes of shape and dtype, as a binary" do
      for {binary, shape} <- [{"abc", [4]}, {"abcde", [4]}, {"", [1]}, {["abcd"], [4]}, {:x, [1]}] do
        assert {:error, %Error{type: :invalid, message: message}} =
                 ZeroCopy.from_binary(binary, shape, :uint8)

        assert message =~ "bytes"
      end

      assert {:error, %Error{type: :invalid}} = ZeroCopy.from_binary(<<1::7>>, [1], :uint8)
    end

    test "takes a sub-binary, aligned to a byte or not" do
      whole = :binary.copy("0123456789", 100)

      assert ZeroCopy.from_binary!(binary_part(whole, 3, 500), [500], :uint8) |> bytes() ==
               binary_part(whole, 3, 500)

      <<_::3, odd::binary-size(100), _rest::bitstring>> = whole
      assert ZeroCopy.from_binary!(odd, [100], :uint8) |> bytes() == odd
    end
  end

  describe "allocate/3" do
    test "refuses shapes that are none" do
      for shape <-
            [[1 | 2], :a, [1.0], [0x8000_0000_0000_0000], "ab", List.duplicate(1, 9)] ++
              [[:a], %{}, nil] do
        assert {:error, %Error{type: type, message: message}} = ZeroCopy.allocate(shape, :float64)
        assert type in [:invalid, :limit_exceeded], "#{inspect(shape)}: #{type}"
        assert byte_size(message) > 10
      end
    end

    test "gives binaries that any match may begin and end with" do
      # Whole pages, so that nothing of the region lies before or after them.
      data = for(b <- 1..4096, into: <<>>, do: <<rem(b, 251)>>)

      for bits <- 1..72 do
        binary = [4096] |> then(&ZeroCopy.from_binary!(data, &1, :uint8)) |> ZeroCopy.to_binary!()
        skipped = 4096 * 8 - bits
        <<first::size(bits), _rest::bitstring>> = data
        assert <<^first::size(bits), _rest::bitstring>> = binary
        <<_rest::size(skipped), last::size(bits)>> = data
        assert <<_rest::size(skipped), ^last::size(bits)>> = binary
      end

      binary = [4096] |> then(&ZeroCopy.from_binary!(data, &1, :uint8)) |> ZeroCopy.to_binary!()
      assert <<1::24, _rest::binary>> = <<0, 0, 1, binary::binary>>
      assert <<a::24, b::48-little, c::signed-40, _rest::binary>> = binary
      assert {a, b, c} == {0x010203, 0x090807060504, 0x0A0B0C0D0E}
      assert <<b::48-little, _rest::binary>> = binary
      assert b == 0x060504030201
      assert <<d::56, _rest::binary>> = binary
      assert d == 0x01020304050607
      assert <<_skip::binary-size(4090), e::48>> = binary
      assert <<e::48>> == binary_part(data, 4090, 6)
    end

    test "refuses unknown dtypes, options and devices" do
      for dtype <- [:float31, "float32", nil, 32, {:f, 31}] do
        assert {:error, %Error{type: :invalid, message: "unknown dtype" <> _}} =
                 ZeroCopy.allocate([1], dtype)
      end

      for opts <-
            [[colour: 1], [label: 5], [label: "a\0b"], [label: String.duplicate("x", 64)]] ++
              [[huge: 1], [mode: -1], [mode: :all], :x, [1], %{label: "x"}, [label: "a\nb"]] do
        assert {:error, %Error{type: :invalid}} = ZeroCopy.allocate([1], :uint8, opts),
               inspect(opts)
      end

      assert {:error, %Error{type: :unsupported}} =
               ZeroCopy.from_binary("a", [1], :uint8, device: {:cuda, 0})

      assert {:error, %Error{type: :mps_not_supported}} =
               ZeroCopy.allocate([1], :uint8, device: :mps)
    end
  end

  test "memory that was never handed out is reused, with nothing of its past in it" do
    if elem(Tmesh.backend(), 1) == :memfd do
      data = :binary.copy("secret", 100_000)
      ref = ZeroCopy.from_binary!(data, [600_000], :uint8, seal: false)
      :ok = ZeroCopy.release(ref)
      hits = stat(:region_pool_hits)
      again = ZeroCopy.allocate!([600_000], :uint8)
      assert stat(:region_pool_hits) == hits + 1
      assert bytes(again) == :binary.copy(<<0>>, 600_000)
    end
  end

  test "trim gives back what the pool keeps" do
    if elem(Tmesh.backend(), 1) == :memfd do
      ref = ZeroCopy.allocate!([600_000], :uint8)
      :ok = ZeroCopy.release(ref)
      kept = stat(:region_pool_bytes)
      assert kept >= 600_000
      assert Tmesh.trim() == {:ok, kept}
      assert stat(:region_pool_bytes) == 0
      assert Tmesh.trim!() == 0
    end
  end

  describe "write/3" do
    test "writes inside the tensor only" do
      ref = ZeroCopy.allocate!([4], :uint8)
      assert :ok = ZeroCopy.write(ref, 4, "")
      assert :ok = ZeroCopy.write(ref, 0, "wxyz")

      for {offset, data} <-
            [{1, "abcd"}, {5, ""}, {0xFFFF_FFFF_FFFF_FFFF, "a"}, {-1, "a"}] ++
              [{1 <<< 70, "a"}, {0, ["a"]}, {:a, "a"}, {0, <<1::3>>}] do
        assert {:error, %Error{type: :invalid}} = ZeroCopy.write(ref, offset, data)
      end

      assert bytes(ref) == "wxyz"
    end

    test "leaves a tensor's neighbours in its region alone" do
      {:ok, arena} = Tmesh.Arena.create()
      [one, two] = for text <- ~w(one two), do: from_text(text, arena: arena)
      assert {one.offset, two.offset} == {0, 256}

      for {offset, data} <- [{256, "x"}, {4, ""}, {3, "x"}, {2, "xy"}] do
        assert {:error, %Error{type: :invalid}} = ZeroCopy.write(one, offset, data)
      end

      assert {bytes(one), bytes(two)} == {"one", "two"}
    end

    defp from_text(text, opts), do: ZeroCopy.from_binary!(text, [byte_size(text)], :uint8, opts)
  end

  describe "to_binary/2" do
    test "points into sealed regions, and copies others" do
      ref = ZeroCopy.allocate!([@page], :uint8)
      copied = stat(:bytes_copied)
      before = ZeroCopy.to_binary!(ref)
      assert stat(:bytes_copied) == copied + @page

      assert {:error, %Error{type: :unsupported, message: message}} =
               ZeroCopy.to_binary(ref, copy: false)

      assert message =~ "copy"

      :ok = ZeroCopy.write(ref, 0, "x")
      :ok = ZeroCopy.seal(ref)
      copied = stat(:bytes_copied)
      assert <<"x", _rest::binary>> = ZeroCopy.to_binary!(ref, copy: false)
      assert stat(:bytes_copied) == copied
      # The earlier binary was a copy, and did not change.
      assert before == :binary.copy(<<0>>, @page)
    end

    test "does not point into elements with gaps between them" do
      base = ZeroCopy.from_binary!("abcdef", [6], :uint8)
      view = %{base | shape: [3], strides: [2], byte_size: 3} |> ZeroCopy.open!()
      assert {:error, %Error{type: :unsupported}} = ZeroCopy.to_binary(view, copy: false)
      assert {:error, %Error{type: :unsupported}} = ZeroCopy.write(view, 0, "x")
    end

    test "bounds what one call copies" do
      # A broadcast view describes more elements than any memory has.
      base = ZeroCopy.from_binary!("a", [1], :uint8)
      n = 1 <<< 50
      view = %{base | shape: [n], strides: [0], byte_size: n} |> ZeroCopy.open!()
      assert {:error, %Error{type: :limit_exceeded}} = ZeroCopy.to_binary(view)

      # A few elements count as few, however far apart.
      on_exit(fn -> Application.delete_env(:tmesh, :zero_copy) end)
      base = ZeroCopy.allocate!([3_000_000], :uint8)
      ends = %{base | shape: [2], strides: [2_999_999], byte_size: 2} |> ZeroCopy.open!()
      assert ZeroCopy.to_binary(ends) == {:ok, <<0, 0>>}
      Application.put_env(:tmesh, :zero_copy, max_shared_memory_mb: 1)
      assert ZeroCopy.to_binary(ends) == {:ok, <<0, 0>>}
    end

    test "points into sealed memory only when all of it is there" do
      # Pages that were never written are made on first touch, which can fail.
      bytes = 16 * 1_048_576
      {:ok, backend} = Tmesh.backend()
      ref = sparse(bytes, 5 * @page)
      binary = ZeroCopy.to_binary!(ref, copy: false)
      assert backend == :kernel or memfd_bytes(ref) >= bytes
      assert binary == <<0::size(5 * @page)-unit(8), "x", 0::size(bytes - 5 * @page - 1)-unit(8)>>
    end

    test "fills no more of sealed memory than it may" do
      on_exit(fn -> Application.delete_env(:tmesh, :zero_copy) end)
      files = open_files()
      ref = sparse(16 * 1_048_576, 0)
      Application.put_env(:tmesh, :zero_copy, max_shared_memory_mb: 8)

      # The module's regions have no holes.
      if Tmesh.backend() == {:ok, :memfd},
        do: assert({:error, %Error{type: :limit_exceeded}} = ZeroCopy.to_binary(ref, copy: false)),
        else: assert({:ok, _binary} = ZeroCopy.to_binary(ref, copy: false))

      Application.put_env(:tmesh, :zero_copy, max_shared_memory_mb: 64)
      assert {:ok, <<"x", _zeros::binary>>} = ZeroCopy.to_binary(ref, copy: false)
      :ok = ZeroCopy.release(ref)
      eventually(fn -> :erlang.garbage_collect() && open_files() <= files end)
    end

    # Make sealed memory of which little was ever written.
    defp sparse(bytes, at) do
      ref = ZeroCopy.allocate!([bytes], :uint8)
      :ok = ZeroCopy.write(ref, at, "x")
      :ok = ZeroCopy.seal(ref)
      ref
    end

    test "opens a ref that is only a description, for the call" do
      ref = ZeroCopy.from_binary!("abc", [3], :uint8)
      {:ok, description} = ref |> TensorRef.to_map!() |> TensorRef.from_map()
      live = stat(:regions_live)
      assert ZeroCopy.to_binary(description) == {:ok, "abc"}
      eventually(fn -> :erlang.garbage_collect() && stat(:regions_live) == live end)
      # Used until here: an unused variable holds nothing.
      :ok = ZeroCopy.release(ref)
    end

    test "refuses options it does not know" do
      ref = ZeroCopy.allocate!([1], :uint8)

      for opts <- [[copies: 1], [copy: 1], :x] do
        assert {:error, %Error{type: :invalid}} = ZeroCopy.to_binary(ref, opts)
      end
    end
  end

  describe "open/2" do
    test "refuses options it does not know" do
      ref = ZeroCopy.allocate!([1], :uint8)

      for opts <- [[write: true], [writable: 1], :x] do
        assert {:error, %Error{type: :invalid}} = ZeroCopy.open(ref, opts)
      end

      assert {:error, %Error{type: :invalid}} = ZeroCopy.grant(ref, :manage)
    end
  end

  test "bang variants raise the error" do
    assert_raise Error, ~r/dtype/, fn -> ZeroCopy.allocate!([1], :float31) end
    assert_raise Error, fn -> ZeroCopy.from_binary!("a", [2], :uint8) end
    closed = %{ZeroCopy.allocate!([1], :uint8) | handle: nil, token: "tm1m-nonsense"}
    assert_raise Error, fn -> ZeroCopy.open!(closed) end
    assert_raise Error, fn -> ZeroCopy.to_binary!(closed) end
    assert_raise Error, fn -> ZeroCopy.write!(closed, 0, "a") end
    assert_raise Error, fn -> ZeroCopy.seal!(closed) end
    assert_raise Error, fn -> ZeroCopy.grant!(closed, :read) end
    assert_raise Error, fn -> ZeroCopy.info!(closed) end
    assert_raise Error, fn -> ZeroCopy.release!(closed) end
  end

  test "huge pages are tried where that was asked for" do
    assert {:ok, ref} = ZeroCopy.from_binary("abc", [3], :uint8, huge: :try)
    assert bytes(ref) == "abc"
    assert %{huge_bytes: n} = ZeroCopy.info!(ref)
    assert n >= 0

    case ZeroCopy.allocate([3], :uint8, huge: true) do
      {:ok, ref} -> assert ZeroCopy.info!(ref).huge_bytes >= 2_097_152
      {:error, error} -> assert error.type in [:no_memory, :unsupported]
    end
  end

  # Return the memory of a memfd region, by the name of its file.
  defp memfd_bytes(ref) do
    %{id: id} = ZeroCopy.grant!(ref, :read)

    for name <- File.ls!("/proc/self/fd"),
        path = "/proc/self/fd/" <> name,
        {:ok, target} <- [File.read_link(path)],
        target =~ id,
        reduce: 0 do
      most ->
        {blocks, 0} = System.cmd("stat", ["-Lc", "%b", "/proc/#{System.pid()}/fd/" <> name])
        max(most, 512 * String.to_integer(String.trim(blocks)))
    end
  end

  defp bytes(ref), do: ZeroCopy.to_binary!(ref)
end
