# SPDX-License-Identifier: MIT
# A small ref between nodes, for net_fetch.py: net_open.exs ADDRESS home | reader HOME. For each line of a reader's input, "open" or
# "message", it says how many nanoseconds an open took until the first byte, or a message there and back.

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

          # Other bytes each time: what is kept is not fetched again.
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

    Enum.each(IO.stream(:stdio, :line), fn
      "message\n" ->
        before = System.monotonic_time(:nanosecond)
        send(home, {:message, self()})
        receive(do: (:message -> say.(System.monotonic_time(:nanosecond) - before)))

      "open\n" ->
        send(home, {:offer, self()})
        offer = receive(do: ({:offer, offer} -> offer))
        before = System.monotonic_time(:nanosecond)
        ref = Tmesh.Net.open!(offer)
        _first = ref |> ZeroCopy.to_binary!(copy: false) |> :binary.first()
        say.(System.monotonic_time(:nanosecond) - before)
        ZeroCopy.release!(ref)
        :ok = Tmesh.drop("net-" <> offer["checksum"])
    end)
end
