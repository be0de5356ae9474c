# SPDX-License-Identifier: MIT
defmodule Tmesh.PagesTest do
  use Tmesh.Case

  import Bitwise

  alias Tmesh.{Bundle, PagePool, Pages, Pages.Sequence}

  doctest Pages

  @bytes 4096
  @tokens 16

  setup do
    pool = PagePool.create!(page_bytes: @bytes, page_tokens: @tokens, slab_pages: 16, max_pages: 64)
    token = PagePool.tenant!(pool)
    pages = Pages.open!(token)
    # ExUnit has the context for longer than the test takes.
    on_exit(fn -> Pages.close(pages) && PagePool.close(pool) end)
    %{pool: pool, token: token, pages: pages}
  end

  defp filled(pages, blocks) do
    sequence = Pages.sequence!(pages)
    :ok = Sequence.append(sequence, blocks * @tokens)
    for n <- 0..(blocks - 1), do: Sequence.write!(sequence, n, 0, :binary.copy(<<n + 1>>, @bytes))
    sequence
  end

  defp numbers({binary, [count], :int64}) do
    numbers = for <<n::signed-native-64 <- binary>>, do: n
    assert length(numbers) == count
    numbers
  end

  defp collected do
    for pid <- Process.list(), do: :erlang.garbage_collect(pid)
    Tmesh.Native.sweep()
  end

  test "pages of no power of two, and of more than 2 MiB" do
    for bytes <- [3 * 4096, 9 * 256 * 1024] do
      pool = PagePool.create!(page_bytes: bytes, page_tokens: 4, slab_pages: 2, max_pages: 4)
      pages = Pages.open!(PagePool.tenant!(pool))
      assert %{page_bytes: ^bytes} = Pages.info!(pages)
      sequence = Pages.sequence!(pages)
      :ok = Sequence.append(sequence, 9)
      Sequence.write!(sequence, 2, bytes - 4, "last")
      assert Sequence.read!(sequence, 2, offset: bytes - 4, bytes: 4) == "last"
      Pages.close(pages)
      PagePool.close(pool)
    end

    assert {:error, %Error{type: :invalid, message: message}} = PagePool.create(page_bytes: 4097)
    assert message =~ "multiple of this machine's pages"
  end

  test "a sequence", %{pool: pool, pages: pages} do
    assert {:ok, %{page_bytes: @bytes, page_tokens: @tokens, devices: 1}} = Pages.info(pages)
    assert %Sequence{} = sequence = Pages.sequence!(pages)
    assert {Sequence.tokens!(sequence), Sequence.block_table!(sequence)} == {0, []}
    assert Sequence.append(sequence, 40) == :ok
    table = Sequence.block_table!(sequence)
    assert length(Enum.uniq(table)) == 3
    places = for t <- 0..39, do: Enum.at(table, div(t, 16)) * 16 + rem(t, 16)
    assert numbers(Sequence.slot_mapping!(sequence)) == places
    assert numbers(Sequence.slot_mapping!(sequence, 38)) == Enum.drop(places, 38)
    assert numbers(Sequence.slot_mapping!(sequence, 3, 2)) == Enum.slice(places, 3, 2)
    assert numbers(Sequence.slot_mapping!(sequence, 40)) == []
    assert Sequence.truncate(sequence, 17) == :ok
    assert Sequence.block_table!(sequence) == Enum.take(table, 2)
    assert Sequence.release(sequence) == :ok
    assert Pages.head!(pages, 0) == {0, 0}
    assert Pages.trim(pages) == :ok
    # The pool gets a message, and takes them back in a thread of its own.
    eventually(fn -> match?(%{handles: 1, held: 0, died: 0}, PagePool.info!(pool)) end)
  end

  test "memory, by its bytes", %{pages: pages} do
    one = filled(pages, 2)
    assert Sequence.read!(one, 1) == :binary.copy(<<2>>, @bytes)
    assert Sequence.write(one, 1, 4090, "abcdef") == :ok
    assert Sequence.read!(one, 1, offset: 4088) == <<2, 2, "abcdef">>
    assert Sequence.read!(one, 1, offset: 4091, bytes: 2) == "bc"
    assert Sequence.read!(one, 1, offset: 4096) == ""
  end

  test "tables for a kernel, which go into a bundle as they are", %{pages: pages} do
    {one, two} = {filled(pages, 3), filled(pages, 1)}
    Sequence.append!(two, 1)
    {tables, lengths} = Pages.tables!([one, two, Pages.sequence!(pages)])
    assert {binary, [3, 3], :int32} = tables

    rows = for <<a::native-32, b::native-32, c::native-32 <- binary>>, do: [a, b, c]
    table = &Sequence.block_table!/1
    assert rows == [table.(one), table.(two) ++ [0], [0, 0, 0]]
    assert lengths == {<<48::native-32, 17::native-32, 0::native-32>>, [3], :int32}
    bundle = Bundle.put!(%{"block_tables" => tables, "seq_lens" => lengths})
    assert %{shape: [3, 3], dtype: :int32} = bundle["block_tables"]
    assert {{wide, [1, 5], :int32}, _} = Pages.tables!([one], 5)
    assert binary_part(wide, 12, 8) == <<0::64>>
    assert Pages.tables!([]) == {{"", [0, 0], :int32}, {"", [0], :int32}}

    for bad <- [2, -1, "5"],
        do: assert({:error, %Error{type: :invalid}} = Pages.tables([one], bad))

    assert {:error, %Error{type: :invalid}} = Pages.tables([one, :two])
  end

  test "collected objects give their pages back", %{pool: pool, token: token} do
    in_process(fn ->
      pages = Pages.open!(token)
      filled(pages, 3)
      assert %{held: 3} = Pages.info!(pages)
    end)

    eventually(fn -> collected() && match?(%{handles: 1, held: 0}, PagePool.info!(pool)) end)

    ended = in_process(fn -> PagePool.tenant!(PagePool.create!(page_bytes: @bytes)) end)

    eventually(fn ->
      collected() && match?({:error, %Error{type: :not_found}}, Pages.open(ended))
    end)
  end

  test "processes of this VM, with sequences of their own and with one", %{pages: pages} do
    shared = filled(pages, 1)

    tasks =
      for n <- 1..8 do
        Task.async(fn ->
          for _ <- 1..20 do
            own = filled(pages, 3)
            Sequence.write!(own, 2, 0, :binary.copy(<<n>>, @bytes))
            assert Sequence.read!(own, 2) == :binary.copy(<<n>>, @bytes)
            Sequence.release(own)
            Sequence.write!(shared, 0, n, <<n>>)
          end
        end)
      end

    Task.await_many(tasks, :infinity)
    assert Sequence.read!(shared, 0, offset: 1, bytes: 8) == <<1, 2, 3, 4, 5, 6, 7, 8>>
    assert %{held: 1} = Pages.info!(pages)
  end

  test "one piece, with the module", %{pages: pages} do
    sequence = filled(pages, 3)

    if Tmesh.backend() == {:ok, :kernel} do
      ref = Sequence.gather!(sequence)
      blocks = for n <- 1..3, into: <<>>, do: :binary.copy(<<n>>, @bytes)
      assert ZeroCopy.to_binary!(ref) == blocks
      ZeroCopy.release(ref)
    else
      assert {:error, %Error{type: :unsupported}} = Sequence.gather(sequence)
    end
  end

  test "what was closed says so", %{token: token} do
    pages = Pages.open!(token)
    sequence = filled(pages, 1)
    for _ <- 1..2, do: assert(Pages.close(pages) == :ok)

    for try <- [
          &Pages.trim/1,
          &Pages.head(&1, 0),
          &Pages.hash(&1, [1])
        ],
        do: assert({:error, %Error{type: :closed}} = try.(pages))

    :ok = Sequence.release(sequence)

    for try <- [
          &Sequence.slot_mapping/1,
          &Sequence.read(&1, 0),
          &Sequence.gather/1,
          &Pages.tables([&1])
        ],
        do: assert({:error, %Error{type: :closed}} = try.(sequence))
  end

  test "what is no pool, no number, no option", %{pages: pages} do
    for opts <- [
          [page_bytes: -1],
          [max_pages: 1 <<< 32],
          [page_tokens: "x"],
          [colour: 1],
          :opts
        ],
        do: assert({:error, %Error{type: :invalid}} = PagePool.create(opts))

    for token <- ["a\0b", nil, 7, String.duplicate("x", 500)] do
      assert {:error, %Error{type: :protocol}} = Pages.open(token)
      assert {:error, %Error{type: :protocol}} = Pages.open_sequence(pages, token)
      assert {:error, %Error{type: :protocol}} = Pages.unshare(pages, token)
    end

    sequence = filled(pages, 1)

    for try <- [
          fn -> Sequence.append(sequence, 1 <<< 40) end,
          fn -> Sequence.append(sequence, -1) end,
          fn -> Sequence.append(sequence, "x") end,
          fn -> Sequence.truncate(sequence, 17) end,
          fn -> Sequence.read(sequence, 1) end,
          fn -> Sequence.read(sequence, -1) end,
          fn -> Sequence.read(sequence, 0, device: 1) end,
          fn -> Sequence.read(sequence, 0, offset: 4097) end,
          fn -> Sequence.read(sequence, 0, offset: 1, bytes: 4096) end,
          fn -> Sequence.read(sequence, 0, offset: (1 <<< 64) - 1, bytes: 2) end,
          fn -> Sequence.read(sequence, 0, bytes: 1 <<< 70) end,
          fn -> Sequence.read(sequence, 0, colour: 1) end,
          fn -> Sequence.write(sequence, 0, 4096, "x") end,
          fn -> Sequence.write(sequence, 0, 0, :x) end,
          fn -> Sequence.write(sequence, 1, 0, "x") end,
          fn -> Sequence.slot_mapping(sequence, 0, 17) end,
          fn -> Sequence.slot_mapping(sequence, 10, 10) end,
          fn -> Sequence.slot_mapping(sequence, 0, 1 <<< 62) end,
          fn -> Sequence.slot_mapping(sequence, 17) end,
          fn -> Sequence.slot_mapping(sequence, -1) end,
          fn -> Sequence.cache(sequence, [String.duplicate("x", 15)]) end,
          fn -> Sequence.cache(sequence, "x") end,
          fn -> Pages.head(pages, 9) end,
          fn -> Pages.find(pages, ["x"]) end,
          fn -> Pages.find(pages, List.duplicate(<<0::128>>, 8193)) end,
          fn -> Pages.find(pages, List.duplicate(<<0::128>>, 40_000)) end,
          fn -> Pages.hash(pages, [1], "short") end,
          fn -> Pages.hash(pages, [1 <<< 31]) end,
          fn -> Pages.hash(pages, [1.5]) end
        ],
        do: assert({:error, %Error{type: :invalid}} = try.())

    assert Sequence.tokens!(sequence) == 16
    assert %{held: 1} = Pages.info!(pages)
    assert_raise Error, fn -> Sequence.read!(sequence, 1) end
  end
end
