# SPDX-License-Identifier: MIT
defmodule Tmesh.NetPagesTest do
  # Without a net, on one node. tests/net/test_machines.py has pages between machines, and tests/sim/sim_net_pages.py
  # models the protocol.
  use Tmesh.Case, backend: :any

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

  # Do as Tmesh.Net.Pages.publish/4, without a name.
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
    {:ok, follower} = Tmesh.Net.Pages.follow(log, pages, timeout: 600_000)
    {:ok, copy} = Tmesh.Net.Pages.sequence(follower)
    for block <- 0..3, do: assert(Sequence.read!(copy, block) == content(block))

    # Change a copy: neither end sees it.
    :ok = Sequence.append(copy, 16)
    :ok = Sequence.write(copy, 0, 0, "mine")
    assert Sequence.read!(sequence, 0) == content(0)

    # Its last page is full there.
    :ok = Sequence.truncate(sequence, 24)
    {:ok, 2} = Tmesh.Net.Pages.update(log, sequence, tokens: Enum.take(tokens, 24))
    {:ok, shorter} = Tmesh.Net.Pages.sequence(follower, 2)
    assert Sequence.tokens!(shorter) == 24

    assert {:ok, %{number: 2, blocks: 2, fetched: 0, had: 6, resyncs: 0, error: nil}} =
             Tmesh.Net.Pages.info(follower)

    assert {:error, %Error{type: :timeout}} = Tmesh.Net.Pages.sequence(follower, 3, 10)
    # The follower monitors this process only as its owner.
    {:monitors, monitored} = Process.info(follower, :monitors)
    assert Enum.count(monitored, &(&1 == {:process, self()})) == 1
    # The follower forgets a waiter that is gone. No timer takes so long a time.
    gone = spawn(fn -> Tmesh.Net.Pages.sequence(follower, 3, Integer.pow(10, 30)) end)
    eventually(fn -> :sys.get_state(follower, :infinity).waiting != [] end)
    Process.exit(gone, :kill)
    eventually(fn -> :sys.get_state(follower, :infinity).waiting == [] end)
    waits = Task.async(fn -> Tmesh.Net.Pages.sequence(follower, 3) end)
    eventually(fn -> :sys.get_state(follower, :infinity).waiting != [] end)
    :ok = Tmesh.Net.Pages.close(log)
    assert {:error, %Error{type: :gone}} = Task.await(waits, 600_000)
    assert {:error, %Error{type: :gone}} = Tmesh.Net.Pages.sequence(follower, 3)
    {:ok, last} = Tmesh.Net.Pages.sequence(follower, 2)
    assert Sequence.read!(last, 1) == content(1)
    for one <- [sequence, copy, shorter, last], do: Sequence.release(one)
    :ok = Tmesh.Net.Pages.close(follower)
    assert {:error, %Error{type: :closed}} = Tmesh.Net.Pages.sequence(follower)
    eventually(fn -> held(pool, pages) == 0 end)
    PagePool.close(pool)
  end

  test "pages that cannot be had are an error, and nothing half is left" do
    {at_home, pages} = pool()
    {here, other} = pool()
    sequence = sequence(pages, 3)
    log = log(pages, sequence, nil)
    {:ok, follower} = Tmesh.Net.Pages.follow(log, other, timeout: 600_000)
    assert {:error, %Error{type: :not_started}} = Tmesh.Net.Pages.sequence(follower)
    assert {:ok, %{number: 0, resyncs: 2, error: %Error{}}} = Tmesh.Net.Pages.info(follower)
    eventually(fn -> held(here, other) == 0 end)
    # The log holds nothing for it any more.
    eventually(fn -> :sys.get_state(log, :infinity).followers == %{} end)
    Sequence.release(sequence)
    :ok = Tmesh.Net.Pages.close(log)
    eventually(fn -> held(at_home, pages) == 0 end)

    # A pool with fewer pages than the sequence has.
    {small, few} = pool(Keyword.merge(@shape, slab_pages: 2, max_pages: 2))
    sequence = sequence(pages, 3)
    log = log(pages, sequence, nil)
    {:ok, follower} = Tmesh.Net.Pages.follow(log, few, timeout: 600_000)
    assert {:error, %Error{type: :limit_exceeded}} = Tmesh.Net.Pages.sequence(follower)
    eventually(fn -> held(small, few) == 0 end)
    Enum.each([at_home, here, small], &PagePool.close/1)
  end

  test "an update does not wait for a net that stands still" do
    {pool, pages} = pool()
    sequence = sequence(pages, 2)
    log = log(pages, sequence, nil)
    # It answers offers, and nothing else.
    net = spawn_link(fn -> offers(self()) end)
    Process.register(net, Tmesh.Net)
    say = &send(log, {:tmesh_pages, 1, &1})
    say.({:follow, self(), 1, :sys.get_state(log, :infinity).shape})
    assert_receive {:tmesh_pages, 1, {:followed, 1, :ok}}
    say.({:next, self(), 0})
    assert_receive {:tmesh_pages, 1, {:record, %{number: 1}}}
    say.({:pages, self(), self(), 1, 1, [0, 1]})
    assert_receive {:tmesh_pages, 1, {:offer, 1, {:ok, _offer}}}
    say.({:done, self()})
    assert {:ok, 2} = Tmesh.Net.Pages.update(log, sequence)
    :ok = Tmesh.Net.Pages.close(log)
    kill(net)
    PagePool.close(pool)
  end

  # `test` receives each offer that is withdrawn.
  defp offers(test) do
    receive do
      {:"$gen_call", from, :began} ->
        GenServer.reply(from, :ok)

      {:"$gen_call", from, {:local, _secret, {:offer, _token}}} ->
        GenServer.reply(from, {:ok, %{"offer" => "1", "checksum" => "2", "region_bytes" => 3}})

      {:"$gen_cast", {:local, _secret, {:withdraw, id}}} ->
        send(test, {:withdrawn, id})

      _other ->
        :nothing
    end

    offers(test)
  end

  test "bad arguments, other shapes, processes that publish nothing" do
    {pool, pages} = pool()
    {_other_pool, other} = pool(Keyword.put(@shape, :page_bytes, 8192))
    sequence = sequence(pages, 2)
    log = log(pages, sequence, nil)

    assert {:error, %Error{type: :invalid, message: why}} =
             Tmesh.Net.Pages.follow(log, other, timeout: 600_000)

    assert why =~ "8192"

    for tokens <- [[1], Enum.to_list(1..31) ++ [:a], Enum.to_list(1..31) ++ [0x1_0000_0000], 5],
        do:
          assert(
            {:error, %Error{type: :invalid}} = Tmesh.Net.Pages.update(log, sequence, tokens: tokens)
          )

    assert {:error, %Error{type: :invalid, message: why}} = Tmesh.Net.Pages.info(log)
    assert why =~ "Tmesh.Net.Pages.follow/3"
    {:ok, follows} = Tmesh.Net.Pages.follow(log, pages, timeout: 600_000)

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
    assert {:error, %Error{type: :invalid}} = Tmesh.Stream.pop_outfeed(follower, 600_000)
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
    shape = :sys.get_state(log, :infinity).shape
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
    # The record comes once there is a newer one.
    ask.({:next, self(), 1})
    :ok = Sequence.truncate(sequence, 0)
    {:ok, 2} = Tmesh.Net.Pages.update(log, sequence)
    assert {:record, %{from: 1, number: 2, first: 0, pages: []}} = record.()
    # Pages that the pool reuses get new numbers. A follower that begins anew gets all pages.
    ask.({:next, self(), 2})
    :ok = Sequence.append(sequence, 32)
    {:ok, 3} = Tmesh.Net.Pages.update(log, sequence)
    assert {:record, %{from: 2, number: 3, pages: [3, 4]}} = record.()
    ask.({:next, self(), 0})
    assert {:record, %{from: 0, number: 3, first: 0, pages: [3, 4], text: nil}} = record.()
    # Updates that no follower requested are skipped.
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

    # The checksum is right, but its table does not follow this one.
    for wrong <- [
          %{number: 4},
          %{number: 3},
          %{from: 0, first: 0, pages: [1, 2, 7], number: 3, text: nil},
          %{from: 0, first: 0, pages: [1, 2, 7], number: 0, text: nil},
          %{from: 5},
          %{tokens: 32, text: <<>>},
          %{tokens: 49, text: :binary.copy(<<1>>, 68)},
          %{first: 0, pages: [], tokens: -1, text: nil},
          %{first: 4, tokens: 64, text: nil},
          %{first: -1, tokens: 32, text: nil},
          %{text: :binary.copy(<<1>>, 63)},
          %{text: :binary.copy(<<1>>, 65)},
          %{text: :tokens}
        ] do
      record = summed(whole, Map.merge(record, wrong))

      assert {{:error, %Error{type: :protocol}}, _wrong} =
               {Follower.apply_record(whole, record, shape), wrong}
    end

    # Without the tokens of the blocks before it.
    no_text = %{whole | text: nil}
    assert {:error, %Error{type: :protocol}} = Follower.apply_record(no_text, record, shape)
    assert {:ok, %{text: nil}} = Follower.apply_record(no_text, %{record | text: nil}, shape)

    # Records without a checksum.
    for wrong <- [
          %{number: "6"},
          %{number: nil},
          %{first: nil},
          %{tokens: 48.0},
          %{pages: [7 | 8]},
          %{pages: ["7"]}
        ] do
      assert {:error, %Error{type: :protocol}} =
               Follower.apply_record(whole, Map.merge(record, wrong), shape)
    end

    for garbage <- [%{}, nil, [], Map.delete(record, :text)],
        do: assert({:error, %Error{type: :protocol}} = Follower.apply_record(whole, garbage, shape))
  end

  # Make a record with the checksum of the table that it would make.
  defp summed(whole, %{from: from, first: first, pages: pages} = record) do
    old = if from == 0, do: [], else: whole.pages
    %{record | check: Log.check(record.number, record.tokens, Enum.take(old, first) ++ pages)}
  end

  test "who follows a second time begins anew, and what it had is let go" do
    {pool, pages} = pool()
    sequence = sequence(pages, 2)
    log = log(pages, sequence, nil)
    test = self()

    net =
      spawn_link(fn ->
        Process.register(self(), Tmesh.Net)
        send(test, {:secret, Tmesh.Net.LocalSecret.start()})
        offers(test)
      end)

    assert_receive {:secret, _secret}, 60_000
    # Use another process, because this one is the log's owner.
    follower = spawn_link(fn -> relay(test) end)
    say = &send(log, {:tmesh_pages, 1, &1})
    shape = :sys.get_state(log, :infinity).shape

    for number <- [1, 2] do
      say.({:follow, follower, number, shape})
      assert_receive {:tmesh_pages, 1, {:followed, ^number, :ok}}, 60_000
      # Before it asks for a record, no record was sent.
      say.({:pages, follower, self(), number, 1, [0]})
      assert_receive {:tmesh_pages, 1, {:offer, ^number, {:error, :stale, _text}}}, 60_000
      if number == 2, do: assert_receive({:withdrawn, "1"}, 600_000)
      say.({:next, follower, 0})
      assert_receive {:tmesh_pages, 1, {:record, %{from: 0, number: ^number}}}, 60_000
      {:monitors, monitored} = Process.info(log, :monitors)
      assert Enum.count(monitored, &(&1 == {:process, follower})) == 1

      if number == 1 do
        say.({:pages, follower, self(), 3, 1, [0, 1]})
        assert_receive {:tmesh_pages, 1, {:offer, 3, {:ok, _offer}}}, 60_000
        # An update that has none of its pages: they are held for the follower alone.
        :ok = Sequence.truncate(sequence, 0)
        {:ok, 2} = Tmesh.Net.Pages.update(log, sequence)
        eventually(fn -> held(pool, pages) == 2 end)
      end
    end

    eventually(fn -> held(pool, pages) == 0 end)
    # The log notices its end once, and does not end.
    Process.unlink(follower)
    Process.exit(follower, :kill)
    eventually(fn -> :sys.get_state(log, :infinity).followers == %{} end)
    assert {:ok, 3} = Tmesh.Net.Pages.update(log, sequence)
    :ok = Tmesh.Net.Pages.close(log)
    kill(net)
    PagePool.close(pool)
  end

  defp relay(to) do
    receive(do: (message -> send(to, message)))
    relay(to)
  end

  test "what no follower can say changes nothing at a log" do
    {pool, pages} = pool()
    sequence = sequence(pages, 2)
    log = log(pages, sequence, nil)
    shape = :sys.get_state(log, :infinity).shape
    stranger = spawn_link(fn -> receive(do: (:end -> :ok)) end)
    say = &send(log, {:tmesh_pages, 1, &1})
    say.({:follow, self(), 1, shape})
    assert_receive {:tmesh_pages, 1, {:followed, 1, :ok}}, 60_000
    before = :sys.get_state(log, :infinity)

    for message <- [
          {:follow, :somebody, 2, shape},
          {:follow, "stranger", 2, shape},
          {:next, stranger, 0},
          {:pages, stranger, self(), 2, 1, [0]},
          {:pages, self(), :somebody, 2, 1, [0]},
          {:pages, self(), "stranger", 2, 1, [0]},
          {:done, stranger},
          {:leave, stranger},
          {:leave, nil},
          {:record, %{}}
        ],
        do: say.(message)

    send(log, {:tmesh_pages, 2, {:next, self(), 0}})
    send(log, {:DOWN, make_ref(), :process, stranger, :killed})
    assert :sys.get_state(log, :infinity) == before
    refute_received {:tmesh_pages, 1, _message}
    :ok = Tmesh.Net.Pages.close(log)
    PagePool.close(pool)
  end

  # This process is the home.
  defp follow(pages, spawn_opt \\ []) do
    shape = pages |> Pages.info!() |> Map.take([:page_bytes, :page_tokens, :devices, :heads])
    args = {self(), pages, shape, 60_000, self()}
    {:ok, follower} = GenServer.start_link(Follower, args, spawn_opt: spawn_opt)
    follows = Task.async(fn -> GenServer.call(follower, :begin, 600_000) end)
    assert_receive {:tmesh_pages, 1, {:follow, ^follower, number, ^shape}}, 60_000
    {follower, follows, number}
  end

  defp say(follower, message), do: send(follower, {:tmesh_pages, 1, message})

  # Return the request of a follower.
  defp asked(wanted \\ {1, [0, 1]}) do
    assert_receive {:tmesh_pages, 1, {:pages, _follower, from, number, update, blocks}}, 60_000
    assert {update, blocks} == wanted
    fn answer -> say(from, {:offer, number, answer}) end
  end

  @first %{
    from: 0,
    number: 1,
    first: 0,
    tokens: 32,
    pages: [1, 2],
    text: nil,
    check: :erlang.md5(<<1::64, 32::64, 1::64, 2::64>>)
  }

  test "a home that answers something else, or nothing, is an error; a half fetched part is gone" do
    {pool, pages} = pool()
    bytes = content(0) <> content(1)
    ref = fn bytes -> Tmesh.ZeroCopy.from_binary!(bytes, [byte_size(bytes)], :uint8) end
    map = &Tmesh.ZeroCopy.TensorRef.to_map!/1
    {short, good} = {ref.("short"), ref.(bytes)}
    bundle = Tmesh.Bundle.put!(%{"x" => good})

    lies = [
      {:ok, map.(short)},
      {:ok, Tmesh.Bundle.to_map!(bundle)},
      {:ok, [1]},
      {:ok, %{}},
      {:error, "gone", "no"},
      {:error, :gone, 5},
      :garbage
    ]

    for [one, other] <- Enum.chunk_every(lies, 2, 2, [{:error, :gone, "no"}]) do
      {follower, follows, number} = follow(pages)
      say(follower, {:followed, number, :ok})
      assert Task.await(follows, 600_000) == :ok

      for lie <- [one, other] do
        assert_receive {:tmesh_pages, 1, {:next, ^follower, 0}}, 60_000
        say(follower, {:record, @first})
        asked().(lie)
      end

      # It begins anew. One record is built at a time, and a message of no fetch is ignored.
      assert_receive {:tmesh_pages, 1, {:next, ^follower, 0}}, 60_000
      send(follower, {:fetched, make_ref(), {:ok, short}})
      say(follower, {:record, @first})
      answer = asked()
      say(follower, {:record, @first})
      send(follower, {:fetched, make_ref(), {:ok, short}})
      {:ok, %{number: 0, resyncs: 2, fetched: 0, error: nil}} = Tmesh.Net.Pages.info(follower)
      refute_received {:tmesh_pages, 1, {:pages, _follower, _from, _number, _update, _blocks}}
      answer.({:ok, map.(good)})
      {:ok, sequence} = Tmesh.Net.Pages.sequence(follower)
      for block <- 0..1, do: assert(Sequence.read!(sequence, block) == content(block))
      assert_receive {:tmesh_pages, 1, {:done, ^follower}}, 60_000
      assert_receive {:tmesh_pages, 1, {:next, ^follower, 1}}, 60_000
      Sequence.release(sequence)
      # The unfinished table is gone.
      eventually(fn -> held(pool, pages) == 2 end)
      :ok = Tmesh.Net.Pages.close(follower)
      eventually(fn -> held(pool, pages) == 0 end)
    end

    # It fails three times, and then ends with the error.
    for {answer, type, text} <- [
          {{:ok, map.(short)}, :protocol, "not the pages that were asked for"},
          {:silence, :timeout, "does not offer its pages in time"}
        ] do
      {follower, follows, number} = follow(pages)
      say(follower, {:followed, number, :ok})
      assert Task.await(follows, 600_000) == :ok
      # Set it only now: a busy machine may take longer to accept the follower.
      if answer == :silence, do: :sys.replace_state(follower, &%{&1 | timeout: 50})

      for _time <- 1..3 do
        assert_receive {:tmesh_pages, 1, {:next, ^follower, 0}}, 60_000
        say(follower, {:record, @first})
        say_more = asked()
        if answer != :silence, do: say_more.(answer)
      end

      assert {:error, %Error{type: ^type, message: why}} = Tmesh.Net.Pages.sequence(follower)
      assert why =~ text
      assert_receive {:tmesh_pages, 1, {:leave, ^follower}}, 60_000
      eventually(fn -> held(pool, pages) == 0 end)
      # It has ended: later messages change nothing.
      send(follower, :again)
      say(follower, {:record, @first})
      assert {:ok, %{number: 0, error: %Error{}}} = Tmesh.Net.Pages.info(follower)
      refute_received {:tmesh_pages, 1, _message}
      :ok = Tmesh.Net.Pages.close(follower)
    end

    for one <- [short, good], do: Tmesh.ZeroCopy.release(one)
    Tmesh.Bundle.release(bundle)
    PagePool.close(pool)
  end

  test "a follower reports a home that answers with garbage, and one that refuses" do
    {pool, pages} = pool()

    for {answer, type} <- [
          {{:error, :invalid, "no"}, :invalid},
          {{:error, "invalid", "no"}, :protocol},
          {{:error, :invalid, 5}, :protocol},
          {:yes, :protocol}
        ] do
      {follower, follows, number} = follow(pages)
      say(follower, {:followed, make_ref(), :ok})
      say(follower, {:followed, number, answer})
      assert {:error, %Error{type: ^type}} = Task.await(follows, 600_000)
      refute_received {:tmesh_pages, 1, {:next, _follower, _have}}
      GenServer.stop(follower)
    end

    PagePool.close(pool)
  end

  # Follow this process, and accept the follower.
  defp follows(pages, spawn_opt \\ []) do
    {follower, follows, number} = follow(pages, spawn_opt)
    say(follower, {:followed, number, :ok})
    assert Task.await(follows, 600_000) == :ok
    assert_receive {:tmesh_pages, 1, {:next, ^follower, 0}}, 60_000
    follower
  end

  # Make the record of the table `all`: from block `first` on with these tokens, `count` in all.
  defp record(number, first, all, tokens, count) do
    fields = %{from: number - 1, number: number, first: first, pages: Enum.drop(all, first)}
    text = for token <- tokens, into: <<>>, do: <<token::signed-little-32>>
    check = Log.check(number, count, all)
    {:record, Map.merge(fields, %{tokens: count, text: text, check: check})}
  end

  defp offered(bytes) do
    ref = Tmesh.ZeroCopy.from_binary!(bytes, [byte_size(bytes)], :uint8)
    {ref, Tmesh.ZeroCopy.TensorRef.to_map!(ref)}
  end

  test "what is found among the tenant's prefixes and is no more than was here is let go" do
    {pool, pages} = pool()
    # Its heap is so large that it is not collected, and so cannot release memory by chance.
    follower = follows(pages, min_heap_size: 1_000_000, min_bin_vheap_size: 1_000_000)
    {two, map} = offered(content(0) <> content(1))
    say(follower, record(1, 0, [1, 2], Enum.to_list(1..32), 32))
    asked().({:ok, map})
    assert_receive {:tmesh_pages, 1, {:next, ^follower, 1}}, 60_000
    # Both are found.
    {one, map} = offered(content(2))
    say(follower, record(2, 2, [1, 2, 3], Enum.to_list(33..48), 48))
    asked({2, [2]}).({:ok, map})
    assert_receive {:tmesh_pages, 1, {:next, ^follower, 2}}, 60_000
    say(follower, record(3, 0, [], [], 0))
    assert_receive {:tmesh_pages, 1, {:next, ^follower, 3}}, 60_000
    eventually(fn -> held(pool, pages) == 0 end)
    :ok = Tmesh.Net.Pages.close(follower)
    for ref <- [one, two], do: Tmesh.ZeroCopy.release(ref)
    PagePool.close(pool)
  end

  test "what is here is not fetched for a shorter prefix of the tenant's; nothing comes before the first record" do
    {pool, pages} = pool()
    follower = follows(pages)
    {two, map} = offered(content(0) <> content(1))
    # Without tokens nothing is cached.
    say(follower, {:record, %{@first | number: 3, check: Log.check(3, 32, [1, 2])}})
    asked({3, [0, 1]}).({:ok, map})
    assert_receive {:tmesh_pages, 1, {:next, ^follower, 3}}, 60_000
    {one, map} = offered(content(2))
    say(follower, record(4, 0, [1, 2, 3], Enum.to_list(1..48), 48))
    # Its pages are the same as before.
    asked({4, [2]}).({:ok, map})
    assert_receive {:tmesh_pages, 1, {:next, ^follower, 4}}, 60_000
    assert {:ok, %{fetched: 3, had: 2, passed_over: 0}} = Tmesh.Net.Pages.info(follower)
    :ok = Tmesh.Net.Pages.close(follower)
    for ref <- [one, two], do: Tmesh.ZeroCopy.release(ref)
    PagePool.close(pool)
  end

  test "of a long sequence as many blocks are looked for as a pool answers" do
    count = 8_193
    {pool, pages} = pool(page_bytes: 4096, page_tokens: 1, slab_pages: 4096, max_pages: 12_288)
    follower = follows(pages)
    tokens = Enum.to_list(1..count)
    # It has these tokens' hashes, and other pages: to hash so many blocks would take long.
    :sys.replace_state(follower, fn state ->
      whole = %{
        number: 1,
        pages: tokens,
        text: for(token <- tokens, into: <<>>, do: <<token::signed-little-32>>),
        hashes: for(token <- tokens, do: <<token::128>>),
        sequence: Pages.sequence!(pages)
      }

      %{state | whole: whole}
    end)

    all = Enum.map(tokens, &(&1 + count))
    say(follower, record(2, 0, all, tokens, count))
    assert_receive {:tmesh_pages, 1, {:pages, _follower, _from, _number, 2, [0 | _more]}}, 60_000
    assert {:ok, %{error: nil, resyncs: 0}} = Tmesh.Net.Pages.info(follower)
    :ok = Tmesh.Net.Pages.close(follower)
    eventually(fn -> held(pool, pages) == 0 end)
    PagePool.close(pool)
  end

  test "pages that have come are not kept beside the pool" do
    {pool, pages} = pool()
    checksum = Base.encode16(:crypto.strong_rand_bytes(16), case: :lower)
    name = "net-" <> checksum
    on_exit(fn -> Tmesh.drop(name) end)
    {ref, map} = offered(content(0) <> content(1))
    # Keep it as a fetch does.
    Tmesh.keep!(ref, name)
    follower = follows(pages)
    say(follower, {:record, @first})
    asked().({:ok, Map.merge(map, %{"checksum" => checksum, "region_bytes" => 8192})})
    assert_receive {:tmesh_pages, 1, {:next, ^follower, 1}}, 60_000
    refute Enum.any?(Tmesh.kept!(), &(&1.name == name))
    :ok = Tmesh.Net.Pages.close(follower)
    Tmesh.ZeroCopy.release(ref)
    PagePool.close(pool)
  end
end
