# SPDX-License-Identifier: MIT
defmodule Tmesh.NetTest do
  # A node by itself. tests/net/test_machines.py has nodes on several machines.
  use Tmesh.Case, backend: :any
  alias Tmesh.Net

  @offer %{
    "v" => 1,
    "id" => "0123456789abcdef",
    "token" => "tm1m-00000000000000000000000000000000-00000000000000000000000000000000",
    "offset" => 0,
    "byte_size" => 4,
    "shape" => [4],
    "dtype" => "uint8",
    "strides" => [1],
    "device" => "cpu",
    "home" => "elsewhere@192.0.2.1",
    "offer" => String.duplicate("0", 32),
    "checksum" => String.duplicate("0", 32),
    "region_bytes" => 4
  }

  test "without a net an open says so, and an ordinary one names the home" do
    ref = ZeroCopy.from_binary!("abcd", [4], :uint8)
    assert {:error, %Error{type: :not_started}} = Net.offer(ref)
    assert {:error, %Error{type: :not_started}} = Net.withdraw(@offer)
    assert {:error, %Error{type: :not_started}} = Net.stats()
    map = Map.merge(@offer, Map.take(TensorRef.to_map!(ref), ~w(token)))
    ZeroCopy.release!(ref)
    assert {:error, %Error{type: :not_started}} = Net.open(map)
    assert {:error, %Error{type: :not_found, message: message}} = ZeroCopy.open(map)
    assert message =~ "elsewhere@192.0.2.1" and message =~ "Tmesh.Net.open/1"
    assert {:error, %Error{message: message}} = ZeroCopy.open(Map.delete(map, "home"))
    refute message =~ "home is"
  end

  test "a net that is just beginning has no secret yet, and is waited for" do
    Tmesh.Net.LocalSecret = :ets.new(Tmesh.Net.LocalSecret, [:named_table, :protected])
    assert Net.LocalSecret.cast({:withdraw, "1"}) == :ok
    assert {:error, %Error{type: :not_started}} = Net.stats()
    :ets.delete(Tmesh.Net.LocalSecret)
  end

  test "memory of a machine with the module, or without it, is fetched where that is otherwise" do
    for token <- ["tm1k-" <> String.duplicate("0", 32), @offer["token"]] do
      offer = Map.put(@offer, "token", token)
      assert {:error, %Error{type: :not_started}} = Net.open(offer)
      shard = Map.take(@offer, ~w(checksum region_bytes))
      ref = ZeroCopy.from_binary!("abcd", [4], :uint8)
      bundle = Tmesh.Bundle.put!(%{"a" => ref})
      map = Tmesh.Bundle.to_map!(bundle)
      Tmesh.Bundle.release(bundle)
      ZeroCopy.release!(ref)
      regions = for region <- map["regions"], do: %{region | "token" => token}
      offers = for _one <- [map | regions], do: @offer["offer"]
      map = Map.merge(map, %{"token" => token, "regions" => regions, "home" => @offer["home"]})
      map = Map.merge(map, %{"offers" => offers, "shards" => for(_one <- offers, do: shard)})
      assert {:error, %Error{type: :not_started}} = Net.open(map)
    end
  end

  test "a ref without a token is not offered" do
    ref = ZeroCopy.from_binary!("abcd", [4], :uint8)

    for token <- [<<255>>, "a\0", "", String.duplicate("a", 200_000), 5] do
      wrong = %TensorRef{ref | handle: nil, token: token}
      assert {:error, %Error{type: :protocol}} = Net.offer(wrong)
    end

    ZeroCopy.release!(ref)
  end

  test "what is no offer is refused" do
    for offer <- [%{}, "", "[]", "{", Map.delete(@offer, "token"), Map.put(@offer, "shape", [5])] do
      assert {:error, %Error{type: :protocol}} = Net.open(offer)
    end

    ref = ZeroCopy.from_binary!("abcd", [4], :uint8)
    map = Map.merge(@offer, Map.take(TensorRef.to_map!(ref), ~w(token)))
    ZeroCopy.release!(ref)

    for {name, value} <- [
          {"home", nil},
          {"home", 1},
          {"offer", %{}},
          {"checksum", "short"},
          {"checksum", String.duplicate(<<255>>, 32)},
          {"checksum", String.duplicate("0", 31) <> <<0>>},
          {"checksum", String.duplicate("A", 32)},
          {"region_bytes", 0},
          {"region_bytes", "4"}
        ] do
      assert {:error, %Error{type: :protocol, message: message}} =
               Net.open(Map.put(map, name, value))

      assert message =~ "its home, offer, checksum or region_bytes"
    end

    for wrong <- [
          [timeout: 0],
          [timeout: :infinity],
          [deadline: 0],
          [deadline: nil],
          [deadline: 1.5],
          [progress: :somebody],
          [progress: 5]
        ] do
      assert {:error, %Error{type: :invalid}} = Net.open(map, wrong)
      assert {:error, %Error{type: :invalid}} = Net.open_name("llama", wrong)
    end

    assert {:error, %Error{type: :invalid}} = Net.open(map, patience: 1)
    assert {:error, %Error{type: :protocol, message: message}} = Net.withdraw(%{})
    assert message =~ ~s(neither "offer" nor "offers") and message =~ "Tmesh.Net.offer/1"
    assert {:error, %Error{type: :protocol, message: message}} = Net.open("[]")
    assert message =~ "no JSON object"
  end

  test "an offer of a bundle that does not add up is refused, and each shard has another home first" do
    alias Net.Offer
    shard = %{"checksum" => String.duplicate("0", 32), "region_bytes" => 1}
    ids = fn home -> for number <- ~w(0 1 2), do: String.duplicate(home <> number, 16) end

    bundle = %{
      "kind" => "bundle",
      "regions" => [%{}, %{}],
      "shards" => [shard, shard, shard],
      "home" => "a",
      "offers" => ids.("a"),
      "other_homes" => [%{"home" => "b", "offers" => ids.("b")}]
    }

    assert {:ok, wanted} = Offer.wanted(bundle)
    homes = for one <- wanted, do: one.sources |> hd() |> elem(0)
    assert homes in [~w(a b a), ~w(b a b)]

    for {one, number} <- Enum.with_index(wanted),
        do:
          assert(
            Enum.sort(one.sources) == for(home <- ~w(a b), do: {home, Enum.at(ids.(home), number)})
          )

    for {name, value} <- [
          {"kind", "model"},
          {"regions", [%{}]},
          {"regions", nil},
          {"shards", []},
          {"shards", [shard, shard]},
          {"shards", [shard, shard, %{shard | "region_bytes" => 0}]},
          {"shards", [shard, shard, %{shard | "region_bytes" => 1.0e300}]},
          {"shards", [shard, shard, %{shard | "region_bytes" => 0x8000_0000_0000_0000}]},
          {"shards", List.duplicate(shard, 3) ++ [nil]},
          {"home", 1},
          {"offers", Enum.take(ids.("a"), 2)},
          {"offers", List.replace_at(ids.("a"), 2, nil)},
          {"offers", ~w(a0 a1 a2)},
          {"offers", %{}},
          {"other_homes", %{}},
          {"other_homes", [nil]},
          {"other_homes", [%{"home" => "b", "offers" => Enum.take(ids.("b"), 1)}]},
          {"other_homes", List.duplicate(%{"home" => "b", "offers" => ids.("b")}, 1024)}
        ] do
      assert {:error, %Error{type: :protocol}} = Offer.wanted(Map.put(bundle, name, value))
    end
  end

  test "several who have the same open are remembered, until they are known to be gone" do
    alias Tmesh.Net.TokenCache
    key = {@offer["checksum"], 4}
    assert TokenCache.find(key) == []
    :ok = TokenCache.start()
    [a, b, c] = names = for id <- ~w(a b c), do: {"token", id}
    for name <- names, do: :ok = TokenCache.put(key, [], name)
    assert TokenCache.find(key) == [a, b, c] and TokenCache.room?(3) and not TokenCache.room?(4)
    :ok = TokenCache.put(key, [c, a], nil)
    assert TokenCache.find(key) == [b]
    for name <- 1..5, do: :ok = TokenCache.put(key, [b], {"token", name})
    assert TokenCache.find(key) == for(name <- 1..4, do: {"token", name})
    :ok = TokenCache.put(key, TokenCache.find(key), nil)
    assert TokenCache.find(key) == [] and :ets.tab2list(TokenCache) == []
    for number <- 1..5000, do: :ok = TokenCache.put({number, 4}, [], a)
    assert length(:ets.tab2list(TokenCache)) <= 4096 and TokenCache.find({5000, 4}) == [a]
  end

  test "names: bad ones, without a net, and a bundle's home" do
    for name <- ["", :llama, nil, "a\0b", <<255>>, String.duplicate("a", 256)] do
      assert {:error, %Error{type: :invalid}} = Net.publish(name, self())
      assert {:error, %Error{type: :invalid}} = Net.lookup(name)
      assert {:error, %Error{type: :invalid}} = Net.open_name(name)
    end

    assert {:error, %Error{type: :invalid}} = Net.publish("llama", :nobody)
    assert {:error, %Error{type: :not_started}} = Net.publish("llama", self())
    assert {:error, %Error{type: :not_started}} = Net.unpublish("llama")
    assert {:error, %Error{type: :not_found}} = Net.open_name("llama")
    assert Net.names() == []

    bundle = Tmesh.Bundle.put!(%{"a" => {"abcd", [4], :u8}})
    map = bundle |> Tmesh.Bundle.to_map!() |> Map.put("home", "elsewhere@192.0.2.1")
    Tmesh.Bundle.release(bundle)
    assert {:error, %Error{type: :not_found, message: message}} = Tmesh.Bundle.open(map)
    assert message =~ "elsewhere@192.0.2.1"
    assert {:error, %Error{type: :protocol}} = Net.open(map)
    shard = %{"checksum" => String.duplicate("0", 32), "region_bytes" => 4}
    offers = List.duplicate(@offer["offer"], 2)
    map = Map.merge(map, %{"offers" => offers, "shards" => [shard, shard]})
    assert {:error, %Error{type: :not_started}} = Net.open(map)
  end

  test "bad options" do
    for options <- [
          [],
          [address: 1],
          [address: "::1", lease_ms: 0],
          [address: "::1", max_restarts: -1],
          [address: "::1", max_seconds: 0],
          [address: "::1", port: 1]
        ] do
      assert {:error, %Error{type: :invalid}} = Net.start_link(options)
    end

    Process.flag(:trap_exit, true)
    missing = [address: "127.0.0.1", program: "/nowhere/tmesh-net"]
    assert {:error, %Error{type: :not_found}} = Net.start_link(missing)

    assert {:error, %Error{type: :gone}} =
             Net.start_link(address: "127.0.0.1", program: "/bin/false")
  end

  test "a process that has ended is not published, and a taken name is an error" do
    {:ok, net} = Net.start_link(address: "127.0.0.1", program: Tmesh.Fetcher.deaf())
    ended = spawn(fn -> :ok end)
    eventually(fn -> not Process.alive?(ended) end)

    for what <- [ended, :nobody, 17, {1, 2}, "text", nil] do
      assert {:error, %Error{type: :invalid, message: message}} = Net.publish("name", what)
      assert message =~ "nor a process that runs"
    end

    assert :ok = Net.publish("name", self())
    assert {:error, %Error{type: :exists, message: message}} = Net.publish("name", net)
    assert message =~ ~s(two things cannot have the name "name")
    assert :ok = Net.unpublish("name")
    GenServer.stop(net)
  end

  test "without the application it is not started, and says so" do
    Process.flag(:trap_exit, true)
    :ok = Application.stop(:tmesh)

    try do
      assert {:error, %Error{type: :not_started, message: message}} =
               Net.start_link(address: "127.0.0.1", program: "/bin/false")

      assert message =~ "start it again"
    after
      :ok = Application.start(:tmesh)
    end
  end

  test "why a fetcher ends is in the log, and in the errors of all who waited" do
    Process.flag(:trap_exit, true)
    refused = [address: "127.0.0.1", program: Tmesh.Fetcher.refuses("no such provider")]
    assert {:error, %Error{type: :gone, message: why}} = Net.start_link(refused)
    assert why =~ "no such provider"
    refute_receive {_port, {:exit_status, _status}}, 50

    for {program, how} <- [
          {Tmesh.Fetcher.ends_for("stdin cannot be read"), "ended: stdin cannot be read"},
          {Tmesh.Fetcher.dies(), "was ended by signal 9"}
        ] do
      options = [address: "127.0.0.1", program: program, max_restarts: 0]
      {:ok, net} = Net.start_link(options)

      log =
        ExUnit.CaptureLog.capture_log(fn ->
          File.write!(program <> ".end", "")
          assert_receive {:EXIT, ^net, %Error{type: :gone, message: why}}, 600_000
          assert why =~ how
        end)

      assert log =~ "tmesh: the fetcher #{how}"
      File.rm(program <> ".end")
    end
  end

  test "a fetcher that reads no more has ended, also when its end is not told" do
    Process.flag(:trap_exit, true)
    deaf = [address: "127.0.0.1", program: Tmesh.Fetcher.deaf()]
    # However slow the machine, all ends fall into this time.
    {:ok, net} = Net.start_link(deaf ++ [max_restarts: 2, max_seconds: 3_600])
    for _ <- 1..3, do: assert({:error, %Error{type: :gone}} = Net.stats())
    assert_receive {:EXIT, ^net, %Error{type: :gone, message: message}}
    assert message =~ "reads no more"
  end

  test "a fetcher that ends seldom enough is always started again" do
    options = [address: "127.0.0.1", program: Tmesh.Fetcher.deaf(), max_restarts: 1, max_seconds: 1]
    net = start_supervised!({Net, options})

    for _ <- 1..3 do
      assert {:error, %Error{type: :gone}} = Net.stats()

      # Make the ends a second older, so that they count no more. The answer comes when the next fetcher has begun.
      age = fn state -> %{state | ends: Enum.map(state.ends, &(&1 - 1_000))} end
      :sys.replace_state(net, age, :infinity)
    end
  end

  test "a net that is stopped leaves no process behind" do
    program = Tmesh.Fetcher.quiet()
    {:ok, net} = Net.start_link(address: "127.0.0.1", program: program)
    {:links, links} = Process.info(net, :links)
    # Only those of this net: other processes of the VM come and go.
    own = for pid <- links, is_pid(pid), pid != self(), do: {pid, Process.monitor(pid)}
    assert length(own) > 60
    ports = for port <- links, is_port(port), do: {port, Port.monitor(port)}
    # The ports of the fetcher and of the socket for other programs.
    assert length(ports) == 2
    :ok = GenServer.stop(net)
    for {pid, monitor} <- own, do: assert_receive({:DOWN, ^monitor, :process, ^pid, _reason})
    for {port, monitor} <- ports, do: assert_receive({:DOWN, ^monitor, :port, ^port, _reason})
  end
end
