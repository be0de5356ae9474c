# SPDX-License-Identifier: MIT
defmodule Tmesh.NetHostileTest do
  # Messages of other nodes may be anything: here, terms that are nearly right, made from a seed.
  # tests/net/test_hostile.py has a node that sends them.
  use Tmesh.Case, backend: :any
  alias Tmesh.Net
  alias Tmesh.Net.{Answer, Names, Offer}

  @rounds 1_000
  @hex String.duplicate("0", 32)
  @shard %{"checksum" => @hex, "region_bytes" => 4}

  @tensor %{
    "v" => 1,
    "id" => "0123456789abcdef",
    "token" => "tm1m-" <> @hex <> "-" <> @hex,
    "offset" => 0,
    "byte_size" => 4,
    "shape" => [4],
    "dtype" => "uint8",
    "strides" => [1],
    "device" => "cpu",
    "home" => "elsewhere@192.0.2.1",
    "offer" => @hex,
    "checksum" => @hex,
    "region_bytes" => 4,
    "other_homes" => [%{"home" => "b@192.0.2.2", "offer" => @hex}]
  }

  @bundle %{
    "v" => 1,
    "kind" => "bundle",
    "id" => "0123456789abcdef",
    "token" => "tm1m-" <> @hex <> "-" <> @hex,
    "regions" => [%{"id" => "0123456789abcdef", "token" => "tm1m-" <> @hex <> "-" <> @hex}],
    "shards" => [@shard, @shard],
    "home" => "elsewhere@192.0.2.1",
    "offers" => [@hex, @hex],
    "other_homes" => [%{"home" => "b@192.0.2.2", "offers" => [@hex, @hex]}]
  }

  @channel %{"kind" => "channel", "home" => "elsewhere@192.0.2.1", "token" => "tm1m-" <> @hex}

  setup do
    seed = String.to_integer(System.get_env("TMESH_TEST_SEED") || "#{:rand.uniform(1_000_000)}")
    :rand.seed(:exsss, seed)
    {:ok, seed: seed}
  end

  test "offers that are nearly right are offers or refused", %{seed: seed} do
    for round <- 1..@rounds do
      offer = garbled(Enum.random([@tensor, @bundle]))

      case is_map(offer) && Offer.wanted(offer) do
        {:ok, wanted} ->
          for %{checksum: checksum, bytes: bytes, sources: sources} <- wanted do
            assert Answer.hex?(checksum, 32) and bytes > 0, "seed #{seed}, #{round}"

            for {home, id} <- sources,
                do: assert(Offer.home?(home) and Answer.hex?(id, 32), "seed #{seed}, #{round}")
          end

        {:error, %Error{type: :protocol}} ->
          :ok

        false ->
          :ok
      end

      if is_map(offer), do: assert({:error, %Error{}} = Net.open(offer), "seed #{seed}, #{round}")
    end
  end

  test "the ids of an offer have one length, and names of homes are those of nodes" do
    for id <- ["", "0", @hex <> "0", String.duplicate("0", 1_000_000), String.duplicate("A", 32), 5] do
      assert {:error, %Error{type: :protocol}} = Offer.wanted(%{@tensor | "offer" => id})
      assert {:error, %Error{type: :protocol}} = Offer.wanted(%{@bundle | "offers" => [@hex, id]})
    end

    for home <- ["", String.duplicate("a", 1021), <<255>>, :a] do
      assert {:error, %Error{type: :protocol}} = Offer.wanted(%{@tensor | "home" => home})
      assert {:error, %Error{type: :protocol}} = Offer.wanted(%{@bundle | "home" => home})
    end

    assert {:ok, [_one]} = Offer.wanted(%{@tensor | "home" => String.duplicate("a", 1020)})
  end

  test "answers that are nearly right are answers or refused", %{seed: seed} do
    right = [
      {:ok, "0123456789abcdef", "ofi+tcp;ofi_rxm://192.0.2.1:41233"},
      {:bytes, "abcd"},
      {:error, :gone, "gone"}
    ]

    for round <- 1..@rounds do
      case Answer.read(garbled(Enum.random(right)), "elsewhere@192.0.2.1") do
        {:ok, key, address} ->
          assert Answer.hex?(key, 16) and byte_size(address) < 128, "seed #{seed}, #{round}"

        {:bytes, data} ->
          assert byte_size(data) <= Answer.small(), "seed #{seed}, #{round}"

        {:error, %Error{type: type, message: message}} ->
          assert is_atom(type) and String.valid?(message), "seed #{seed}, #{round}"
      end
    end
  end

  test "what is published is a process, a channel or an offer", %{seed: seed} do
    for what <- [self(), @tensor, @bundle, @channel],
        do: assert(Names.published({:ok, what}) == {:ok, what})

    for wrong <- [
          nil,
          :ok,
          {:ok, nil},
          {:ok, :a},
          {:ok, %{}},
          {:ok, Map.delete(@channel, "home")},
          {:ok, %{@channel | "home" => ""}},
          {:ok, %{@channel | "token" => "../x"}},
          {:ok, %{@channel | "token" => String.duplicate("a", 72)}},
          {:ok, Map.put(@channel, "more", 1)},
          {:ok, %{@tensor | "offer" => "short"}},
          {:ok, %{@bundle | "kind" => "model"}}
        ],
        do: assert(Names.published(wrong) == :error, inspect(wrong))

    for round <- 1..@rounds do
      answer = garbled({:ok, Enum.random([self(), @tensor, @bundle, @channel])})

      case Names.published(answer) do
        {:ok, what} -> assert {:ok, what} == answer, "seed #{seed}, #{round}"
        :error -> :ok
      end
    end
  end

  test "a net lives through messages that are nearly right", %{seed: seed} do
    {:ok, net} = Net.start_link(address: "127.0.0.1", program: Tmesh.Fetcher.quiet())
    me = self()

    right = [
      {:tmesh_net, 1, {:lease, me, make_ref(), @hex}},
      {:tmesh_net, 1, {:renew, me, "0123456789abcdef"}},
      {:tmesh_net, 1, {:done, me, "0123456789abcdef"}},
      {:tmesh_net, 1, {:answer, me, make_ref(), {:bytes, "abcd"}}},
      {:tmesh_net, 2, {:lease, me, make_ref(), @hex, :more}},
      {:tmesh_net, 2, {:answer, me, make_ref()}},
      {:DOWN, make_ref(), :process, me, :killed},
      {:silent, @hex, make_ref()},
      {:late, @hex, make_ref()},
      {:again, @hex, make_ref()},
      {:lapsed, "0123456789abcdef"}
    ]

    for _round <- 1..@rounds, do: send(net, garbled(Enum.random(right)))

    for _round <- 1..100, do: GenServer.cast(net, garbage())
    # In the name of this node's processes.
    for _round <- 1..100, do: GenServer.cast(net, {:local, garbage(), {:withdraw, @hex}})
    send(net, {:"$gen_call", {me, make_ref()}, {:local, nil, {:withdraw, @hex}}})

    assert GenServer.call(net, {:published, "llama"}, 600_000) == :none, "seed #{seed}"
    assert {:error, %Error{type: :protocol}} = GenServer.call(net, {:open, :garbage}, 600_000)
    assert {:error, %Error{type: :protocol}} = GenServer.call(net, {:local, "", :stats}, 600_000)
    assert Process.whereis(Net) == net
    :ok = GenServer.stop(net)
    forget()
  end

  test "what a stream's home sends is a stranger's word" do
    alias Tmesh.Net.FarStream
    me = self()
    ref = ZeroCopy.from_binary!("abcd", [4], :uint8)
    map = TensorRef.to_map!(ref)

    # An offer that opens in place may have any members.
    here = [[1 | 2], 5, [nil], [%{"checksum" => nil}]]
    good = for shards <- here, do: {:ok, %FarStream{offer: Map.put(map, "shards", shards)}}
    # A copy that a fetch has kept under a name is dropped.
    checksum = Base.encode16(:crypto.strong_rand_bytes(16), case: :lower)
    on_exit(fn -> Tmesh.drop("net-" <> checksum) end)
    Tmesh.keep!(ref, "net-" <> checksum)

    good =
      for(sum <- [<<255>>, checksum], do: {:ok, %FarStream{offer: Map.put(map, "checksum", sum)}}) ++
        good

    offers =
      for offer <- [nil, "{", 5, [], %{}, %{"kind" => "bundle"}],
          do: {:ok, %FarStream{offer: offer}}

    bad = [nil, :ok, {:ok}, {:error, :gone}, 5 | offers]

    home =
      spawn_link(fn ->
        reader =
          receive do
            {:"$gen_call", {pid, _tag} = from, {:attach_far, pid}} ->
              GenServer.reply(from, {:ok, self()})
              pid
          end

        for {packed, number} <- Enum.with_index(bad ++ good),
            do: send(reader, {:tmesh_stream, 1, {:value, number, packed}})

        receive(do: (:end -> :ok))
      end)

    reader = spawn_link(fn -> FarStream.read(me, home, 8) end)

    for {_packed, number} <- Enum.with_index(bad) do
      assert_receive {:tmesh_far, ^reader, ^number, {:error, %Error{type: :protocol}}}, 60_000
    end

    for {_packed, number} <- Enum.with_index(good, length(bad)) do
      assert_receive {:tmesh_far, ^reader, ^number, {:ok, %TensorRef{} = opened}}, 60_000
      ZeroCopy.release!(opened)
    end

    refute Enum.any?(Tmesh.kept!(), &(&1.name == "net-" <> checksum))
    send(home, :end)
    assert_receive {:tmesh_far_end, ^reader, %Error{type: :closed}}, 60_000
    ZeroCopy.release!(ref)
  end

  test "what a stream's reader sends is a stranger's word" do
    {:ok, stream} = Tmesh.Stream.start_link()
    me = self()
    reader = spawn(fn -> relay(me) end)
    {:ok, sender} = GenServer.call(stream, {:attach_far, reader}, :infinity)
    for number <- 1..2, do: :ok = Tmesh.Stream.push_outfeed(stream, number)
    say = &send(sender, {:tmesh_stream, 1, &1})
    for count <- [0, -1, 1.5, nil, :all, "1"], do: say.({:more, count})
    say.({:more, 1})
    assert_receive {:tmesh_stream, 1, {:value, 1, {:ok, 1}}}, 60_000
    for number <- [1.5, nil, :all, "1"], do: say.({:popped, number})
    say.({:more, 1})
    assert_receive {:tmesh_stream, 1, {:value, 2, {:ok, 2}}}, 60_000
    # Neither was popped: both come back.
    Process.exit(reader, :kill)
    for number <- 1..2, do: assert({:ok, ^number} = Tmesh.Stream.pop_outfeed(stream, 600_000))
  end

  defp relay(to) do
    receive(do: (message -> send(to, message)))
    relay(to)
  end

  test "a name that is something else is neither a stream nor pages" do
    me = self()
    offer = %{"home" => "a@b", "offer" => @hex, "checksum" => @hex, "region_bytes" => 4}

    net =
      spawn_link(fn ->
        Process.register(self(), Net)
        send(me, :registered)
        publishes(offer)
      end)

    assert_receive :registered, 60_000
    {:ok, stream} = Tmesh.Stream.start_link(from: "llama")

    assert {:error, %Error{type: :invalid, message: why}} =
             Tmesh.Stream.pop_outfeed(stream, 600_000)

    assert why =~ "is no stream"
    pool = Tmesh.PagePool.create!(max_pages: 16, slab_pages: 16)
    pages = Tmesh.Pages.open!(Tmesh.PagePool.tenant!(pool))
    assert {:error, %Error{type: :invalid, message: why}} = Net.Pages.follow("llama", pages)
    assert why =~ "is no sequence of pages"
    Tmesh.PagePool.close(pool)
    kill(net)
  end

  defp publishes(offer) do
    receive(do: ({:"$gen_call", from, {:published, _name}} -> GenServer.reply(from, {:ok, offer})))
    publishes(offer)
  end

  defp forget do
    receive do
      _answer -> forget()
    after
      0 -> :ok
    end
  end

  # Replace one to three places of a term.
  defp garbled(term), do: Enum.reduce(1..Enum.random(1..3), term, fn _time, term -> turn(term) end)

  defp turn(term) do
    if :rand.uniform(6) == 1, do: garbage(), else: turn_inside(term)
  end

  defp turn_inside(map) when is_map(map) and map_size(map) > 0 do
    key = map |> Map.keys() |> Enum.random()

    case :rand.uniform(8) do
      1 -> Map.delete(map, key)
      2 -> Map.put(map, garbage(), garbage())
      _inside -> Map.update!(map, key, &turn/1)
    end
  end

  defp turn_inside([_one | _more] = list) do
    at = :rand.uniform(max(1, length_of(list))) - 1

    case :rand.uniform(8) do
      1 -> [garbage() | list]
      2 -> tl(list)
      3 -> [hd(list) | garbage()]
      _inside -> replace(list, at)
    end
  end

  defp turn_inside(tuple) when is_tuple(tuple) and tuple_size(tuple) > 0 do
    at = :rand.uniform(tuple_size(tuple)) - 1

    case :rand.uniform(8) do
      1 -> Tuple.delete_at(tuple, at)
      2 -> Tuple.append(tuple, garbage())
      _inside -> put_elem(tuple, at, turn(elem(tuple, at)))
    end
  end

  defp turn_inside(binary) when is_binary(binary) and byte_size(binary) > 0 do
    at = :rand.uniform(byte_size(binary)) - 1
    <<before::binary-size(at), byte, rest::binary>> = binary

    case :rand.uniform(3) do
      1 -> <<before::binary, rest::binary>>
      2 -> <<before::binary, :rand.uniform(256) - 1, rest::binary>>
      3 -> <<before::binary, byte, byte, rest::binary>>
    end
  end

  defp turn_inside(_other), do: garbage()

  # Improper ones too.
  defp length_of([_one | rest]), do: 1 + length_of(rest)
  defp length_of(_end), do: 0

  defp replace([one | rest], 0), do: [turn(one) | rest]
  defp replace([one | rest], at), do: [one | replace(rest, at - 1)]
  defp replace(other, _at), do: other

  defp garbage do
    Enum.random([
      nil,
      :ok,
      -1,
      0,
      0x8000_0000_0000_0000,
      1.0e300,
      "",
      <<0>>,
      <<255>>,
      <<1::size(3)>>,
      String.duplicate("0", 100_000),
      @hex,
      [],
      [1 | 2],
      %{},
      {},
      {:ok, nil},
      self(),
      make_ref(),
      fn -> :ok end,
      Error.new(:gone, "gone"),
      %{"home" => "a@b", "offer" => @hex}
    ])
  end
end
