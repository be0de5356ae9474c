# SPDX-License-Identifier: MIT
# A small ref between nodes, for net_fetch.py: net_open.exs ADDRESS home | reader HOME. For each line of a reader's input it says how many
# nanoseconds that took: "open", an open until the first byte; "message", a message there and back; "beside", an open of what another
# process here has open; "local", one of memory that was made here. The last two by a process of their own, of fifty in a row with what
# lets go of them. "refs" says both as JSON, for programs of other languages.

alias Tmesh.ZeroCopy
say = fn line -> IO.puts("> #{line}") end
[address | what] = System.argv()
{:ok, _} = Application.ensure_all_started(:tmesh)
{:ok, _} = Supervisor.start_link([{Tmesh.Net, address: address}], strategy: :one_for_one)

case what do
  ["home"] ->
    spawn(fn ->
      Process.register(self(), :home)

      serve = fn serve, ref ->
        receive do
          {:message, from} ->
            send(from, :message)
            serve.(serve, ref)

          # Other bytes each time: kept bytes are not fetched again.
          {:offer, from} ->
            ref && ZeroCopy.release!(ref)
            ref = ZeroCopy.from_binary!(:crypto.strong_rand_bytes(4096), [4096], :uint8)
            send(from, {:offer, Tmesh.Net.offer!(ref)})
            serve.(serve, ref)
        end
      end

      serve.(serve, nil)
    end)

    say.("ready")
    IO.read(:stdio, :line)

  ["reader", home] ->
    true = Node.connect(String.to_atom(home))
    home = {:home, String.to_atom(home)}
    say.("ready")

    fetch = fn ->
      send(home, {:offer, self()})
      receive(do: ({:offer, offer} -> offer))
    end

    # The time per call of many in a row: a single one has the scheduler's sleep and empty caches
    # in it.
    spent = fn open ->
      Task.async(fn ->
        before = System.monotonic_time(:nanosecond)

        for _ <- 1..50 do
          ref = open.()
          _first = ref |> ZeroCopy.to_binary!(copy: false) |> :binary.first()
          ZeroCopy.release!(ref)
        end

        div(System.monotonic_time(:nanosecond) - before, 50)
      end)
      |> Task.await(:infinity)
      |> say.()
    end

    far = fetch.()
    held = Tmesh.Net.open!(far)
    made = ZeroCopy.from_binary!(:crypto.strong_rand_bytes(4096), [4096], :uint8)
    near = ZeroCopy.TensorRef.to_map!(made)

    Enum.each(IO.stream(:stdio, :line), fn
      "beside\n" ->
        spent.(fn -> Tmesh.Net.open!(far) end)

      "local\n" ->
        spent.(fn -> ZeroCopy.open!(near) end)

      "refs\n" ->
        {:ok, %{json: json}} = Tmesh.Worker.Payload.encode([far, near])
        json |> IO.iodata_to_binary() |> say.()

      "message\n" ->
        before = System.monotonic_time(:nanosecond)
        send(home, {:message, self()})
        receive(do: (:message -> say.(System.monotonic_time(:nanosecond) - before)))

      "open\n" ->
        offer = fetch.()
        before = System.monotonic_time(:nanosecond)
        ref = Tmesh.Net.open!(offer)
        _first = ref |> ZeroCopy.to_binary!(copy: false) |> :binary.first()
        say.(System.monotonic_time(:nanosecond) - before)
        ZeroCopy.release!(ref)
        :ok = Tmesh.drop("net-" <> offer["checksum"])
    end)

    Enum.each([held, made], &ZeroCopy.release!/1)
end
