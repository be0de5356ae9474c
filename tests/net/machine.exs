# SPDX-License-Identifier: MIT
# A machine's node: does what the lines of its input say, and answers each with a line. Terms are
# in base64. It ends with its input.
#
#   elixir --name NODE -pa EBIN machine.exs ADDRESS

Code.require_file("liar.exs", __DIR__)

defmodule Machine do
  alias Tmesh.ZeroCopy

  def main([address]) do
    {:ok, _} = Application.ensure_all_started(:tmesh)
    provider = System.get_env("TMESH_TEST_PROVIDER", "tcp")
    lease_ms = String.to_integer(System.fetch_env!("TMESH_TEST_LEASE_MS"))
    net = {Tmesh.Net, address: address, provider: provider, lease_ms: lease_ms}
    options = [strategy: :one_for_one, max_restarts: 100, name: Machine.Supervisor]
    {:ok, _} = Supervisor.start_link([net], options)
    say("ready")
    loop([])
  end

  defp loop(held) do
    case IO.gets("") do
      :eof -> :ok
      line -> line |> String.split() |> act(held) |> loop()
    end
  end

  defp act(["connect", node], held) do
    say("#{Node.connect(String.to_atom(node))}")
    held
  end

  defp act(["offer", bytes, seed], held) do
    bytes = String.to_integer(bytes)
    data = data(bytes, seed)
    ref = ZeroCopy.from_binary!(data, [bytes], :uint8)

    {:ok, offer} = Tmesh.Net.offer(ref)
    say("#{encode(offer)} #{digest(data)}")
    [{ref, offer} | held]
  end

  # A bundle of tensors in regions of their own.
  defp act(["publish", name, count, bytes, seed], held) do
    bytes = String.to_integer(bytes)

    tensors =
      for number <- 1..String.to_integer(count) do
        data = data(bytes + number, "#{seed}#{number}")
        {"tensor#{number}", ZeroCopy.from_binary!(data, [bytes + number], :uint8)}
      end

    bundle = Tmesh.Bundle.put!(tensors, metadata: seed)
    Enum.each(tensors, fn {_name, ref} -> ZeroCopy.release!(ref) end)

    case Tmesh.Net.publish(name, bundle) do
      :ok -> say("ok #{digest(bundle)}")
      {:error, error} -> say("error:#{error.type}")
    end

    [bundle | held]
  end

  # A channel, which is this process's.
  defp act(["publish_channel", name], held) do
    channel = Tmesh.Channel.create!(:recv)

    case Tmesh.Net.publish(name, channel) do
      :ok -> say("ok #{channel.token}")
      {:error, error} -> say("error:#{error.type}")
    end

    [{:channel, channel} | held]
  end

  defp act(["lookup", name], held) do
    case Tmesh.Net.lookup(name) do
      {:ok, what} -> say("ok #{is_binary(what) && what}")
      {:error, error} -> say("error:#{error.type} #{encode(error.message)}")
    end

    held
  end

  # Try with a guessed offer, to open for writing, and with a ref to nothing.
  defp act(["without_rights", offer], held) do
    offer = decode(offer)
    guessed = Tmesh.Net.open(%{offer | "offer" => String.duplicate("0", 32)})
    ref = Tmesh.Net.open!(offer)
    writes = ZeroCopy.open(ZeroCopy.TensorRef.to_map!(ref), writable: true)
    token = "tm1m-" <> String.duplicate("0", 32) <> "-" <> String.duplicate("0", 32)
    nothing = Tmesh.Net.offer(%ZeroCopy.TensorRef{ref | handle: nil, token: token})
    ZeroCopy.release!(ref)
    say(Enum.map_join([guessed, writes, nothing], " ", fn {:error, error} -> error.type end))
    held
  end

  # By a process that ends.
  defp act(["publish_briefly", name], held) do
    task =
      Task.async(fn -> Tmesh.Net.publish!(name, ZeroCopy.from_binary!("brief", [5], :uint8)) end)

    say("#{Task.await(task, :infinity)}")
    held
  end

  defp act(["unpublish", name], held) do
    case Tmesh.Net.unpublish(name) do
      :ok -> say("ok")
      {:error, error} -> say("error:#{error.type}")
    end

    held
  end

  defp act(["names"], held) do
    say(Enum.join(Tmesh.Net.names(), " "))
    held
  end

  defp act(["disconnect", node], held) do
    say("#{Node.disconnect(String.to_existing_atom(node))}")
    held
  end

  defp act(["open_name", name, timeout], held) do
    say(open_name(name, String.to_integer(timeout)))
    held
  end

  # The same, and something else meanwhile.
  defp act(["begin_to_open_name", name, timeout], held) do
    timeout = String.to_integer(timeout)
    say("ok")
    [{:opening, [Task.async(fn -> open_name(name, timeout) end)]} | held]
  end

  # Only the fetcher holds the offered memory from now on.
  defp act(["release", offer], held) do
    offer = decode(offer)
    {ref, _offer} = List.keyfind!(held, offer, 1)
    say("#{ZeroCopy.release(ref)}")
    Enum.each(Process.list(), &:erlang.garbage_collect/1)
    held
  end

  defp act(["withdraw", offer], held) do
    case Tmesh.Net.withdraw(decode(offer)) do
      :ok -> say("ok")
      {:error, error} -> say("error #{error.type}")
    end

    held
  end

  # So many processes at once; each looks at the bytes.
  defp act(["open", count, timeout, offer], held) do
    offer = decode(offer)
    timeout = String.to_integer(timeout)

    1..String.to_integer(count)
    |> Enum.map(fn _number -> Task.async(fn -> open(offer, timeout) end) end)
    |> Task.await_many(:infinity)
    |> Enum.uniq()
    |> Enum.join(" ")
    |> say()

    held
  end

  # The same, and something else meanwhile.
  defp act(["begin_to_open", count, timeout, offer], held) do
    {offer, timeout} = {decode(offer), String.to_integer(timeout)}
    tasks = for _ <- 1..String.to_integer(count), do: Task.async(fn -> open(offer, timeout) end)
    say("ok")
    [{:opening, tasks} | held]
  end

  defp act(["opened"], held) do
    {:opening, tasks} = List.keyfind!(held, :opening, 0)
    tasks |> Task.await_many(:infinity) |> Enum.uniq() |> Enum.join(" ") |> say()
    List.keydelete(held, :opening, 0)
  end

  # Report an offer of the same bytes at two homes, and which of them is asked first.
  defp act(["at_two_homes", first, second], held) do
    [first, second] = offers = Enum.map([first, second], &decode/1)
    other = Map.take(second, ~w(home offer))
    both = Map.put(first, "other_homes", [other])
    {:ok, [%{sources: [{home, _id} | _rest]}]} = Tmesh.Net.Offer.wanted(both)
    say("#{encode(both)} #{Enum.find_index(offers, &(&1["home"] == home))}")
    held
  end

  # Open an offer that names another home. Report the error, whether the name is an atom now, and the number
  # of nodes that this one is connected to.
  defp act(["open_from", home, offer], held) do
    {:error, error} = Tmesh.Net.open(%{decode(offer) | "home" => home}, timeout: 600_000)

    atom =
      try do
        String.to_existing_atom(home)
      rescue
        ArgumentError -> nil
      end

    say("#{error.type} #{encode(error.message)} #{atom != nil} #{length(Node.list(:connected))}")
    held
  end

  # By a deadline, however patient otherwise.
  defp act(["open_by", deadline, how, what], held) do
    opts = [timeout: 600_000, deadline: String.to_integer(deadline)]

    opened =
      if how == "ref", do: Tmesh.Net.open(decode(what), opts), else: Tmesh.Net.open_name(what, opts)

    case opened do
      {:ok, what} -> say("open #{what.byte_size}")
      {:error, error} -> say("error:#{error.type}")
    end

    held
  end

  # Report the progress that the opening process gets: regions, whether each only grew, and bytes in all.
  defp act(["open_told", how, what], held) do
    opts = [timeout: 600_000, progress: self()]

    opened =
      if how == "ref", do: Tmesh.Net.open(decode(what), opts), else: Tmesh.Net.open_name(what, opts)

    told = Enum.group_by(progress(), & &1.checksum)

    whole? =
      Enum.all?(told, fn {_sum, all} ->
        bytes = Enum.map(all, & &1.bytes)
        bytes == Enum.sort(bytes) and List.last(bytes) == hd(all).region_bytes
      end)

    bytes = told |> Enum.map(fn {_sum, all} -> hd(all).region_bytes end) |> Enum.sum()

    say(
      "#{elem(opened, 0)} #{map_size(told)} #{whole?} #{bytes} #{length(List.flatten(Map.values(told)))}"
    )

    with {:ok, ref_or_bundle} <- opened do
      if is_struct(ref_or_bundle, Tmesh.Bundle),
        do: Tmesh.Bundle.release(ref_or_bundle),
        else: ZeroCopy.release!(ref_or_bundle)
    end

    held
  end

  # So many processes that wait for what is offered or published, until they are killed.
  defp act(["wait", count, how, what], held) do
    open =
      case how do
        "ref" -> fn -> Tmesh.Net.open(decode(what), timeout: 600_000) end
        "name" -> fn -> Tmesh.Net.open_name(what, timeout: 600_000) end
      end

    pids = for _number <- 1..String.to_integer(count), do: spawn(open)
    say("ok")
    [{:waiting, pids} | held]
  end

  defp act(["kill_waiters", count], held) do
    {:waiting, pids} = List.keyfind!(held, :waiting, 0)
    {dead, rest} = Enum.split(pids, String.to_integer(count))
    for pid <- dead, do: Process.exit(pid, :kill)
    say("#{length(rest)}")
    List.keyreplace(held, :waiting, 0, {:waiting, rest})
  end

  # All keys that a home gives to one reader, until they are given back or this node ends.
  defp act(["take_keys", home, offer], held) do
    %{"offer" => id} = decode(offer)
    home = {Tmesh.Net, String.to_existing_atom(home)}
    me = self()

    holder =
      spawn(fn ->
        for _ <- 1..80, do: send(home, {:tmesh_net, 1, {:lease, self(), make_ref(), id}})

        # Each is renewed while the others are made, which may take long.
        keys =
          Enum.reduce(1..80, [], fn _, keys ->
            keys =
              case receive(do: ({:tmesh_net, 1, {:answer, _h, _n, answer}} -> answer)) do
                {:ok, key, _address} -> [key | keys]
                _none_left -> keys
              end

            for key <- keys, do: send(home, {:tmesh_net, 1, {:renew, self(), key}})
            keys
          end)

        send(me, {:keys, length(keys)})
        renew(home, keys)
      end)

    receive(do: ({:keys, count} -> say("#{count}")))
    [{:holder, holder} | held]
  end

  # So many questions for a lease, by one who does nothing with the answers.
  defp act(["ask_often", home, count, offer], held) do
    %{"offer" => id} = decode(offer)
    home = {Tmesh.Net, String.to_existing_atom(home)}

    pid =
      spawn(fn ->
        for _ <- 1..String.to_integer(count),
            do: send(home, {:tmesh_net, 1, {:lease, self(), make_ref(), id}})

        say("ok")
        forget()
      end)

    [{:waiting, [pid]} | held]
  end

  # Another process waits already when they are given back.
  defp act(["open_and_give_back", timeout, offer], held) do
    {:holder, holder} = List.keyfind!(held, :holder, 0)
    spawn(fn -> Process.sleep(1_000) && Process.exit(holder, :kill) end)
    say(open(decode(offer), String.to_integer(timeout)))
    List.keydelete(held, :holder, 0)
  end

  # As other programs get it.
  defp act(["json", offer], held) do
    {:ok, %{json: json}} = offer |> decode() |> Tmesh.Worker.Payload.encode()
    say(IO.iodata_to_binary(json))
    held
  end

  # Return the JSON of the offer under a name.
  defp act(["json_of", name], held) do
    {:ok, offer} = Tmesh.Net.lookup(name)
    {:ok, %{json: json}} = Tmesh.Worker.Payload.encode(offer)
    say(IO.iodata_to_binary(json))
    held
  end

  defp act(["drop", name], held) do
    say("#{Tmesh.drop(name)}")
    held
  end

  # Open, and keep it open; and read it again later.
  defp act(["hold", offer], held) do
    ref = Tmesh.Net.open!(decode(offer))
    say(digest(ZeroCopy.to_binary!(ref, copy: false)))
    [{:held, ref} | held]
  end

  # By another process, while the net takes no questions: it is asked nothing, if that comes within the patience.
  defp act(["open_beside", patience, offer], held) do
    :ok = :sys.suspend(Tmesh.Net, :infinity)
    task = Task.async(fn -> open(decode(offer), 600_000) end)
    answer = Task.yield(task, String.to_integer(patience))
    :ok = :sys.resume(Tmesh.Net, :infinity)
    say(if answer, do: elem(answer, 1), else: "asks")
    _ = answer || Task.await(task, :infinity)
    held
  end

  defp act(["let_go"], held) do
    {:held, ref} = List.keyfind!(held, :held, 0)
    ZeroCopy.release!(ref)
    # Binaries hold it, too.
    Enum.each(Process.list(), &:erlang.garbage_collect/1)
    say("ok")
    List.keydelete(held, :held, 0)
  end

  defp act(["look"], held) do
    {:held, ref} = List.keyfind!(held, :held, 0)
    say(digest(ZeroCopy.to_binary!(ref, copy: false)))
    held
  end

  # Without a net's help: how long it takes to see the first byte.
  defp act(["plain", offer], held) do
    case ZeroCopy.open(decode(offer)) do
      {:ok, _ref} -> say("ok")
      {:error, error} -> say("#{error.type} #{encode(error.message)}")
    end

    held
  end

  defp act(["stats"], held) do
    case Tmesh.Net.stats() do
      {:ok, stats} -> say(Enum.map_join(stats, " ", fn {name, count} -> "#{name}=#{count}" end))
      {:error, error} -> say("error #{error.type}")
    end

    held
  end

  # A stream by name, and who pushes so many tensors into its outfeed.
  defp act(["feed", name, count, bytes, seed], held) do
    bytes = String.to_integer(bytes)
    {:ok, stream} = Tmesh.Stream.start_link(outfeed_limit: 1)
    :ok = Tmesh.Net.publish(name, stream)
    all = for number <- 1..String.to_integer(count), do: data(bytes, "#{seed}#{number}")

    spawn_link(fn ->
      for data <- all do
        ref = ZeroCopy.from_binary!(data, [bytes], :uint8)
        part = binary_part(data, 0, bytes - 5_000)
        # An index of its own: the same bytes are fetched once.
        more = Tmesh.Bundle.put!(%{"part" => {part, [bytes - 5_000], :u8}}, metadata: digest(data))
        Tmesh.Stream.push_outfeed(stream, %{"x" => {ref, byte_size(data)}, "bundles" => [more]})
      end
    end)

    say(Enum.map_join(all, " ", &digest/1))
    [{:stream, stream} | held]
  end

  defp act(["follow", name, ahead], held) do
    {:ok, stream} = Tmesh.Stream.start_link(from: name, ahead: String.to_integer(ahead))
    say("ok")
    [{:stream, stream} | held]
  end

  defp act(["pop", count], held) do
    {:stream, stream} = List.keyfind!(held, :stream, 0)
    say(pop(stream, String.to_integer(count)))
    held
  end

  # Both at a time, which `opened` tells: so many values of the stream, and the pages of an update.
  defp act(["begin_to_read", count, number], held) do
    {:stream, stream} = List.keyfind!(held, :stream, 0)
    {:follower, follower} = List.keyfind!(held, :follower, 0)
    {count, number} = {String.to_integer(count), String.to_integer(number)}

    tasks = [
      Task.async(fn -> pop(stream, count) end),
      Task.async(fn -> hd(String.split(sequence(follower, number))) end)
    ]

    say("ok")
    [{:opening, tasks} | held]
  end

  defp act(["unfollow"], held) do
    {:stream, stream} = List.keyfind!(held, :stream, 0)
    say("#{GenServer.stop(stream)}")
    List.keydelete(held, :stream, 0)
  end

  # A sequence of pages, the first `common` blocks of which are the same in each publisher's.
  defp act(["pages", name, blocks, common, seed], held) do
    {pool, pages} = pool(held)
    sequence = Tmesh.Pages.sequence!(pages)
    {blocks, common} = {String.to_integer(blocks), String.to_integer(common)}
    :ok = fill(sequence, 0, blocks, common, seed)
    log = Tmesh.Net.Pages.publish!(name, pages, sequence, tokens: tokens(blocks, common, seed))
    say(digest(sequence))
    [{:pages, log, sequence, common, seed}, {:pool, pool, pages} | List.keydelete(held, :pool, 0)]
  end

  # The last published: so many blocks more.
  defp act(["grow", blocks], held) do
    {:pages, log, sequence, common, seed} = List.keyfind!(held, :pages, 0)
    had = length(Tmesh.Pages.Sequence.block_table!(sequence))
    blocks = had + String.to_integer(blocks)
    :ok = fill(sequence, had, blocks, common, seed)
    tokens = tokens(blocks, common, seed)
    say("#{Tmesh.Net.Pages.update!(log, sequence, tokens: tokens)} #{digest(sequence)}")
    held
  end

  defp act(["follow_pages", name], held) do
    {pool, pages} = pool(held)
    follower = Tmesh.Net.Pages.follow!(name, pages)
    say("ok")
    [{:follower, follower}, {:pool, pool, pages} | List.keydelete(held, :pool, 0)]
  end

  # The whole sequence here, and the number of pages that came.
  defp act(["sequence", number], held) do
    {:follower, follower} = List.keyfind!(held, :follower, 0)
    say(sequence(follower, String.to_integer(number)))
    held
  end

  # It goes on here, by this node's own.
  defp act(["go_on", blocks], held) do
    {:follower, follower} = List.keyfind!(held, :follower, 0)
    sequence = Tmesh.Net.Pages.sequence!(follower)
    had = length(Tmesh.Pages.Sequence.block_table!(sequence))
    :ok = fill(sequence, had, had + String.to_integer(blocks), 0, "own")
    say("#{had} #{digest(sequence)}")
    Tmesh.Pages.Sequence.release(sequence)
    held
  end

  # The same under that name, for others: tokens of what was followed and of what is new are those of `seed`.
  defp act(["take_over", name, blocks, common, seed], held) do
    {:follower, follower} = List.keyfind!(held, :follower, 0)
    {:pool, _pool, pages} = List.keyfind!(held, :pool, 0)
    sequence = Tmesh.Net.Pages.sequence!(follower)
    had = length(Tmesh.Pages.Sequence.block_table!(sequence))
    {blocks, common} = {had + String.to_integer(blocks), String.to_integer(common)}
    :ok = fill(sequence, had, blocks, common, seed)
    log = Tmesh.Net.Pages.publish!(name, pages, sequence, tokens: tokens(blocks, common, seed))
    say(digest(sequence))
    [{:pages, log, sequence, common, seed} | held]
  end

  defp act(["leave_pages"], held) do
    {:follower, follower} = List.keyfind!(held, :follower, 0)
    say("#{Tmesh.Net.Pages.close(follower)}")
    List.keydelete(held, :follower, 0)
  end

  defp act(["held_pages"], held) do
    {:pool, pool, pages} = List.keyfind!(held, :pool, 0)
    Tmesh.Pages.trim!(pages)
    say("#{Tmesh.PagePool.info!(pool).held}")
    held
  end

  # Nothing is offered, held or kept any more.
  defp act(["clean"], held) do
    for {:held, ref} <- held, do: ZeroCopy.release(ref)
    for {:stream, stream} <- held, do: GenServer.stop(stream)
    for {:follower, follower} <- held, do: Tmesh.Net.Pages.close(follower)
    for {:channel, channel} <- held, do: Tmesh.Channel.close(channel)

    for {:pages, log, sequence, _common, _seed} <- held,
        do: {Tmesh.Net.Pages.close(log), Tmesh.Pages.Sequence.release(sequence)}

    for {:pool, pool, pages} <- held, do: {Tmesh.Pages.close(pages), Tmesh.PagePool.close(pool)}

    for {:waiting, pids} <- held, pid <- pids, do: Process.exit(pid, :kill)

    for {ref, offer}
        when ref not in [:held, :holder, :stream, :follower, :waiting, :opening, :liar, :channel] <-
          held,
        do: {Tmesh.Net.withdraw(offer), ZeroCopy.release(ref)}

    for %Tmesh.Bundle{} = bundle <- held, do: Tmesh.Bundle.release(bundle)
    Enum.each(Tmesh.Net.names(), &Tmesh.Net.unpublish/1)
    for kept <- Tmesh.kept!(), do: Tmesh.drop(kept.name)
    Enum.each(Process.list(), &:erlang.garbage_collect/1)
    say("ok")
    []
  end

  defp act(["kept"], held) do
    # Root's list has what other machines keep, too, where all have one module.
    here = for kept <- Tmesh.kept!(), match?({:ok, _opened}, Tmesh.open_kept(kept.name)), do: kept
    Enum.each(Process.list(), &:erlang.garbage_collect/1)
    say("#{length(here)}")
    held
  end

  defp act(words, held) do
    {said, held} = Liar.act(words, held)
    say(said)
    held
  end


  defp forget do
    receive(do: (_answer -> forget()))
  end

  # Return the progress that came before the open's answer.
  defp progress do
    receive do
      {:tmesh_progress, told} -> [told | progress()]
    after
      0 -> []
    end
  end

  defp renew(home, keys) do
    for key <- keys, do: send(home, {:tmesh_net, 1, {:renew, self(), key}})
    Process.sleep(500)
    renew(home, keys)
  end

  defp open(offer, timeout) do
    case Tmesh.Net.open(offer, timeout: timeout) do
      {:ok, ref} ->
        sum = digest(ZeroCopy.to_binary!(ref, copy: false))
        ZeroCopy.release!(ref)
        sum

      {:error, error} ->
        "error:#{error.type}"
    end
  end

  defp open_name(name, timeout) do
    case Tmesh.Net.open_name(name, timeout: timeout) do
      {:ok, %Tmesh.Bundle{} = bundle} ->
        said = "#{digest(bundle)} #{bundle.metadata}"
        Tmesh.Bundle.release(bundle)
        said

      {:error, error} ->
        "error:#{error.type}"
    end
  end

  defp pop(stream, count) do
    Enum.map_join(1..count, " ", fn _number ->
      case Tmesh.Stream.pop_outfeed(stream, 600_000) do
        {:ok, %{"x" => {ref, bytes}, "bundles" => [more]}} ->
          ^bytes = ref.byte_size
          data = ZeroCopy.to_binary!(ref, copy: false)
          sum = digest(data)

          true =
            ZeroCopy.to_binary!(more["part"], copy: false) == binary_part(data, 0, bytes - 5_000)

          Tmesh.Bundle.release(more)
          ZeroCopy.release!(ref)
          sum

        {:error, error} ->
          "error:#{error.type}"
      end
    end)
  end

  defp sequence(follower, number) do
    case Tmesh.Net.Pages.sequence(follower, number) do
      {:ok, sequence} ->
        info = Tmesh.Net.Pages.info!(follower)
        sum = digest(sequence)
        Tmesh.Pages.Sequence.release(sequence)
        "#{sum} #{info.fetched} #{info.had}"

      {:error, error} ->
        "error:#{error.type}"
    end
  end

  # One for all sequences of this machine.
  defp pool(held) do
    case List.keyfind(held, :pool, 0) do
      {:pool, pool, pages} ->
        {pool, pages}

      nil ->
        pool = Tmesh.PagePool.create!(page_bytes: 4096, page_tokens: 2, max_pages: 1024)
        {pool, Tmesh.Pages.open!(Tmesh.PagePool.tenant!(pool))}
    end
  end

  defp fill(sequence, first, blocks, common, seed) do
    :ok = Tmesh.Pages.Sequence.append(sequence, (blocks - first) * 2)

    for block <- first..(blocks - 1)//1 do
      seed = if block < common, do: "common", else: seed
      :ok = Tmesh.Pages.Sequence.write(sequence, block, 0, data(4096, "#{seed}#{block}"))
    end

    :ok
  end

  defp tokens(blocks, common, seed) do
    for block <- 0..(blocks - 1), half <- 0..1 do
      seed = if block < common, do: "common", else: seed
      :erlang.phash2({seed, block, half})
    end
  end

  defp data(bytes, seed),
    do: binary_part(String.duplicate(:crypto.hash(:sha512, seed), div(bytes, 64) + 1), 0, bytes)

  defp digest(%Tmesh.Bundle{} = bundle) do
    bundle
    |> Enum.map(fn {name, ref} -> [name, ZeroCopy.to_binary!(ref, copy: false)] end)
    |> digest()
  end

  defp digest(%Tmesh.Pages.Sequence{} = sequence) do
    blocks = sequence |> Tmesh.Pages.Sequence.block_table!() |> Enum.with_index()
    digest(for {_page, block} <- blocks, do: Tmesh.Pages.Sequence.read!(sequence, block))
  end

  defp digest(data), do: data |> :erlang.md5() |> Base.encode16(case: :lower)
  defp encode(term), do: term |> :erlang.term_to_binary() |> Base.encode64()
  defp decode(text), do: text |> Base.decode64!() |> :erlang.binary_to_term()
  defp say(text), do: IO.puts("> " <> text)
end

Machine.main(System.argv())
