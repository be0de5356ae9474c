# SPDX-License-Identifier: MIT
defmodule Tmesh.ConformanceDriver do
  @moduledoc false
  # One process of the conformance suite, by the Elixir application. driver.c says how it is
  # spoken to.

  alias Tmesh.{Arena, Bundle, Channel, Descriptor, Slot, ZeroCopy}
  alias Tmesh.ZeroCopy.TensorRef

  def main do
    Application.put_env(:tmesh, :zero_copy, max_shared_memory_mb: 64, pool_mb: 0)
    {:ok, _started} = Application.ensure_all_started(:tmesh)
    # A process without descriptors loads no code.
    {:ok, modules} = :application.get_key(:tmesh, :modules)
    Enum.each([Base, Task, Exception | modules], &Code.ensure_loaded/1)
    Logger.configure(level: :warning)
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

  # What these make is kept under the name that comes first, and told.
  defp run("create", [name, dtype, shape], options, objects),
    do: shape |> shape() |> ZeroCopy.allocate(atom(dtype), options) |> keep(name, objects)

  defp run("put", [name, dtype, shape, data], options, objects) do
    data = Base.decode16!(data, case: :lower)
    data |> ZeroCopy.from_binary(shape(shape), atom(dtype), options) |> keep(name, objects)
  end

  defp run("open", [name, json], options, objects) do
    {once, options} = Keyword.pop(options, :once)

    # As text and as a map, which come to the same; once: one that is good for that alone.
    forms =
      case Tmesh.Native.json_decode(json) do
        {:ok, %{} = map} when once == nil -> [TensorRef.from_json(json), TensorRef.from_map(map)]
        _none -> [TensorRef.from_json(json)]
      end

    opened = for form <- forms, do: with({:ok, ref} <- form, do: ZeroCopy.open(ref, options))
    # What waits for a garbage collection would keep the memory alive.
    with [{:ok, ref}, {:ok, _ref}] <- opened, do: drop(ref)

    case Enum.dedup_by(opened, fn {is, it} -> is == :ok or it.type end) do
      [_alike] -> opened |> List.last() |> keep(name, objects)
    end
  end

  defp run("arena", [name], options, objects), do: options |> Arena.create() |> keep(name, objects)

  defp run("channel", [name, role], options, objects),
    do: role |> atom() |> Channel.create(options) |> keep(name, objects)

  defp run("join", [name, token, role], options, objects),
    do: token |> Channel.open(atom(role), options) |> keep(name, objects)

  defp run("gather", [name, dtype, shape | parts], options, objects) do
    options = [shape: shape(shape), dtype: atom(dtype)] ++ options
    parts |> Enum.map(&part(&1, objects)) |> ZeroCopy.gather(options) |> keep(name, objects)
  end

  defp run("export", [name, of], options, objects),
    do: objects[of] |> ZeroCopy.export_dmabuf(options) |> keep(name, objects)

  defp run("import", [name, of, dtype, shape], [], objects),
    do: objects[of] |> ZeroCopy.from_dmabuf(shape(shape), atom(dtype)) |> keep(name, objects)

  defp run("take", [name, from], [], objects),
    do: objects[from] |> ZeroCopy.recv() |> keep(name, objects)

  defp run("receive", [name, from], [], objects),
    do: objects[from] |> Bundle.recv() |> keep(name, objects)

  defp run("bundle", [name | pairs], options, objects) do
    named = for [key, tensor] <- Enum.chunk_every(pairs, 2), do: {key, objects[tensor]}
    named |> Bundle.put(options) |> keep(name, objects)
  end

  defp run("unbundle", [name, json], options, objects),
    do: json |> Bundle.open(options) |> keep(name, objects)

  defp run("member", [name, of, key], [], objects),
    do: objects[of] |> Bundle.fetch(key) |> keep(name, objects)

  defp run("slot", [name], options, objects), do: options |> Slot.create() |> keep(name, objects)
  defp run("follow", [name, token], [], objects), do: token |> Slot.open() |> keep(name, objects)

  defp run("named", [name, slot], [], objects),
    do: slot |> Slot.open_named() |> keep(name, objects)

  defp run("value", [name, reader], [], objects),
    do:
      with({:ok, value} <- Slot.read(objects[reader]), do: keep({:ok, value.bundle}, name, objects))

  # A binary has one, as long as its process.
  defp run("pin", [name, of], [], objects) do
    {me, ref} = {self(), objects[of]}

    holder =
      spawn(fn ->
        pinned = ZeroCopy.to_binary(ref)
        send(me, {:pinned, elem(pinned, 0)})
        Process.sleep(:infinity)
        pinned
      end)

    receive(do: ({:pinned, :ok} -> keep({:ok, holder}, name, objects)))
  end

  # A socket's name is in no folder.
  defp run("listen", [name], [], objects) do
    at = "tmesh-conformance-#{System.pid()}-#{name}"
    {:ok, socket} = :socket.open(:local, :stream)
    :ok = :socket.bind(socket, %{family: :local, path: <<0, at::binary>>})
    :ok = :socket.listen(socket)
    {:ok, at, Map.put(objects, name, socket)}
  end

  defp run("connect", [name, at], [], objects) do
    {:ok, socket} = :socket.open(:local, :stream)
    :ok = :socket.connect(socket, %{family: :local, path: <<0, at::binary>>})
    keep({:ok, socket}, name, objects)
  end

  defp run("accept", [name], [], objects) do
    accepted = :socket.accept(objects[name])
    :ok = :socket.close(objects[name])
    keep(accepted, name, objects)
  end

  defp run("kept", [to, name], [], objects) do
    case Tmesh.open_kept(name) do
      {:ok, several} when is_list(several) ->
        named = for {ref, i} <- Enum.with_index(several), into: objects, do: {"#{to}.#{i}", ref}
        {:ok, Enum.map_join(several, ", ", &elem(told(&1), 1)), named}

      kept ->
        keep(kept, to, objects)
    end
  end

  defp run("recv", [name | to], options, objects) do
    case Channel.recv(objects[name], options[:timeout] || :infinity) do
      {:ok, data} when is_binary(data) ->
        {:ok, "bytes " <> Base.encode16(data, case: :lower)}

      {:ok, {ref, data}} ->
        {:ok, "tensor " <> Base.encode16(data, case: :lower), Map.put(objects, hd(to), ref)}

      {:ok, ref} ->
        {:ok, "tensor ", Map.put(objects, hd(to), ref)}

      error ->
        error
    end
  end

  defp run("reset", [], [], objects) do
    for {_name, thing} <- objects, do: drop(thing)
    :erlang.garbage_collect()
    Tmesh.Native.sweep()
    with {:ok, stats} <- Tmesh.stats(), do: {:ok, stats.regions_live, %{}}
  end

  defp run("drop", [name], [], _objects) do
    start = String.trim_trailing(name, "*")

    if start == name do
      Tmesh.drop(name)
    else
      with {:ok, all} <- Tmesh.kept() do
        names = for %{name: name} <- all, String.starts_with?(name, start), do: name
        Enum.find(Enum.map(names, &Tmesh.drop/1), :ok, &(&1 != :ok))
      end
    end
  end

  defp run("flush", [], options, _objects), do: Tmesh.flush(options[:timeout] || :infinity)
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

  # By how much they have grown since they were asked for last.
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

  # These are about one thing.
  defp run(verb, [name | fields], options, objects),
    do: act(verb, objects[name], fields, options)

  defp act("look", thing, [], []), do: told(thing)
  defp act(verb, thing, [], []) when verb in ["release", "close", "unpin"], do: drop(thing)
  defp act("seal", ref, [], []), do: ZeroCopy.seal(ref)
  defp act("revoke", ref, [], []), do: ZeroCopy.revoke(ref)
  defp act("touch", ref, [], []), do: ZeroCopy.touch(ref)
  defp act("lease", ref, [ms], options), do: ZeroCopy.lease(ref, String.to_integer(ms), options)
  defp act("signal", ref, [value], []), do: ZeroCopy.signal(ref, String.to_integer(value))

  defp act("reclaim", ref, [], options),
    do: ZeroCopy.reclaim(ref, options[:timeout] || :infinity)

  defp act("wait", ref, [value], options),
    do: ZeroCopy.wait(ref, String.to_integer(value), options[:timeout] || :infinity)

  defp act("write", ref, [offset, data], []),
    do: ZeroCopy.write(ref, String.to_integer(offset), Base.decode16!(data, case: :lower))

  # The binary is gone with its process.
  defp act("read", ref, [], []) do
    fn ->
      with {:ok, data} <- ZeroCopy.to_binary(ref), do: {:ok, Base.encode16(data, case: :lower)}
    end
    |> Task.async()
    |> Task.await()
    |> tap(fn _answer -> Tmesh.Native.sweep() end)
  end

  defp act("send", channel, [data], options) do
    data = Base.decode16!(data, case: :lower)
    message = if options[:tensor], do: {options[:tensor], data}, else: data
    Channel.send(channel, message, options[:timeout] || :infinity)
  end

  defp act("ref", %Bundle{} = bundle, [], options),
    do: Bundle.to_json(bundle, Keyword.take(options, [:hold]))

  defp act("ref", ref, [], []), do: TensorRef.to_json(ref)

  defp act("ref", ref, [], options) do
    {writable, hold} = Keyword.pop(options, :writable)

    with {:ok, ref} <- ZeroCopy.grant(ref, if(writable, do: :write, else: :read), hold),
         do: TensorRef.to_json(ref)
  end

  defp drop(%TensorRef{} = ref), do: ZeroCopy.release(ref)
  defp drop(%Channel{} = channel), do: Channel.close(channel)
  defp drop(%Bundle{} = bundle), do: Bundle.release(bundle)
  defp drop(%Descriptor{} = descriptor), do: Descriptor.close(descriptor)
  defp drop({:"$socket", _reference} = socket), do: :socket.close(socket)
  defp drop(%kind{} = slot) when kind in [Slot, Slot.Reader], do: Slot.close(slot)
  defp drop(%Arena{}), do: :ok
  defp drop(holder) when is_pid(holder), do: if(Process.exit(holder, :kill), do: :ok)

  defp part(text, objects) do
    case String.split(text, "/") do
      [name] -> objects[name]
      [name, offset, bytes] -> {objects[name], String.to_integer(offset), String.to_integer(bytes)}
    end
  end

  defp keep({:ok, thing}, name, objects),
    do: with({:ok, text} <- told(thing), do: {:ok, text, Map.put(objects, name, thing)})

  defp keep(error, _name, _objects), do: error

  # What is answered of what was made.
  defp told(%TensorRef{} = ref) do
    with {:ok, info} <- ZeroCopy.info(ref) do
      writes = if :write in info.rights, do: "writable", else: "read-only"
      state = if info.sealed, do: "sealed", else: writes
      {:ok, "#{ref.dtype} [#{Enum.join(ref.shape, ",")}] #{state}"}
    end
  end

  defp told(%Bundle{} = it), do: {:ok, Enum.join(it.names ++ [it.byte_size, it.metadata], " ")}

  defp told(%kind{token: token}) when kind in [Channel, Slot], do: {:ok, token}
  defp told(_other), do: {:ok, ""}

  defp shape(text) do
    for number <- text |> String.trim("[") |> String.trim("]") |> String.split(",", trim: true),
        do: String.to_integer(number)
  end

  defp atom(text), do: String.to_atom(text)
end
