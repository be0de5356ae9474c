# SPDX-License-Identifier: MIT
defmodule Tmesh.Net.Server do
  @moduledoc false
  # A node's net: the home of its own offers, and the reader of others'. tests/sim/sim_net.py models its protocol.
  #
  # Between nets, each {:tmesh_net, 1, message}:
  #
  #   {:lease, reader, number, offer}                      a reader asks; number is a reference of its own
  #   {:answer, home, number, {:ok, key, address} | {:bytes, binary} | {:error, type, text}}
  #   {:renew, reader, key}, {:done, reader, key}
  #
  # Small offers come in the answer: one round trip, where a fetch by a key takes four.
  #
  # In every version a question begins with {:lease, reader, number, ...} and an answer with {:answer, home, number,
  # ...}. A home answers a question of another version in its own version, with the error :unsupported. The reader
  # then reports this error.

  use GenServer

  import Tmesh.Net.Protocol
  require Logger

  alias Tmesh.Error
  alias Tmesh.Net.{Fetcher, TokenCache, Home, Local, Names, LocalSecret, Reader}

  @version Tmesh.Net.Protocol.version()

  @impl true
  def init(options) do
    Process.flag(:trap_exit, true)

    case Fetcher.open(options) do
      {:ok, port, dir} ->
        :ok = TokenCache.start()
        secret = LocalSecret.start()
        :ok = Local.start(dir)

        {:ok,
         %{
           options: options,
           port: port,
           secret: secret,
           # The reason why the fetcher is about to end, if it gave one.
           why: nil,
           # The recent times when fetchers ended.
           ends: [],
           next_id: 1,
           # The purpose of an answer, by the command's id.
           asked: %{},
           # Home: offers by our id, with the fetcher's id once it has one; leases by key.
           offers: %{},
           leases: %{},
           # Reader: fetches by checksum; and by id, fetched regions that are held until every process has opened
           # them.
           fetches: %{},
           held: %{},
           # Names published here.
           names: %{}
         }}

      {:error, error} ->
        {:stop, error}
    end
  end

  ## Calls of this node

  # Other nodes may make only this call. Every receiver of an offer knows its id, so the id gives no right to end
  # it.
  @impl true
  def handle_call({:published, name}, _from, state) do
    case state.names do
      %{^name => %{what: what}} -> {:reply, {:ok, what}, state}
      _none -> {:reply, :none, state}
    end
  end

  def handle_call(:began, _from, state), do: {:reply, :ok, state}

  def handle_call({:local, secret, request}, from, %{secret: secret} = state),
    do: local(request, from, state)

  # `from` is the caller's own claim: it selects the error here, and grants nothing.
  def handle_call(_request, {pid, _tag}, state) when node(pid) != node(),
    do: {:reply, {:error, Error.new(:access, "#{node()} does that for its own processes")}, state}

  def handle_call(_garbage, _from, state),
    do: {:reply, {:error, Error.new(:protocol, "#{node()} understands no such request")}, state}

  # A cast has no sender, so the secret proves that a process of this node sent it.
  @impl true
  def handle_cast({:local, secret, request}, %{secret: secret} = state), do: local(request, state)
  def handle_cast(_others, state), do: {:noreply, state}

  defp local({:offer, token}, {owner, _tag} = from, state),
    do: {:noreply, Home.offer(state, token, owner, from)}

  defp local({:withdraw, id}, from, state), do: Home.withdraw(state, id, from)

  defp local({:open, wanted, limits}, from, state),
    do: {:noreply, Reader.open(state, wanted, limits, from)}

  defp local({:publish, name, what}, {owner, _tag}, state) do
    if state.names[name] do
      {:reply, {:error, Error.new(:exists, "#{node()} has published that name already")}, state}
    else
      :ok = :pg.join(Names, name, self())
      published = %{what: what, owner: Process.monitor(owner)}
      {:reply, :ok, put_in(state.names[name], published)}
    end
  end

  defp local({:unpublish, name}, _from, state) do
    case state.names do
      %{^name => %{what: what}} -> {:reply, {:ok, what}, forget_name(state, name)}
      _none -> {:reply, {:error, Error.new(:not_found, "not published by #{node()}")}, state}
    end
  end

  defp local(:stats, from, state), do: {:noreply, ask(state, {:stats, from}, "stats", [])}

  defp local(_garbage, _from, state),
    do: {:reply, {:error, Error.new(:protocol, "#{node()} understands no such request")}, state}

  defp local({:withdraw, id}, state) when is_map_key(state.offers, id),
    do: {:noreply, Home.owner_ended(state, id)}

  defp local({:withdraw, _gone}, state), do: {:noreply, state}

  defp local({:opened, {id, monitor}, had}, state) do
    {key, dead, name} = had
    :ok = TokenCache.put(key, dead, name)
    Process.demonitor(monitor, [:flush])
    {:noreply, Reader.let_go(state, id, monitor)}
  end

  defp local({:cached, {key, dead, name}}, state) do
    :ok = TokenCache.put(key, dead, name)
    {:noreply, state}
  end

  defp local(_garbage, state), do: {:noreply, state}

  ## The fetcher

  @impl true
  def handle_info({port, {:data, text}}, %{port: port} = state) do
    case Fetcher.read(text) do
      {:ok, %{"id" => id} = message} when is_map_key(state.asked, id) ->
        {:noreply, take(state, id, message)}

      # The exit status follows.
      {:ok, %{"type" => "end", "message" => why}} when is_binary(why) ->
        {:noreply, %{state | why: why}}

      _other ->
        {:stop, Error.new(:protocol, "tmesh-net sent an answer without a request"), state}
    end
  end

  def handle_info({port, {:exit_status, status}}, %{port: port, why: why} = state),
    do: ended(%{state | why: nil}, if(why, do: "ended: #{why}", else: Fetcher.how(status)))

  # A command met an end that was not reported yet: then no status comes.
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

  # In another version, only the sender of a question and the number of an answer are known.
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

  # A process that serves other programs.
  def handle_info({:EXIT, pid, reason}, state)
      when is_pid(pid) and node(pid) == node() and reason != :normal,
      do: {:stop, reason, state}

  def handle_info(_other, state), do: {:noreply, state}

  # Closing its input ends the fetcher.
  @impl true
  def terminate(_reason, %{port: port}), do: send(port, {self(), :close})

  ## Messages of the fetcher

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

  # Ignore the answer to a command that ends a key or an offer, which may be gone already.
  defp answered(state, :nothing, _message), do: state

  ## Names

  defp forget_name(state, name) do
    {published, names} = Map.pop!(state.names, name)
    Process.demonitor(published.owner, [:flush])
    :ok = :pg.leave(Names, name, self())
    %{state | names: names}
  end

  ## The fetcher's end

  # Report it to every waiting process. Offers are made again by their tokens, while their owners have them.
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
