# SPDX-License-Identifier: MIT
defmodule Tmesh.ConformanceDriver do
  @moduledoc false
  # One process of the conformance suite, by the Elixir application. driver.c describes the
  # commands.

  alias Tmesh.{Arena, Bundle, Channel, Descriptor, PagePool, Pages, Slot, ZeroCopy}
  alias Tmesh.{Pages.Sequence, ZeroCopy.TensorRef}

  def main do
    # A working peer is as slow as its machine, so wait long.
    config = [max_shared_memory_mb: 64, region_pool_mb: 0, timeout_ms: 60_000]
    Application.put_env(:tmesh, :zero_copy, config)
    # Its words have standard output to themselves.
    {:ok, _started} = Application.ensure_all_started(:logger)
    Logger.configure(level: :warning)
    {:ok, _started} = Application.ensure_all_started(:tmesh)
    # A process without descriptors loads no code.
    {:ok, modules} = :application.get_key(:tmesh, :modules)
    Enum.each([Base, Task, Exception | modules], &Code.ensure_loaded/1)
    loop(%{})
  end

  defp loop(objects) do
    case IO.gets("") do
      :eof ->
        System.halt(0)

      line ->
        line |> String.trim_trailing("\n") |> String.split("\t") |> answer(objects) |> loop()
    end
  end

  defp answer([verb | fields], objects) do
    {options, fields} = Enum.split_with(fields, &String.contains?(&1, "="))
    options = Enum.map(options, &option(String.split(&1, "=", parts: 2), objects))

    case run(verb, fields, options, objects) do
      :ok -> say("ok\t", objects)
      {:ok, value} -> say("ok\t#{value}", objects)
      {:ok, value, objects} -> say("ok\t#{value}", objects)
      {:error, error} -> say("error\t:#{error.type}\t#{error.message}", objects)
    end
  end

  defp say(text, objects) do
    IO.puts(text)
    objects
  end

  defp option([key, text], objects) do
    value =
      cond do
        text in ["true", "false"] -> text == "true"
        key in ["label", "metadata", "name"] -> text
        key in ["arena", "tensor"] -> objects[text]
        true -> String.to_integer(text, if(key == "mode", do: 8, else: 10))
      end

    {String.to_atom(key), value}
  end

  # Verbs whose result is kept under the name that comes first, and described in the answer.
  @makers ~w(create put open arena channel join gather export import take receive bundle unbundle
             member slot follow named value pin connect pool pages sequence fork find)

  defp run(verb, [name | fields], options, objects) when verb in @makers do
    with {:ok, thing} <- make(verb, fields, options, objects), do: keep(thing, name, objects)
  end

  # A socket's name is in no folder.
  defp run("listen", [name], [], objects) do
    at = "tmesh-conformance-#{System.pid()}-#{name}"
    {:ok, socket} = :socket.open(:local, :stream)
    :ok = :socket.bind(socket, %{family: :local, path: <<0, at::binary>>})
    :ok = :socket.listen(socket)
    {:ok, at, Map.put(objects, name, socket)}
  end

  defp run("accept", [name], [], objects) do
    {:ok, accepted} = :socket.accept(objects[name])
    :ok = :socket.close(objects[name])
    keep(accepted, name, objects)
  end

  defp run("kept", [to, name], [], objects) do
    case Tmesh.open_kept(name) do
      {:ok, several} when is_list(several) ->
        named = for {ref, i} <- Enum.with_index(several), into: objects, do: {"#{to}.#{i}", ref}
        {:ok, Enum.map_join(several, ", ", &elem(told(&1), 1)), named}

      {:ok, one} ->
        keep(one, to, objects)

      error ->
        error
    end
  end

  defp run("recv", [name | to], options, objects) do
    case Channel.recv(objects[name], wait(options)) do
      {:ok, data} when is_binary(data) -> {:ok, "bytes " <> hex(data)}
      {:ok, {ref, data}} -> {:ok, "tensor " <> hex(data), Map.put(objects, hd(to), ref)}
      {:ok, ref} -> {:ok, "tensor ", Map.put(objects, hd(to), ref)}
      error -> error
    end
  end

  defp run("reset", [], [], objects) do
    for {_name, thing} <- objects, do: drop(thing)
    :erlang.garbage_collect()
    Tmesh.Native.sweep()
    with {:ok, stats} <- Tmesh.stats(), do: {:ok, stats.regions_live, %{}}
  end

  # Nothing is closed.
  defp run("exit", [], [], _objects), do: System.halt(0)

  defp run("drop", [name], [], _objects), do: Tmesh.drop(name)
  defp run("flush", [], options, _objects), do: Tmesh.flush(wait(options))
  defp run("backend", [], [], _objects), do: Tmesh.backend()

  defp run("cap", [name], [], _objects),
    do: with({:ok, caps} <- Tmesh.caps(), do: {:ok, Enum.find(caps, &(&1.name == name)).level})

  defp run("holders", [id], [], _objects) do
    with {:ok, holders} <- Tmesh.holders(id), do: {:ok, Enum.map_join(holders, " ", & &1.pid)}
  end

  defp run("regions", [id], [], _objects) do
    with {:ok, regions} <- Tmesh.regions() do
      if r = Enum.find(regions, &(&1.id == id)) do
        state = if r.revoked, do: "revoked", else: if(r.sealed, do: "sealed", else: "open")
        mode = Integer.to_string(r.mode, 8)
        {:ok, "#{r.label} #{r.bytes} #{r.alloc_bytes} #{mode} #{state}"}
      else
        {:ok, "none"}
      end
    end
  end

  # The growth of the counters since the last question.
  defp run("stats", [], [], _objects) do
    with {:ok, now} <- Tmesh.stats() do
      before = Process.put(:stats, now) || %{}
      keys = [:copies, :bytes_copied, :regions_created, :regions_live]
      {:ok, Enum.map_join(keys, " ", &(now[&1] - Map.get(before, &1, 0)))}
    end
  end

  defp run("keep", [name, what], options, objects),
    do: with({:ok, _kept} <- Tmesh.keep(objects[what], name, options), do: :ok)

  defp run("hand", [name, what], options, objects) do
    case objects[what] do
      %Bundle{} = bundle -> Bundle.send(bundle, objects[name], options)
      ref -> ZeroCopy.send(ref, objects[name], options)
    end
  end

  # A bundle, or nothing.
  defp run("publish", [name | what], [], objects),
    do: Slot.publish(objects[name], objects[List.first(what)])

  # Verbs with a single object.
  defp run(verb, [name | fields], options, objects),
    do: act(verb, objects[name], fields, options)

  defp act("look", thing, [], []), do: told(thing)
  defp act(verb, thing, [], []) when verb in ["release", "close", "unpin"], do: drop(thing)
  defp act("seal", ref, [], []), do: ZeroCopy.seal(ref)
  defp act("revoke", ref, [], []), do: ZeroCopy.revoke(ref)
  defp act("touch", ref, [], []), do: ZeroCopy.touch(ref)
  defp act("lease", ref, [ms], options), do: ZeroCopy.lease(ref, number(ms), options)
  defp act("signal", ref, [value], []), do: ZeroCopy.signal(ref, number(value))
  defp act("reclaim", ref, [], options), do: ZeroCopy.reclaim(ref, wait(options))
  defp act("wait", ref, [n], options), do: ZeroCopy.wait(ref, number(n), wait(options))
  defp act("tenant", pool, [], options), do: PagePool.tenant(pool, options[:max_pages] || 0)
  defp act("append", sequence, [tokens], []), do: Sequence.append(sequence, number(tokens))
  defp act("truncate", sequence, [tokens], []), do: Sequence.truncate(sequence, number(tokens))
  defp act("share", sequence, [], []), do: Sequence.share(sequence)
  defp act("unshare", pages, [ticket], []), do: Pages.unshare(pages, ticket)
  defp act("cache", sequence, [text], []), do: Sequence.cache(sequence, hashes(text))

  # The hashes of the first blocks of the tokens 0, 1, 2 and so on, four in each.
  defp act("hashes", pages, [count], []) do
    blocks = for i <- 0..(number(count) - 1), do: (4 * i)..(4 * i + 3)
    {:ok, blocks |> Enum.scan(nil, &Pages.hash!(pages, &1, &2)) |> Enum.join() |> hex()}
  end

  defp act("write", %Sequence{} = sequence, [block, data], []),
    do: Sequence.write(sequence, number(block), 0, unhex(data))

  defp act("write", ref, [offset, data], []),
    do: ZeroCopy.write(ref, number(offset), unhex(data))

  # The first byte of each block of a sequence.
  defp act("read", %Sequence{} = sequence, [], []) do
    with {:ok, table} <- Sequence.block_table(sequence) do
      {:ok, Enum.map_join(0..(length(table) - 1)//1, &hex(Sequence.read!(sequence, &1, bytes: 1)))}
    end
  end

  # The binary is gone with its process.
  defp act("read", ref, [], []) do
    fn -> with({:ok, data} <- ZeroCopy.to_binary(ref), do: {:ok, hex(data)}) end
    |> Task.async()
    |> Task.await(:infinity)
    |> tap(fn _answer -> Tmesh.Native.sweep() end)
  end

  defp act("send", channel, [data], options) do
    data = unhex(data)
    message = if options[:tensor], do: {options[:tensor], data}, else: data
    Channel.send(channel, message, wait(options))
  end

  defp act("ref", %Bundle{} = bundle, [], options),
    do: Bundle.to_json(bundle, Keyword.take(options, [:hold]))

  defp act("ref", ref, [], []), do: TensorRef.to_json(ref)

  defp act("ref", ref, [], options) do
    {writable, hold} = Keyword.pop(options, :writable)

    with {:ok, ref} <- ZeroCopy.grant(ref, if(writable, do: :write, else: :read), hold),
         do: TensorRef.to_json(ref)
  end

  defp make("create", [dtype, shape], options, _objects),
    do: ZeroCopy.allocate(shape(shape), atom(dtype), options)

  defp make("put", [dtype, shape, data], options, _objects),
    do: ZeroCopy.from_binary(unhex(data), shape(shape), atom(dtype), options)

  defp make("open", [json], options, _objects) do
    {once, options} = Keyword.pop(options, :once)

    # Both as text and as a map, which are equivalent; `once` opens a ref that is good for one
    # opening.
    forms =
      case Tmesh.Native.json_decode(json) do
        {:ok, %{} = map} when once == nil -> [TensorRef.from_json(json), TensorRef.from_map(map)]
        _none -> [TensorRef.from_json(json)]
      end

    opened = for form <- forms, do: with({:ok, ref} <- form, do: ZeroCopy.open(ref, options))
    # A reference left to the garbage collector would keep the memory alive.
    with [{:ok, ref}, {:ok, _ref}] <- opened, do: drop(ref)

    case Enum.dedup_by(opened, fn {is, it} -> is == :ok or it.type end) do
      [_alike] -> List.last(opened)
    end
  end

  defp make("gather", [dtype, shape | parts], options, objects) do
    options = [shape: shape(shape), dtype: atom(dtype)] ++ options
    parts |> Enum.map(&part(&1, objects)) |> ZeroCopy.gather(options)
  end

  defp make("bundle", pairs, options, objects) do
    named = for [key, tensor] <- Enum.chunk_every(pairs, 2), do: {key, objects[tensor]}
    Bundle.put(named, options)
  end

  # A binary has one, as long as its process.
  defp make("pin", [of], [], objects) do
    {me, ref} = {self(), objects[of]}

    holder =
      spawn(fn ->
        pinned = ZeroCopy.to_binary(ref)
        send(me, {:pinned, elem(pinned, 0)})
        Process.sleep(:infinity)
        pinned
      end)

    receive(do: ({:pinned, :ok} -> {:ok, holder}))
  end

  defp make("connect", [at], [], _objects) do
    {:ok, socket} = :socket.open(:local, :stream)
    :ok = :socket.connect(socket, %{family: :local, path: <<0, at::binary>>})
    {:ok, socket}
  end

  defp make("value", [reader], [], objects),
    do: with({:ok, value} <- Slot.read(objects[reader]), do: {:ok, value.bundle})

  defp make("import", [of, dtype, shape], [], objects),
    do: ZeroCopy.from_dmabuf(objects[of], shape(shape), atom(dtype))

  defp make("arena", [], options, _objects), do: Arena.create(options)
  defp make("channel", [role], options, _objects), do: Channel.create(atom(role), options)
  defp make("join", [token, role], options, _), do: Channel.open(token, atom(role), options)
  defp make("export", [of], options, objects), do: ZeroCopy.export_dmabuf(objects[of], options)
  defp make("take", [socket], [], objects), do: ZeroCopy.recv(objects[socket])
  defp make("take", [pages, ticket], [], objects), do: Pages.open_sequence(objects[pages], ticket)
  defp make("receive", [socket], [], objects), do: Bundle.recv(objects[socket])
  defp make("unbundle", [json], options, _objects), do: Bundle.open(json, options)
  defp make("member", [of, key], [], objects), do: Bundle.fetch(objects[of], key)
  defp make("slot", [], options, _objects), do: Slot.create(options)
  defp make("follow", [token], [], _objects), do: Slot.open(token)
  defp make("named", [slot], [], _objects), do: Slot.open_named(slot)
  defp make("pool", [], options, _objects), do: PagePool.create(options)
  defp make("pages", [token], [], _objects), do: Pages.open(token)
  defp make("sequence", [pages], [], objects), do: Pages.sequence(objects[pages])
  defp make("fork", [of], [], objects), do: Sequence.fork(objects[of])
  defp make("find", [pages, text], [], objects), do: Pages.find(objects[pages], hashes(text))

  defp drop(%TensorRef{} = ref), do: ZeroCopy.release(ref)
  defp drop(%Channel{} = channel), do: Channel.close(channel)
  defp drop(%Bundle{} = bundle), do: Bundle.release(bundle)
  defp drop(%Descriptor{} = descriptor), do: Descriptor.close(descriptor)
  defp drop({:"$socket", _reference} = socket), do: :socket.close(socket)
  defp drop(%kind{} = slot) when kind in [Slot, Slot.Reader], do: Slot.close(slot)
  defp drop(%Sequence{} = sequence), do: Sequence.release(sequence)
  defp drop(%Pages{} = pages), do: Pages.close(pages)
  defp drop(%PagePool{} = pool), do: PagePool.close(pool)
  defp drop(%Arena{}), do: :ok
  defp drop(holder) when is_pid(holder), do: if(Process.exit(holder, :kill), do: :ok)

  defp part(text, objects) do
    case String.split(text, "/") do
      [name] -> objects[name]
      [name, offset, bytes] -> {objects[name], number(offset), number(bytes)}
    end
  end

  defp keep(thing, name, objects) do
    # The end of a channel stays open until it is closed, also without a variable.
    with %Channel{} = before <- objects[name], do: :ok = Channel.close(before)
    with({:ok, text} <- told(thing), do: {:ok, text, Map.put(objects, name, thing)})
  end

  # The answer that describes a new object.
  defp told(%TensorRef{} = ref) do
    with {:ok, info} <- ZeroCopy.info(ref) do
      writes = if :write in info.rights, do: "writable", else: "read-only"
      state = if info.sealed, do: "sealed", else: writes
      {:ok, "#{ref.dtype} [#{Enum.join(ref.shape, ",")}] #{state}"}
    end
  end

  defp told(%Bundle{} = it), do: {:ok, Enum.join(it.names ++ [it.byte_size, it.metadata], " ")}

  defp told(%Sequence{} = sequence), do: Sequence.tokens(sequence)

  defp told(%Pages{} = pages),
    do: with({:ok, i} <- Pages.info(pages), do: {:ok, "#{i.held} #{i.copies} #{i.bytes_copied}"})

  defp told(%PagePool{} = pool),
    do: with({:ok, info} <- PagePool.info(pool), do: {:ok, "#{info.handles} #{info.died}"})

  defp told(%kind{token: token}) when kind in [Channel, Slot], do: {:ok, token}
  defp told(_other), do: {:ok, ""}

  defp shape(text), do: text |> String.split(["[", ",", "]"], trim: true) |> Enum.map(&number/1)
  defp hashes(text), do: for(<<hash::binary-16 <- unhex(text)>>, do: hash)
  defp number(text), do: String.to_integer(text)
  defp atom(text), do: String.to_atom(text)
  defp hex(data), do: Base.encode16(data, case: :lower)
  defp unhex(text), do: Base.decode16!(text, case: :lower)
  # As long as it takes, unless the command has a limit.
  defp wait(options), do: options[:timeout] || :infinity
end
