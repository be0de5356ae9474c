# SPDX-License-Identifier: MIT
# Erlang distribution for net_fetch.py: net_peer.exs home BYTES | reader HOME. For each line of a
# reader's input the bytes come from the home as one message, and the reader prints the
# nanoseconds that this took.

say = fn line -> IO.puts("> #{line}") end

case System.argv() do
  ["home", bytes] ->
    data = String.duplicate(:crypto.strong_rand_bytes(1_048_576), div(String.to_integer(bytes), 1_048_576))

    spawn(fn ->
      Process.register(self(), :home)
      serve = fn serve -> receive do from -> send(from, {:bytes, data}) end; serve.(serve) end
      serve.(serve)
    end)

    say.("ready")
    IO.read(:stdio, :line)

  ["reader", home] ->
    true = Node.connect(String.to_atom(home))
    say.("ready")

    Enum.each(IO.stream(:stdio, :line), fn _line ->
      {spent, _} =
        :timer.tc(fn ->
          send({:home, String.to_atom(home)}, self())
          receive do {:bytes, data} -> byte_size(data) end
        end)

      :erlang.garbage_collect()
      say.(spent * 1000)
    end)
end
