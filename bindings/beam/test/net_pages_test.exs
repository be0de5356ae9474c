# SPDX-License-Identifier: MIT
defmodule Tmesh.NetPagesTest do
  # Without a net, on one node. tests/net/test_machines.py has pages between machines,
  # tests/sim/sim_net_pages.py the protocol as a model.
  use Tmesh.Case

  alias Tmesh.{PagePool, Pages}
  alias Tmesh.Net.Pages.{Follower, Log}
  alias Tmesh.Pages.Sequence

  @shape [page_bytes: 4096, page_tokens: 16, slab_pages: 16, max_pages: 64]

  defp pool(shape \\ @shape) do
    pool = PagePool.create!(shape)
    {pool, Pages.open!(PagePool.tenant!(pool))}
  end

  defp sequence(pages, blocks) do
    sequence = Pages.sequence!(pages)
    :ok = Sequence.append(sequence, blocks * 16)
    for block <- 0..(blocks - 1), do: :ok = Sequence.write(sequence, block, 0, content(block))
    sequence
  end

  defp content(block), do: :binary.copy(<<block>>, 4096)

  # As Tmesh.Net.Pages.publish/4, without a name.
  defp log(pages, sequence, tokens) do
    shape = pages |> Pages.info!() |> Map.take([:page_bytes, :page_tokens, :devices, :heads])
    {:ok, log} = GenServer.start_link(Log, {shape, self()})
    {:ok, 1} = Tmesh.Net.Pages.update(log, sequence, tokens: tokens)
    log
  end

  defp held(pool, pages) do
    :ok = Pages.trim(pages)
    PagePool.info!(pool).held
  end

  test "what the tenant has cached is not fetched; updates come whole, and the home's end leaves them" do
    {pool, pages} = pool()
    sequence = sequence(pages, 4)
    tokens = Enum.to_list(1..64)

    {hashes, _last} =
      tokens
      |> Enum.chunk_every(16)
      |> Enum.map_reduce(nil, fn block, parent ->
        hash = Pages.hash!(pages, block, parent)
        {hash, hash}
      end)

    :ok = Sequence.cache(sequence, hashes)
    log = log(pages, sequence, tokens)
    {:ok, follower} = Tmesh.Net.Pages.follow(log, pages)
    {:ok, copy} = Tmesh.Net.Pages.sequence(follower)
    for block <- 0..3, do: assert(Sequence.read!(copy, block) == content(block))

    # One's own: neither end sees it.
    :ok = Sequence.append(copy, 16)
    :ok = Sequence.write(copy, 0, 0, "mine")
    assert Sequence.read!(sequence, 0) == content(0)

    :ok = Sequence.truncate(sequence, 32)
    {:ok, 2} = Tmesh.Net.Pages.update(log, sequence, tokens: Enum.take(tokens, 32))
    {:ok, shorter} = Tmesh.Net.Pages.sequence(follower, 2)
    assert Sequence.tokens!(shorter) == 32

    assert {:ok, %{number: 2, blocks: 2, fetched: 0, had: 6, resyncs: 0, error: nil}} =
             Tmesh.Net.Pages.info(follower)

    assert {:error, %Error{type: :timeout}} = Tmesh.Net.Pages.sequence(follower, 3, 10)
    waits = Task.async(fn -> Tmesh.Net.Pages.sequence(follower, 3) end)
    eventually(fn -> :sys.get_state(follower).waiting != [] end, 600)
    :ok = Tmesh.Net.Pages.close(log)
    assert {:error, %Error{type: :gone}} = Task.await(waits, 60_000)
    assert {:error, %Error{type: :gone}} = Tmesh.Net.Pages.sequence(follower, 3)
    {:ok, last} = Tmesh.Net.Pages.sequence(follower, 2)
    assert Sequence.read!(last, 1) == content(1)
    for one <- [sequence, copy, shorter, last], do: Sequence.release(one)
    :ok = Tmesh.Net.Pages.close(follower)
    assert {:error, %Error{type: :closed}} = Tmesh.Net.Pages.sequence(follower)
    eventually(fn -> held(pool, pages) == 0 end, 600)
    PagePool.close(pool)
  end

  test "pages that cannot be had are an error, and nothing half is left" do
    {at_home, pages} = pool()
    {here, other} = pool()
    sequence = sequence(pages, 3)
    log = log(pages, sequence, nil)
    {:ok, follower} = Tmesh.Net.Pages.follow(log, other)
    assert {:error, %Error{type: :not_started}} = Tmesh.Net.Pages.sequence(follower)
    assert {:ok, %{number: 0, resyncs: 2, error: %Error{}}} = Tmesh.Net.Pages.info(follower)
    eventually(fn -> held(here, other) == 0 end, 600)
    # The log holds nothing for it any more.
    eventually(fn -> :sys.get_state(log).followers == %{} end, 600)
    Sequence.release(sequence)
    :ok = Tmesh.Net.Pages.close(log)
    eventually(fn -> held(at_home, pages) == 0 end, 600)

    # Fewer pages than the sequence has.
    {small, few} = pool(Keyword.merge(@shape, slab_pages: 2, max_pages: 2))
    sequence = sequence(pages, 3)
    log = log(pages, sequence, nil)
    {:ok, follower} = Tmesh.Net.Pages.follow(log, few)
    assert {:error, %Error{type: :limit_exceeded}} = Tmesh.Net.Pages.sequence(follower)
    eventually(fn -> held(small, few) == 0 end, 600)
    Enum.each([at_home, here, small], &PagePool.close/1)
  end

  test "an update does not wait for a net that stands still" do
    {pool, pages} = pool()
    sequence = sequence(pages, 2)
    log = log(pages, sequence, nil)
    # It answers offers, and nothing else.
    net = spawn_link(&offers/0)
    Process.register(net, Tmesh.Net)
    say = &send(log, {:tmesh_pages, 1, &1})
    say.({:follow, self(), 1, :sys.get_state(log).shape})
    assert_receive {:tmesh_pages, 1, {:followed, 1, :ok}}
    say.({:next, self(), 0})
    assert_receive {:tmesh_pages, 1, {:record, %{number: 1}}}
    say.({:pages, self(), self(), 1, 1, [0, 1]})
    assert_receive {:tmesh_pages, 1, {:offer, 1, {:ok, _offer}}}
    say.({:done, self()})
    assert {:ok, 2} = Tmesh.Net.Pages.update(log, sequence)
    :ok = Tmesh.Net.Pages.close(log)
    Process.unlink(net)
    Process.exit(net, :kill)
    PagePool.close(pool)
  end

  defp offers do
    receive do
      {:"$gen_call", from, :began} ->
        GenServer.reply(from, :ok)

      {:"$gen_call", from, {:own, _secret, {:offer, _token}}} ->
        GenServer.reply(from, {:ok, %{"offer" => "1", "checksum" => "2", "region_bytes" => 3}})

      _other ->
        :nothing
    end

    offers()
  end

  test "bad arguments, other shapes, processes that publish nothing" do
    {pool, pages} = pool()
    {_other_pool, other} = pool(Keyword.put(@shape, :page_bytes, 8192))
    sequence = sequence(pages, 2)
    log = log(pages, sequence, nil)
    assert {:error, %Error{type: :invalid, message: why}} = Tmesh.Net.Pages.follow(log, other)
    assert why =~ "8192"

    for tokens <- [[1], Enum.to_list(1..31) ++ [:a], Enum.to_list(1..31) ++ [0x1_0000_0000], 5],
        do:
          assert(
            {:error, %Error{type: :invalid}} = Tmesh.Net.Pages.update(log, sequence, tokens: tokens)
          )

    assert {:error, %Error{type: :invalid, message: why}} = Tmesh.Net.Pages.info(log)
    assert why =~ "Tmesh.Net.Pages.follow/3"
    {:ok, follows} = Tmesh.Net.Pages.follow(log, pages)

    assert {:error, %Error{type: :invalid, message: why}} =
             Tmesh.Net.Pages.update(follows, sequence)

    assert why =~ "Tmesh.Net.Pages.update/3"
    :ok = Tmesh.Net.Pages.close(follows)
    assert {:error, %Error{type: :invalid}} = Tmesh.Net.Pages.follow(log, pages, timeout: 0)
    assert {:error, %Error{type: :not_found}} = Tmesh.Net.Pages.follow("nobody", pages)
    assert {:error, %Error{type: :not_started}} = Tmesh.Net.Pages.publish("chat", pages, sequence)
    {:ok, stream} = Tmesh.Stream.start_link()
    assert {:error, %Error{type: :timeout}} = Tmesh.Net.Pages.follow(stream, pages, timeout: 50)
    {:ok, follower} = Tmesh.Stream.start_link(from: log)
    assert {:error, %Error{type: :invalid}} = Tmesh.Stream.pop_outfeed(follower, 60_000)
    gone = spawn(fn -> :ok end)
    assert {:error, %Error{type: :gone}} = Tmesh.Net.Pages.follow(gone, pages)
    send(log, {:tmesh_pages, 1, {:next, self(), 0}})
    send(log, {:tmesh_pages, 1, :garbage})
    assert {:ok, 2} = Tmesh.Net.Pages.update(log, sequence)
    PagePool.close(pool)
  end

  test "the log's records, and requests for pages that it has not" do
    {pool, pages} = pool()
    sequence = sequence(pages, 2)
    log = log(pages, sequence, nil)
    shape = :sys.get_state(log).shape
    ask = fn message -> send(log, {:tmesh_pages, 1, message}) end

    record = fn ->
      assert_receive {:tmesh_pages, 1, {:record, _record} = record}, 60_000
      record
    end

    number = make_ref()
    ask.({:follow, self(), number, shape})
    assert_receive {:tmesh_pages, 1, {:followed, ^number, :ok}}, 60_000
    ask.({:next, self(), 0})
    assert {:record, %{from: 0, number: 1, first: 0, pages: [1, 2], tokens: 32}} = record.()
    # What is asked for comes once there is something new.
    ask.({:next, self(), 1})
    :ok = Sequence.truncate(sequence, 0)
    {:ok, 2} = Tmesh.Net.Pages.update(log, sequence)
    assert {:record, %{from: 1, number: 2, first: 0, pages: []}} = record.()
    # Pages of the pool that come back are others; who begins anew gets all.
    ask.({:next, self(), 2})
    :ok = Sequence.append(sequence, 32)
    {:ok, 3} = Tmesh.Net.Pages.update(log, sequence)
    assert {:record, %{from: 2, number: 3, pages: [3, 4]}} = record.()
    ask.({:next, self(), 0})
    assert {:record, %{from: 0, number: 3, first: 0, pages: [3, 4], text: nil}} = record.()
    # Updates that nobody asked for are passed over.
    for number <- 4..6, do: {:ok, ^number} = Tmesh.Net.Pages.update(log, sequence)
    refute_received {:tmesh_pages, 1, _message}
    ask.({:next, self(), 3})
    assert {:record, %{from: 3, number: 6, first: 2, pages: []}} = record.()

    for {update, blocks, type} <- [
          {5, [0], :stale},
          {6, [2], :invalid},
          {6, [-1], :invalid},
          {6, [], :invalid},
          {6, :all, :invalid},
          {6, List.duplicate(0, 65), :invalid}
        ] do
      number = make_ref()
      ask.({:pages, self(), self(), number, update, blocks})
      assert_receive {:tmesh_pages, 1, {:offer, ^number, {:error, ^type, text}}}, 60_000
      assert type == :stale or text =~ "update 6 has blocks 0 to 1"
    end

    :ok = Tmesh.Net.Pages.close(log)
    PagePool.close(pool)
  end

  test "a record that is damaged or does not follow is refused" do
    shape = %{page_tokens: 16}
    whole = %{number: 4, pages: [1, 2, 3], text: :binary.copy(<<0>>, 40 * 4)}

    record = %{
      from: 4,
      number: 6,
      tokens: 48,
      first: 2,
      pages: [7],
      text: :binary.copy(<<1>>, 64),
      check: Log.check(6, 48, [1, 2, 7])
    }

    assert {:ok, %{number: 6, pages: [1, 2, 7], text: text}} =
             Follower.apply_record(whole, record, shape)

    assert byte_size(text) == 48 * 4

    for {name, value} <- [
          {:from, 3},
          {:number, 7},
          {:tokens, 49},
          {:tokens, -1},
          {:first, 1},
          {:first, 9},
          {:pages, [8]},
          {:pages, [:a]},
          {:pages, nil},
          {:text, <<>>},
          {:check, <<>>}
        ] do
      assert {:error, %Error{type: :protocol}} =
               Follower.apply_record(whole, Map.put(record, name, value), shape)
    end

    assert {:error, %Error{type: :protocol}} = Follower.apply_record(whole, %{}, shape)
  end
end
