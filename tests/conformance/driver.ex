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
      {:ok, text} when is_binary(text) -> say("ok\t" <> text, objects)
      {:ok, text, objects} -> say("ok\t" <> text, objects)
      {:error, error} -> say("error\t:#{error.type}\t#{error.message}", objects)
    end
  end

  defp say(text, objects) do
    IO.puts(text)
    objects
  end

  defp option([key, "true"], _objects), do: {String.to_atom(key), true}
  defp option([key, "false"], _objects), do: {String.to_atom(key), false}

  defp option([key, text], _objects) when key in ~w(label metadata name),
    do: {String.to_atom(key), text}

  defp option(["mode", text], _objects), do: {:mode, String.to_integer(text, 8)}

  defp option([key, name], objects) when key in ~w(arena tensor),
    do: {String.to_atom(key), objects[name]}

  defp option([key, number], _objects), do: {String.to_atom(key), String.to_integer(number)}

  defp run("create", [name, dtype, shape], options, objects) do
    with {:ok, ref} <- ZeroCopy.allocate(shape(shape), String.to_atom(dtype), options),
         do: keep(name, ref, objects)
  end

  defp run("put", [name, dtype, shape, data], options, objects) do
    data = Base.decode16!(data, case: :lower)

    with {:ok, ref} <- ZeroCopy.from_binary(data, shape(shape), String.to_atom(dtype), options),
         do: keep(name, ref, objects)
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

    case Enum.dedup(Enum.map(opened, &kind/1)) do
      [:ok] -> keep(name, only_last(opened), objects)
      [_type] -> List.last(opened)
    end
  end

  defp run("ref", [name], options, objects) do
    case objects[name] do
      %Bundle{} = bundle -> Bundle.to_json(bundle, Keyword.take(options, [:hold]))
      ref -> with {:ok, ref} <- grant(ref, options), do: TensorRef.to_json(ref)
    end
  end

  defp run("flush", [], options, _objects), do: Tmesh.flush(options[:timeout] || :infinity)

  defp run("look", [name], [], objects), do: look(objects[name])

  # The binary is gone with its process.
  defp run("read", [name], [], objects) do
    ref = objects[name]

    fn ->
      with {:ok, data} <- ZeroCopy.to_binary(ref), do: {:ok, Base.encode16(data, case: :lower)}
    end
    |> Task.async()
    |> Task.await()
    |> tap(fn _answer -> Tmesh.Native.sweep() end)
  end

  defp run("write", [name, offset, data], [], objects),
    do: ZeroCopy.write(objects[name], String.to_integer(offset), Base.decode16!(data, case: :lower))

  defp run("seal", [name], [], objects), do: ZeroCopy.seal(objects[name])
  defp run("release", [name], [], objects), do: drop(objects[name])

  defp run("regions", [id], [], _objects) do
    with {:ok, regions} <- Tmesh.regions() do
      case Enum.find(regions, &(&1.id == id)) do
        nil ->
          {:ok, "none"}

        r ->
          state = if r.revoked, do: "revoked", else: if(r.sealed, do: "sealed", else: "open")
          mode = Integer.to_string(r.mode, 8)
          {:ok, "#{r.label} #{r.bytes} #{r.alloc_bytes} #{mode} #{state}"}
      end
    end
  end

  defp run("holders", [id], [], _objects) do
    with {:ok, holders} <- Tmesh.holders(id), do: {:ok, Enum.map_join(holders, " ", & &1.pid)}
  end

  defp run("cap", [name], [], _objects) do
    with {:ok, caps} <- Tmesh.caps(),
         do: {:ok, to_string(Enum.find(caps, &(&1.name == name)).level)}
  end

  # By how much they have grown since they were asked for last.
  defp run("stats", [], [], _objects) do
    with {:ok, now} <- Tmesh.stats() do
      before = Process.put(:stats, now) || %{}
      keys = [:copies, :bytes_copied, :regions_created, :regions_live]
      {:ok, Enum.map_join(keys, " ", &to_string(now[&1] - Map.get(before, &1, 0)))}
    end
  end

  defp run("arena", [name], options, objects) do
    with {:ok, arena} <- Arena.create(options), do: {:ok, "", Map.put(objects, name, arena)}
  end

  defp run("channel", [name, role], options, objects) do
    with {:ok, channel} <- Channel.create(role(role), options),
         do: {:ok, channel.token, Map.put(objects, name, channel)}
  end

  defp run("join", [name, token, role], options, objects) do
    with {:ok, channel} <- Channel.open(token, role(role), options),
         do: {:ok, "", Map.put(objects, name, channel)}
  end

  defp run("send", [name, data], options, objects) do
    data = Base.decode16!(data, case: :lower)
    message = if options[:tensor], do: {options[:tensor], data}, else: data

    case options[:timeout] do
      nil -> Channel.send(objects[name], message)
      timeout -> Channel.send(objects[name], message, timeout)
    end
  end

  defp run("recv", [name | to], options, objects) do
    received =
      case options[:timeout] do
        nil -> Channel.recv(objects[name])
        timeout -> Channel.recv(objects[name], timeout)
      end

    case received do
      {:ok, data} when is_binary(data) ->
        {:ok, "bytes " <> Base.encode16(data, case: :lower)}

      {:ok, %TensorRef{} = ref} ->
        {:ok, "tensor ", Map.put(objects, hd(to), ref)}

      {:ok, {ref, data}} ->
        {:ok, "tensor " <> Base.encode16(data, case: :lower), Map.put(objects, hd(to), ref)}

      error ->
        error
    end
  end

  defp run("close", [name], [], objects), do: drop(objects[name])
  defp run("revoke", [name], [], objects), do: ZeroCopy.revoke(objects[name])

  defp run("reclaim", [name], options, objects),
    do: ZeroCopy.reclaim(objects[name], options[:timeout] || :infinity)

  # A binary has one, as long as its process.
  defp run("pin", [name, to], [], objects) do
    {me, ref} = {self(), objects[name]}

    holder =
      spawn(fn ->
        pinned = ZeroCopy.to_binary(ref)
        send(me, {:pinned, elem(pinned, 0)})
        Process.sleep(:infinity)
        pinned
      end)

    receive do
      {:pinned, :ok} -> {:ok, "", Map.put(objects, to, holder)}
    end
  end

  defp run("unpin", [name], [], objects), do: drop(objects[name])

  defp run("lease", [name, ms], options, objects),
    do: ZeroCopy.lease(objects[name], String.to_integer(ms), options)

  defp run("touch", [name], [], objects), do: ZeroCopy.touch(objects[name])

  defp run("signal", [name, value], [], objects),
    do: ZeroCopy.signal(objects[name], String.to_integer(value))

  defp run("wait", [name, value], options, objects) do
    timeout = options[:timeout] || :infinity

    with {:ok, reached} <- ZeroCopy.wait(objects[name], String.to_integer(value), timeout),
         do: {:ok, to_string(reached)}
  end

  defp run("gather", [name, dtype, shape | parts], options, objects) do
    options = [shape: shape(shape), dtype: String.to_atom(dtype)] ++ options

    with {:ok, ref} <- ZeroCopy.gather(Enum.map(parts, &part(&1, objects)), options),
         do: keep(name, ref, objects)
  end

  defp run("export", [name, of], options, objects) do
    with {:ok, descriptor} <- ZeroCopy.export_dmabuf(objects[of], options),
         do: {:ok, "", Map.put(objects, name, descriptor)}
  end

  defp run("import", [name, descriptor, dtype, shape], [], objects) do
    dtype = String.to_atom(dtype)

    with {:ok, ref} <- ZeroCopy.from_dmabuf(objects[descriptor], shape(shape), dtype),
         do: keep(name, ref, objects)
  end

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
    {:ok, "", Map.put(objects, name, socket)}
  end

  defp run("accept", [name], [], objects) do
    {:ok, socket} = :socket.accept(objects[name])
    :ok = :socket.close(objects[name])
    {:ok, "", Map.put(objects, name, socket)}
  end

  defp run("hand", [name, what], options, objects) do
    case objects[what] do
      %Bundle{} = bundle -> Bundle.send(bundle, objects[name], options)
      ref -> ZeroCopy.send(ref, objects[name], options)
    end
  end

  defp run("receive", [name, to], [], objects),
    do: objects[name] |> Bundle.recv() |> bundle(to, objects)

  defp run("take", [name, to], [], objects) do
    with {:ok, ref} <- ZeroCopy.recv(objects[name]), do: keep(to, ref, objects)
  end

  defp run("bundle", [name | pairs], options, objects) do
    named = for [key, tensor] <- Enum.chunk_every(pairs, 2), do: {key, objects[tensor]}
    named |> Bundle.put(options) |> bundle(name, objects)
  end

  defp run("unbundle", [name, json], options, objects),
    do: json |> Bundle.open(options) |> bundle(name, objects)

  defp run("member", [name, of, key], [], objects) do
    {:ok, ref} = Bundle.fetch(objects[of], key)
    keep(name, ref, objects)
  end

  defp run("keep", [name, tensor], options, objects) do
    with {:ok, _ref} <- Tmesh.keep(objects[tensor], name, options), do: {:ok, ""}
  end

  defp run("kept", [to, name], [], objects) do
    case Tmesh.open_kept(name) do
      {:ok, several} when is_list(several) ->
        named = for {ref, i} <- Enum.with_index(several), into: objects, do: {"#{to}.#{i}", ref}
        {:ok, Enum.map_join(several, ", ", &elem(look(&1), 1)), named}

      {:ok, %Bundle{}} = kept ->
        bundle(kept, to, objects)

      {:ok, ref} ->
        keep(to, ref, objects)

      error ->
        error
    end
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

  defp run("slot", [name], options, objects) do
    with {:ok, slot} <- Slot.create(options), do: {:ok, slot.token, Map.put(objects, name, slot)}
  end

  defp run("publish", [name, what], [], objects) do
    with {:ok, generation} <- Slot.publish(objects[name], objects[what]),
         do: {:ok, to_string(generation)}
  end

  defp run("named", [to, name], [], objects) do
    with {:ok, reader} <- Slot.open_named(name), do: {:ok, "", Map.put(objects, to, reader)}
  end

  defp run("value", [to, name], [], objects) do
    with {:ok, value} <- Slot.read(objects[name]), do: bundle({:ok, value.bundle}, to, objects)
  end

  defp run("reset", [], [], objects) do
    for {_name, thing} <- objects, do: drop(thing)

    :erlang.garbage_collect()
    Tmesh.Native.sweep()
    with {:ok, stats} <- Tmesh.stats(), do: {:ok, to_string(stats.regions_live), %{}}
  end

  defp run("backend", [], [], _objects) do
    with {:ok, backend} <- Tmesh.backend(), do: {:ok, to_string(backend)}
  end

  defp drop(%TensorRef{} = ref), do: ZeroCopy.release(ref)
  defp drop(%Channel{} = channel), do: Channel.close(channel)
  defp drop(%Bundle{} = bundle), do: Bundle.release(bundle)
  defp drop(%Descriptor{} = descriptor), do: Descriptor.close(descriptor)
  defp drop({:"$socket", _reference} = socket), do: :socket.close(socket)
  defp drop(%kind{} = slot) when kind in [Slot, Slot.Reader], do: Slot.close(slot)
  defp drop(%Arena{}), do: :ok

  defp drop(holder) when is_pid(holder) do
    Process.exit(holder, :kill)
    :ok
  end

  defp grant(ref, []), do: {:ok, ref}

  defp grant(ref, options) do
    {writable, hold} = Keyword.pop(options, :writable)
    ZeroCopy.grant(ref, if(writable, do: :write, else: :read), hold)
  end

  defp part(text, objects) do
    case String.split(text, "/") do
      [name] -> objects[name]
      [name, offset, bytes] -> {objects[name], String.to_integer(offset), String.to_integer(bytes)}
    end
  end

  defp bundle(made, name, objects) do
    with {:ok, bundle} <- made do
      text = Enum.join(bundle.names ++ [bundle.byte_size, bundle.metadata], " ")
      {:ok, text, Map.put(objects, name, bundle)}
    end
  end

  # The others are let go of here: what waits for a garbage collection keeps the memory alive.
  defp only_last([{:ok, ref}]), do: ref

  defp only_last([{:ok, ref} | rest]) do
    :ok = drop(ref)
    only_last(rest)
  end

  defp kind({:ok, _ref}), do: :ok
  defp kind({:error, error}), do: error.type

  defp keep(name, ref, objects) do
    with {:ok, text} <- look(ref), do: {:ok, text, Map.put(objects, name, ref)}
  end

  defp look(ref) do
    with {:ok, info} <- ZeroCopy.info(ref) do
      state =
        cond do
          info.sealed -> "sealed"
          :write in info.rights -> "writable"
          true -> "read-only"
        end

      {:ok, "#{ref.dtype} [#{Enum.join(ref.shape, ",")}] #{state}"}
    end
  end

  defp shape(text) do
    for number <- text |> String.trim("[") |> String.trim("]") |> String.split(",", trim: true),
        do: String.to_integer(number)
  end

  defp role("send"), do: :send
  defp role("recv"), do: :recv
end
