# SPDX-License-Identifier: MIT
# A machine's node (machine.exs) does things that no net would, in the place of its net or to another's. It
# reports the results, and its memory then.

defmodule Liar do
  # In place of this node's net this process gives every question the same answer.
  def act(["lie", answer], held) do
    :ok = Supervisor.terminate_child(Machine.Supervisor, Tmesh.Net)
    answer = answer |> Base.decode64!() |> Code.eval_string() |> elem(0)
    me = self()

    pid =
      spawn(fn ->
        Process.register(self(), Tmesh.Net)
        send(me, :registered)
        lie(answer)
      end)

    receive(do: (:registered -> {"ok", [{:liar, pid} | held]}))
  end

  # In place of this node's net this process says of every name what no node can have published.
  def act(["lie_of_names"], held) do
    :ok = Supervisor.terminate_child(Machine.Supervisor, Tmesh.Net)
    me = self()

    pid =
      spawn(fn ->
        Process.register(self(), Tmesh.Net)
        for name <- ["llama", "nobodys"], do: :pg.join(Tmesh.Net.Names, name, self())
        send(me, :registered)

        lie_of_names([
          nil,
          {:ok, nil},
          {:ok, %{}},
          {:ok, [1 | 2]},
          {:ok, %{"kind" => "channel"}},
          :ok
        ])
      end)

    receive(do: (:registered -> {"ok", [{:liar, pid} | held]}))
  end

  # A node that was given an offer ends it by its id.
  def act(["end_elsewhere", home, offer], held) do
    %{"offer" => id} = decode(offer)
    net = {Tmesh.Net, String.to_existing_atom(home)}
    # Without a word of who it is, and in the name of a process of the home.
    for request <- [
          {:withdraw, id},
          {:local, nil, {:withdraw, id}},
          {:local, "secret", {:withdraw, id}}
        ] do
      GenServer.cast(net, request)
      there = :erpc.call(elem(net, 1), Process, :whereis, [Tmesh.Net])
      send(net, {:"$gen_call", {there, make_ref()}, request})
    end

    # The memory that the offer's checksum opens on the home from now on.
    wrong = {"tm1m-" <> String.duplicate("0", 32) <> "-" <> String.duplicate("0", 32), "0"}
    %{"checksum" => sum, "region_bytes" => bytes} = decode(offer)
    GenServer.cast(net, {:had, {{sum, bytes}, [], wrong}})
    {:error, error} = GenServer.call(net, {:withdraw, id}, :infinity)
    had = :erpc.call(elem(net, 1), Tmesh.Net.TokenCache, :find, [{sum, bytes}])
    {"#{error.type} #{length(had)}", held}
  end

  # In another version of the protocol.
  def act(["lease_in", version, home, offer], held) do
    %{"offer" => id} = decode(offer)
    {version, _bindings} = Code.eval_string(version)
    home = {Tmesh.Net, String.to_existing_atom(home)}
    number = make_ref()
    send(home, {:tmesh_net, version, {:renew}})
    send(home, {:tmesh_net, version, {:lease, self(), number, id, :more}})

    receive do
      {:tmesh_net, 1, {:answer, _home, ^number, {:error, type, text}}} ->
        {"#{type} #{Regex.run(~r/is of version 1/, text)}", held}
    after
      600_000 -> {"nothing", held}
    end
  end

  def act(["honest"], held) do
    {:liar, pid} = List.keyfind!(held, :liar, 0)
    monitor = Process.monitor(pid)
    Process.exit(pid, :kill)
    receive(do: ({:DOWN, ^monitor, :process, _pid, _reason} -> :ok))
    {:ok, _net} = Supervisor.restart_child(Machine.Supervisor, Tmesh.Net)
    {"ok", List.keydelete(held, :liar, 0)}
  end

  defp lie(answer) do
    receive do
      {:tmesh_net, 1, {:lease, reader, number, _offer}} ->
        # A function makes the whole message.
        if is_function(answer),
          do: send(reader, answer.(number)),
          else: send(reader, {:tmesh_net, 1, {:answer, self(), number, answer}})

      _other ->
        :ok
    end

    lie(answer)
  end

  defp lie_of_names([lie | lies]) do
    receive do
      {:"$gen_call", from, {:published, _name}} -> GenServer.reply(from, lie)
      _other -> :ok
    end

    lie_of_names(lies ++ [lie])
  end

  defp decode(text), do: text |> Base.decode64!() |> :erlang.binary_to_term()
end
