# SPDX-License-Identifier: MIT
defmodule Tmesh.Net.Server do
  @moduledoc false
  # A node's net: home of what it offers, reader of what others do. tests/sim/sim_net.py is its protocol
  # as a model.
  #
  # Between nets, each {:tmesh_net, 1, message}:
  #
  #   {:lease, reader, number, offer}                      a reader asks; number is a reference of its own
  #   {:answer, home, number, {:ok, key, address} | {:bytes, binary} | {:error, type, text}}
  #   {:renew, reader, key}, {:done, reader, key}
  #
  # What is small comes in the answer: one round trip, where a fetch by a key takes four.
  #
  # In every version a question begins with {:lease, reader, number, ...} and an answer with {:answer, home, number, ...}.
  # Who is asked in another version answers in its own with the error :unsupported; who is answered so says it.

  use GenServer

  import Tmesh.Net.Speak
  require Logger

  alias Tmesh.Error
  alias Tmesh.Net.{Fetcher, Had, Home, Local, Names, Own, Reader}

  @version Tmesh.Net.Speak.version()

  @impl true
  def init(options) do
    Process.flag(:trap_exit, true)

    case Fetcher.open(options) do
      {:ok, port, dir} ->
        :ok = Had.start()
        secret = Own.start()
        :ok = Local.start(dir)

        {:ok,
         %{
           options: options,
           port: port,
           secret: secret,
           # When fetchers ended, of late.
           ends: [],
           next_id: 1,
           # By the command's id: what its answer is for.
           asked: %{},
           # Home: offers by our id, with the fetcher's once it has one; leases by key.
           offers: %{},
           leases: %{},
           # Reader: fetches by checksum; what was fetched and is held until all have opened it, by id.
           fetches: %{},
           held: %{},
           # What is published here, by name.
           names: %{}
         }}

      {:error, error} ->
        {:stop, error}
    end
  end

  ## Calls of this node

  # Of what other nodes may ask this is all that is a call. An offer's id is known to whoever was given the offer, and
  # is no right to end it.
  @impl true
  def handle_call({:published, name}, _from, state) do
    case state.names do
      %{^name => %{what: what}} -> {:reply, {:ok, what}, state}
      _none -> {:reply, :none, state}
    end
  end

  def handle_call(:began, _from, state), do: {:reply, :ok, state}

  def handle_call({:own, secret, request}, from, %{secret: secret} = state),
    do: own(request, from, state)

  # Who another node's `from` says that he is, is his own word.
  def handle_call(_request, {pid, _tag}, state) when node(pid) != node(),
    do: {:reply, {:error, Error.new(:access, "#{node()} does that for its own processes")}, state}

  def handle_call(_garbage, _from, state),
    do: {:reply, {:error, Error.new(:protocol, "#{node()} understands no such request")}, state}

  # A cast tells nothing of its sender: who knows the secret is a process of this node.
  @impl true
  def handle_cast({:own, secret, request}, %{secret: secret} = state), do: own(request, state)
  def handle_cast(_others, state), do: {:noreply, state}

  defp own({:offer, token}, {owner, _tag} = from, state),
    do: {:noreply, Home.offer(state, token, owner, from)}

  defp own({:withdraw, id}, from, state), do: Home.withdraw(state, id, from)

  defp own({:open, wanted, limits}, from, state),
    do: {:noreply, Reader.open(state, wanted, limits, from)}

  defp own({:publish, name, what}, {owner, _tag}, state) do
    if state.names[name] do
      {:reply, {:error, Error.new(:exists, "#{node()} has published that name already")}, state}
    else
      :ok = :pg.join(Names, name, self())
      published = %{what: what, owner: Process.monitor(owner)}
      {:reply, :ok, put_in(state.names[name], published)}
    end
  end

  defp own({:unpublish, name}, _from, state) do
    case state.names do
      %{^name => %{what: what}} -> {:reply, {:ok, what}, forget_name(state, name)}
      _none -> {:reply, {:error, Error.new(:not_found, "not published by #{node()}")}, state}
    end
  end

  defp own(:stats, from, state), do: {:noreply, ask(state, {:stats, from}, "stats", [])}

  defp own(_garbage, _from, state),
    do: {:reply, {:error, Error.new(:protocol, "#{node()} understands no such request")}, state}

  defp own({:withdraw, id}, state) when is_map_key(state.offers, id),
    do: {:noreply, Home.owner_ended(state, id)}

  defp own({:withdraw, _gone}, state), do: {:noreply, state}

  defp own({:opened, {id, monitor}, had}, state) do
    {key, dead, name} = had
    :ok = Had.put(key, dead, name)
    Process.demonitor(monitor, [:flush])
    {:noreply, Reader.let_go(state, id, monitor)}
  end

  defp own({:had, {key, dead, name}}, state) do
    :ok = Had.put(key, dead, name)
    {:noreply, state}
  end

  defp own(_garbage, state), do: {:noreply, state}

  ## The fetcher

  @impl true
  def handle_info({port, {:data, text}}, %{port: port} = state) do
    case Fetcher.read(text) do
      {:ok, %{"id" => id} = message} when is_map_key(state.asked, id) ->
        {:noreply, take(state, id, message)}

      _other ->
        {:stop, Error.new(:protocol, "tmesh-net said what nobody asked for"), state}
    end
  end

  def handle_info({port, {:exit_status, status}}, %{port: port} = state),
    do: ended(state, "ended with status #{status}")

  # A command met an end that was not told yet: then no status comes.
  def handle_info({:EXIT, port, reason}, %{port: port} = state),
    do: ended(state, "reads no more: #{inspect(reason)}")

  ## Other nets

  def handle_info({:tmesh_net, @version, {:lease, reader, number, id}}, state)
      when is_pid(reader),
      do: {:noreply, Home.lease(state, reader, number, id)}

  def handle_info({:tmesh_net, @version, {:renew, reader, key}}, state),
    do: {:noreply, Home.renew(state, reader, key)}

  def handle_info({:tmesh_net, @version, {:done, reader, key}}, state),
    do: {:noreply, Home.done(state, reader, key)}

  def handle_info({:tmesh_net, @version, {:answer, home, number, answer}}, state),
    do: {:noreply, Reader.answered(state, home, number, answer)}

  # Of another version: all that is known is whose question it is, or which of ours it answers.
  def handle_info({:tmesh_net, version, message}, state) when is_tuple(message) do
    case Tuple.to_list(message) do
      [:lease, reader, number | _rest] when is_pid(reader) ->
        why = "Tmesh.Net of #{node()} is of version #{@version}, and was asked in another one"
        answer(reader, number, Error.new(:unsupported, why))
        {:noreply, state}

      [:answer, home, number | _rest] ->
        {:noreply, Reader.answered_in(state, version, home, number)}

      _other ->
        {:noreply, state}
    end
  end

  ## Ends

  def handle_info({:lapsed, key}, state), do: {:noreply, Home.lapsed(state, key)}

  def handle_info({:silent, checksum, number}, state),
    do: {:noreply, Reader.silent(state, checksum, number)}

  def handle_info({:late, checksum, monitor}, state),
    do: {:noreply, Reader.late(state, checksum, monitor)}

  def handle_info({:again, checksum, number}, state),
    do: {:noreply, Reader.again(state, checksum, number)}

  def handle_info({:DOWN, monitor, :process, _pid, reason}, state) do
    lease = Enum.find(state.leases, fn {_key, lease} -> lease.monitor == monitor end)
    offer = Enum.find(state.offers, fn {_id, offer} -> offer.owner == monitor end)
    asking = Enum.find(state.fetches, fn {_sum, fetch} -> fetch.monitor == monitor end)
    held = Enum.find(state.held, fn {_id, monitors} -> monitor in monitors end)
    name = Enum.find(state.names, fn {_name, published} -> published.owner == monitor end)

    cond do
      name -> {:noreply, forget_name(state, elem(name, 0))}
      lease -> {:noreply, Home.end_lease(state, elem(lease, 0))}
      offer -> {:noreply, Home.owner_ended(state, elem(offer, 0))}
      asking -> {:noreply, Reader.home_ended(state, asking, reason)}
      held -> {:noreply, Reader.let_go(state, elem(held, 0), monitor)}
      true -> {:noreply, Reader.waiter_ended(state, monitor)}
    end
  end

  # One of those that serve other programs.
  def handle_info({:EXIT, pid, reason}, state)
      when is_pid(pid) and node(pid) == node() and reason != :normal,
      do: {:stop, reason, state}

  def handle_info(_other, state), do: {:noreply, state}

  # The end of its input ends the fetcher.
  @impl true
  def terminate(_reason, %{port: port}), do: send(port, {self(), :close})

  ## What the fetcher says

  defp take(state, id, %{"type" => "progress", "bytes" => bytes}) do
    {:fetch, checksum} = state.asked[id]
    Reader.progress(state, checksum, bytes)
  end

  defp take(state, id, message) do
    {what, asked} = Map.pop!(state.asked, id)
    state = %{state | asked: asked}

    case what do
      {_find_or_fetch, checksum} when is_binary(checksum) ->
        Reader.fetched(state, id, checksum, message)

      {kind, _of, _number} when kind in [:offer, :grant, :copy] ->
        Home.answered(state, what, message)

      _other ->
        answered(state, what, message)
    end
  end

  defp answered(state, {:reply, from}, %{"type" => "error"} = message) do
    GenServer.reply(from, {:error, Fetcher.error(message)})
    state
  end

  defp answered(state, {:reply, from}, _done) do
    GenServer.reply(from, :ok)
    state
  end

  defp answered(state, {:stats, from}, message) do
    names = ~w(offers keys fetches fetched failed resumed bytes_fetched)a
    stats = Map.new(names, &{&1, message[Atom.to_string(&1)]})
    GenServer.reply(from, {:ok, stats})
    state
  end

  # Of what is ended nothing more is wanted: a key or an offer may be gone already.
  defp answered(state, :nothing, _message), do: state

  ## Names

  defp forget_name(state, name) do
    {published, names} = Map.pop!(state.names, name)
    Process.demonitor(published.owner, [:flush])
    :ok = :pg.leave(Names, name, self())
    %{state | names: names}
  end

  ## The fetcher's end

  # Whoever waits is told; offers are made again by their tokens, while their owners have them.
  defp ended(state, how) do
    Logger.warning("tmesh: the fetcher #{how}")
    error = Error.new(:gone, "the fetcher of #{node()} #{how}")
    for {_id, what} <- state.asked, do: lost(what, error)

    state = state |> Home.fetcher_ended() |> Reader.fetcher_ended(error)
    begin_again(%{state | asked: %{}}, error)
  end

  defp begin_again(state, error) do
    within = 1_000 * state.options[:max_seconds]
    state = %{state | ends: [now() | Enum.filter(state.ends, &(now() - &1 < within))]}

    with true <- length(state.ends) <= state.options[:max_restarts],
         {:ok, port, _dir} <- Fetcher.open(state.options) do
      {:noreply, Home.offer_again(%{state | port: port})}
    else
      false -> {:stop, error, state}
      {:error, error} -> begin_again(state, error)
    end
  end

  defp lost({:offer, _id, from}, error) when from != nil, do: GenServer.reply(from, {:error, error})
  defp lost({:reply, from}, error), do: GenServer.reply(from, {:error, error})
  defp lost({:stats, from}, error), do: GenServer.reply(from, {:error, error})

  defp lost({what, reader, number}, error) when what in [:copy, :grant],
    do: answer(reader, number, error)

  defp lost(_what, _error), do: :ok
end
