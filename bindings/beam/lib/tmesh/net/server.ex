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
  require Logger

  alias Tmesh.Error
  alias Tmesh.Net.{Answer, Fetcher, Had, Local, Names}

  # Fetches that ask or read: what a fetcher takes from one address. Others wait their turn.
  @at_once 8
  # A home that has no key left is asked again, after so long, then twice as long, and so on.
  @again_ms 100
  @again_most_ms 5_000
  @small Answer.small()
  @version 1

  @impl true
  def init(options) do
    Process.flag(:trap_exit, true)

    case Fetcher.open(options) do
      {:ok, port, dir} ->
        :ok = Had.start()
        :ok = Local.start(dir)

        {:ok,
         %{
           options: options,
           port: port,
           began: now(),
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

  @impl true
  def handle_call({:offer, token}, {owner, _tag} = from, state) do
    id = Base.encode16(:crypto.strong_rand_bytes(16), case: :lower)
    offer = %{token: token, owner: Process.monitor(owner), native: nil, bytes: nil}
    state = put_in(state.offers[id], offer)
    {:noreply, ask(state, {:offer, id, from}, "offer", token: token)}
  end

  def handle_call({:withdraw, id}, from, state) do
    case state.offers do
      %{^id => %{native: native}} when native != nil ->
        {:noreply, withdraw(state, id, from)}

      # A new fetcher is about to offer it again, and will be told to end that.
      %{^id => %{owner: owner}} ->
        Process.demonitor(owner, [:flush])
        {:reply, :ok, %{state | offers: Map.delete(state.offers, id)}}

      _other ->
        {:reply, {:error, not_offered()}, state}
    end
  end

  def handle_call({:open, wanted, timeout, until}, {pid, _tag} = from, state) do
    monitor = Process.monitor(pid)
    waiter = {from, monitor, deadline(until, wanted.checksum, monitor)}

    case state.fetches[wanted.checksum] do
      nil ->
        {:noreply, begin(state, wanted, timeout, waiter)}

      fetch ->
        # Homes that this one knows of and the first did not.
        more = Enum.reject(wanted.sources, &(&1 in fetch.wanted.sources))
        wanted = %{fetch.wanted | sources: fetch.wanted.sources ++ more}
        waiters = [waiter | fetch.waiters]
        fetch = %{fetch | waiters: waiters, wanted: wanted, sources: fetch.sources ++ more}
        {:noreply, put_in(state.fetches[wanted.checksum], fetch)}
    end
  end

  def handle_call({:publish, name, what}, {owner, _tag}, state) do
    if state.names[name] do
      {:reply, {:error, Error.new(:exists, "#{node()} has published that name already")}, state}
    else
      :ok = :pg.join(Names, name, self())
      published = %{what: what, owner: Process.monitor(owner)}
      {:reply, :ok, put_in(state.names[name], published)}
    end
  end

  def handle_call({:unpublish, name}, _from, state) do
    case state.names do
      %{^name => %{what: what}} -> {:reply, {:ok, what}, forget_name(state, name)}
      _none -> {:reply, {:error, Error.new(:not_found, "not published by #{node()}")}, state}
    end
  end

  # Also other nodes ask.
  def handle_call({:published, name}, _from, state) do
    case state.names do
      %{^name => %{what: what}} -> {:reply, {:ok, what}, state}
      _none -> {:reply, :none, state}
    end
  end

  def handle_call(:stats, from, state), do: {:noreply, ask(state, {:stats, from}, "stats", [])}

  @impl true
  def handle_cast({:withdraw, id}, state) when is_map_key(state.offers, id),
    do: {:noreply, owner_ended(state, id)}

  def handle_cast({:withdraw, _gone}, state), do: {:noreply, state}

  def handle_cast({:opened, {id, monitor}, had}, state) do
    {key, dead, name} = had
    :ok = Had.put(key, dead, name)
    Process.demonitor(monitor, [:flush])
    {:noreply, let_go(state, id, monitor)}
  end

  def handle_cast({:had, {key, dead, name}}, state) do
    :ok = Had.put(key, dead, name)
    {:noreply, state}
  end

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
      when is_pid(reader) do
    case state.offers do
      %{^id => %{native: native, bytes: bytes}} when native != nil and bytes <= @small ->
        {:noreply, ask(state, {:copy, reader, number}, "copy", offer: native)}

      %{^id => %{native: native}} when native != nil ->
        {:noreply,
         ask(state, {:grant, reader, number}, "grant", offer: native, peer: "#{node(reader)}")}

      _other ->
        answer(reader, number, not_offered())
        {:noreply, state}
    end
  end

  def handle_info({:tmesh_net, @version, {:renew, reader, key}}, state) do
    case state.leases do
      %{^key => %{reader: ^reader} = lease} ->
        :ok = Process.cancel_timer(lease.timer, async: true, info: false)
        {:noreply, put_in(state.leases[key], %{lease | timer: lease_timer(state, key)})}

      _other ->
        {:noreply, state}
    end
  end

  def handle_info({:tmesh_net, @version, {:done, reader, key}}, state) do
    case state.leases do
      %{^key => %{reader: ^reader}} -> {:noreply, end_lease(state, key)}
      _other -> {:noreply, state}
    end
  end

  def handle_info({:tmesh_net, @version, {:answer, home, number, answer}}, state) do
    case Enum.find(state.fetches, fn {_sum, f} -> f.state == {:asking, number} end) do
      {checksum, fetch} ->
        answer = if is_pid(home), do: answer
        {:noreply, answered_by(state, checksum, fetch, home, Answer.read(answer, fetch.home))}

      nil ->
        give_back(state, home, answer)
        {:noreply, state}
    end
  end

  # Of another version: all that is known is whose question it is, or which of ours it answers.
  def handle_info({:tmesh_net, version, message}, state) when is_tuple(message) do
    case Tuple.to_list(message) do
      [:lease, reader, number | _rest] when is_pid(reader) ->
        why = "Tmesh.Net of #{node()} is of version #{@version}, and was asked in another one"
        answer(reader, number, Error.new(:unsupported, why))
        {:noreply, state}

      [:answer, home, number | _rest] ->
        case Enum.find(state.fetches, fn {_sum, f} -> f.state == {:asking, number} end) do
          {checksum, fetch} ->
            answer = Answer.of_version(version, fetch.home)
            {:noreply, answered_by(state, checksum, fetch, home, answer)}

          nil ->
            {:noreply, state}
        end

      _other ->
        {:noreply, state}
    end
  end

  ## Ends

  def handle_info({:lapsed, key}, state) do
    if state.leases[key],
      do: Logger.info("tmesh: a lease of #{node(state.leases[key].reader)} lapsed")

    {:noreply, end_lease(state, key)}
  end

  def handle_info({:silent, checksum, number}, state) do
    case state.fetches do
      %{^checksum => %{state: {:asking, ^number}} = fetch} ->
        why = Error.new(:timeout, "#{fetch.home} did not answer in time")
        {:noreply, next_home(state, checksum, why)}

      _other ->
        {:noreply, state}
    end
  end

  # Who waits no longer is told, and the last one takes the fetch along.
  def handle_info({:late, checksum, monitor}, state) do
    with %{waiters: waiters} <- state.fetches[checksum],
         {from, ^monitor, _timer} <- List.keyfind(waiters, monitor, 1) do
      Process.demonitor(monitor, [:flush])
      GenServer.reply(from, {:error, Error.new(:timeout, "it was not here by the deadline")})
      {:noreply, waiter_ended(state, monitor)}
    else
      nil -> {:noreply, state}
    end
  end

  def handle_info({:again, checksum, number}, state) do
    case state.fetches do
      %{^checksum => %{state: {:again, ^number}} = fetch} ->
        state = put_in(state.fetches[checksum].sources, fetch.wanted.sources)
        {:noreply, next_home(state, checksum, nobody_left())}

      _other ->
        {:noreply, state}
    end
  end

  def handle_info({:DOWN, monitor, :process, _pid, reason}, state) do
    lease = Enum.find(state.leases, fn {_key, lease} -> lease.monitor == monitor end)
    offer = Enum.find(state.offers, fn {_id, offer} -> offer.owner == monitor end)
    asking = Enum.find(state.fetches, fn {_sum, fetch} -> fetch.monitor == monitor end)
    held = Enum.find(state.held, fn {_id, monitors} -> monitor in monitors end)
    name = Enum.find(state.names, fn {_name, published} -> published.owner == monitor end)

    cond do
      name -> {:noreply, forget_name(state, elem(name, 0))}
      lease -> {:noreply, end_lease(state, elem(lease, 0))}
      offer -> {:noreply, owner_ended(state, elem(offer, 0))}
      asking -> {:noreply, home_ended(state, asking, reason)}
      held -> {:noreply, let_go(state, elem(held, 0), monitor)}
      true -> {:noreply, waiter_ended(state, monitor)}
    end
  end

  # One of those that serve other programs.
  def handle_info({:EXIT, pid, reason}, state) when is_pid(pid) and reason != :normal,
    do: {:stop, reason, state}

  def handle_info(_other, state), do: {:noreply, state}

  # The end of its input ends the fetcher.
  @impl true
  def terminate(_reason, %{port: port}), do: send(port, {self(), :close})

  ## Home

  defp take(state, id, %{"type" => "progress"}) do
    {:fetch, checksum} = state.asked[id]
    progress(state, checksum)
  end

  defp take(state, id, message) do
    {what, asked} = Map.pop!(state.asked, id)
    state = %{state | asked: asked}

    case what do
      {_find_or_fetch, checksum} when is_binary(checksum) -> fetched(state, id, checksum, message)
      _other -> answered(state, what, message)
    end
  end

  defp answered(state, {:offer, id, from}, %{"type" => "offered"} = message) do
    case state.offers do
      %{^id => offer} ->
        if from, do: GenServer.reply(from, {:ok, offered(id, message)})
        offer = %{offer | native: message["offer"], bytes: message["bytes"]}
        put_in(state.offers[id], offer)

      # Its owner has ended meanwhile.
      _none ->
        ask(state, :nothing, "withdraw", offer: message["offer"])
    end
  end

  defp answered(state, {:offer, id, from}, message) do
    {offer, offers} = Map.pop(state.offers, id)
    if offer, do: Process.demonitor(offer.owner, [:flush])
    error = Fetcher.error(message)

    if from,
      do: GenServer.reply(from, {:error, error}),
      else: Logger.warning("tmesh: an offer is gone with the fetcher: #{error.message}")

    %{state | offers: offers}
  end

  defp answered(state, {:grant, reader, number}, %{"type" => "granted", "key" => key} = message) do
    answer(reader, number, {:ok, key, message["address"]})
    lease = %{reader: reader, monitor: Process.monitor(reader), timer: lease_timer(state, key)}
    put_in(state.leases[key], lease)
  end

  defp answered(state, {:copy, reader, number}, %{"type" => "copied", "data" => digits}) do
    tell(reader, {:answer, self(), number, {:bytes, Base.decode16!(digits, case: :lower)}})
    state
  end

  defp answered(state, {what, reader, number}, message) when what in [:copy, :grant] do
    answer(reader, number, Fetcher.error(message))
    state
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

  defp offered(id, message) do
    %{
      "home" => Atom.to_string(node()),
      "offer" => id,
      "checksum" => message["checksum"],
      "region_bytes" => message["bytes"]
    }
  end

  defp owner_ended(state, id) do
    case state.offers[id] do
      %{native: nil, owner: owner} ->
        Process.demonitor(owner, [:flush])
        %{state | offers: Map.delete(state.offers, id)}

      _offer ->
        withdraw(state, id, nil)
    end
  end

  defp withdraw(state, id, from) do
    {offer, offers} = Map.pop!(state.offers, id)
    Process.demonitor(offer.owner, [:flush])

    ask(%{state | offers: offers}, if(from, do: {:reply, from}, else: :nothing), "withdraw",
      offer: offer.native
    )
  end

  defp end_lease(state, key) do
    case Map.pop(state.leases, key) do
      {nil, _leases} ->
        state

      {lease, leases} ->
        Process.demonitor(lease.monitor, [:flush])
        :ok = Process.cancel_timer(lease.timer, async: true, info: false)
        ask(%{state | leases: leases}, :nothing, "revoke", key: key)
    end
  end

  defp lease_timer(state, key),
    do: Process.send_after(self(), {:lapsed, key}, state.options[:lease_ms])

  defp answer(reader, number, {:ok, _key, _address} = answer),
    do: tell(reader, {:answer, self(), number, answer})

  defp answer(reader, number, %Error{type: type, message: text}),
    do: tell(reader, {:answer, self(), number, {:error, type, text}})

  defp not_offered, do: Error.new(:not_found, "#{node()} does not offer that, or not any more")

  ## Reader

  # What is kept here is not fetched, and its home is not asked.
  defp begin(state, wanted, timeout, waiter) do
    fetch = %{
      wanted: wanted,
      # Homes that were not asked yet, and the one that is.
      sources: wanted.sources,
      home: nil,
      # Whether the last home has no key left, how often that was so, and until when it may be.
      busy: false,
      times: 0,
      until: nil,
      timeout: timeout,
      waiters: [waiter],
      monitor: nil,
      state: {:finding, state.next_id}
    }

    put_in(state.fetches[wanted.checksum], fetch)
    |> ask({:find, wanted.checksum}, "find", checksum: wanted.checksum, bytes: wanted.bytes)
  end

  defp ask_in_turn(state, checksum) do
    if Enum.count(state.fetches, fn {_sum, f} ->
         elem(f.state, 0) in [:asking, :reading, :storing, :again]
       end) <
         @at_once,
       do: next_home(state, checksum, nobody_left()),
       else: put_in(state.fetches[checksum].state, {:queued, state.next_id})
  end

  # A place is free: whoever has waited longest.
  defp ask_queued(state) do
    waiting = for {sum, %{state: {:queued, since}}} <- state.fetches, do: {since, sum}

    case Enum.min(waiting, fn -> nil end) do
      nil -> state
      {_since, checksum} -> ask_in_turn(state, checksum)
    end
  end

  defp nobody_left do
    why = "none of the homes that the offer names has it any more: have it offered again"
    Error.new(:not_found, why)
  end

  # The one before could not, for this reason.
  defp next_home(state, checksum, error) do
    fetch = state.fetches[checksum]
    if fetch.monitor, do: Process.demonitor(fetch.monitor, [:flush])

    fetch = %{fetch | monitor: nil}
    until = fetch.until || now() + fetch.timeout

    case fetch.sources do
      [source | rest] ->
        ask_home(state, checksum, %{fetch | sources: rest}, source)

      [] when fetch.busy ->
        if now() < until,
          do: put_in(state.fetches[checksum], again(%{fetch | until: until}, checksum)),
          else: failed(put_in(state.fetches[checksum], fetch), checksum, error)

      [] ->
        failed(put_in(state.fetches[checksum], fetch), checksum, error)
    end
  end

  # All of its homes, later.
  defp again(fetch, checksum) do
    number = make_ref()
    most = min(@again_most_ms, @again_ms * Integer.pow(2, min(fetch.times, 10)))

    Process.send_after(
      self(),
      {:again, checksum, number},
      div(most, 2) + :rand.uniform(div(most, 2))
    )

    %{fetch | state: {:again, number}, times: fetch.times + 1, busy: false}
  end

  defp ask_home(state, checksum, fetch, {name, offer}) do
    state = put_in(state.fetches[checksum], %{fetch | home: name})

    # A ref is no reason to make an atom, or a connection.
    case Enum.find([node() | Node.list(:connected)], &(Atom.to_string(&1) == name)) do
      nil ->
        name = inspect(name, printable_limit: 255)
        why = "its home #{name} is not connected to #{node()}: Node.connect/1 does that"
        next_home(state, checksum, Error.new(:not_found, why))

      home ->
        number = make_ref()
        monitor = Process.monitor({Tmesh.Net, home})
        tell({Tmesh.Net, home}, {:lease, self(), number, offer})
        Process.send_after(self(), {:silent, checksum, number}, fetch.timeout)
        fetch = %{fetch | home: name, monitor: monitor, state: {:asking, number}}
        put_in(state.fetches[checksum], fetch)
    end
  end

  defp answered_by(state, checksum, fetch, home, {:ok, key, address}),
    do: read(state, checksum, fetch, home, key, address)

  defp answered_by(state, checksum, fetch, _home, {:bytes, data}),
    do: store(state, checksum, fetch, data)

  defp answered_by(state, checksum, _fetch, _home, {:error, error}) do
    state = put_in(state.fetches[checksum].busy, error.type == :limit_exceeded)
    next_home(state, checksum, error)
  end

  # Too late: given back, unless it came twice and is in use.
  defp give_back(state, home, {:ok, key, _address}) when is_pid(home) do
    unless Enum.any?(state.fetches, fn {_sum, f} ->
             match?({:reading, _id, ^key, _home}, f.state)
           end),
           do: tell(home, {:done, self(), key})

    :ok
  end

  defp give_back(_state, _home, _nothing), do: :ok

  defp read(state, checksum, fetch, home, key, address) do
    Process.demonitor(fetch.monitor, [:flush])
    fetch = %{fetch | monitor: nil, state: {:reading, state.next_id, key, home}}

    put_in(state.fetches[checksum], fetch)
    |> ask({:fetch, checksum}, "fetch",
      address: address,
      key: key,
      checksum: checksum,
      bytes: fetch.wanted.bytes,
      timeout_ms: fetch.timeout
    )
  end

  defp store(state, checksum, fetch, data) when byte_size(data) == fetch.wanted.bytes do
    Process.demonitor(fetch.monitor, [:flush])
    fetch = %{fetch | monitor: nil, state: {:storing, state.next_id}}

    put_in(state.fetches[checksum], fetch)
    |> ask({:fetch, checksum}, "store", checksum: checksum, data: Base.encode16(data, case: :lower))
  end

  defp store(state, checksum, fetch, data) do
    why = "#{fetch.home} gives #{byte_size(data)} bytes and offers #{fetch.wanted.bytes}"
    next_home(state, checksum, Error.new(:protocol, why))
  end

  defp progress(state, checksum) do
    with %{state: {:reading, _id, key, home}} <- state.fetches[checksum],
         do: tell(home, {:renew, self(), key})

    state
  end

  defp fetched(state, id, checksum, %{"type" => type} = message)
       when type in ["fetched", "found"] do
    unless message["kept"],
      do: Logger.warning("tmesh: what was fetched is not kept: #{message["why"]}")

    case pop_fetch(state, id, checksum) do
      {nil, state} ->
        ask(state, :nothing, "release", of: id)

      {fetch, state} ->
        monitors =
          for {from, monitor, timer} <- fetch.waiters do
            end_deadline(timer)
            GenServer.reply(from, {:ok, message["token"], message["region"], {id, monitor}})
            monitor
          end

        ask_queued(put_in(state.held[id], monitors))
    end
  end

  # Why it was not found among what is kept is of no interest: keeping it will say so.
  defp fetched(state, id, checksum, message) do
    case state.fetches[checksum] do
      %{state: {:finding, ^id}} ->
        ask_in_turn(state, checksum)

      %{state: {:reading, ^id, key, home}} ->
        tell(home, {:done, self(), key})
        next_home(state, checksum, Fetcher.error(message))

      %{state: {:storing, ^id}} ->
        next_home(state, checksum, Fetcher.error(message))

      _cancelled ->
        state
    end
  end

  # Unless all waiters have gone, and it was cancelled: another of the same bytes may have begun.
  defp pop_fetch(state, id, checksum) do
    case state.fetches[checksum] do
      %{state: {:reading, ^id, key, home}} = fetch ->
        tell(home, {:done, self(), key})
        {fetch, %{state | fetches: Map.delete(state.fetches, checksum)}}

      %{state: {how, ^id}} = fetch when how in [:finding, :storing] ->
        {fetch, %{state | fetches: Map.delete(state.fetches, checksum)}}

      _other ->
        {nil, state}
    end
  end

  # While nothing reads.
  defp failed(state, checksum, error) do
    {fetch, fetches} = Map.pop!(state.fetches, checksum)
    if fetch.monitor, do: Process.demonitor(fetch.monitor, [:flush])
    reply(fetch, error)
    ask_queued(%{state | fetches: fetches})
  end

  defp reply(fetch, error) do
    Enum.each(fetch.waiters, fn {from, monitor, timer} ->
      end_deadline(timer)
      Process.demonitor(monitor, [:flush])
      GenServer.reply(from, {:error, error})
    end)
  end

  defp home_ended(state, {checksum, fetch}, reason) do
    type = if reason == :noproc, do: :not_started, else: :gone
    next_home(state, checksum, Error.new(type, "Tmesh.Net of #{fetch.home}: #{inspect(reason)}"))
  end

  defp deadline(:infinity, _checksum, _monitor), do: nil

  defp deadline(until, checksum, monitor),
    do: Process.send_after(self(), {:late, checksum, monitor}, max(until, now()), abs: true)

  defp end_deadline(nil), do: :ok
  defp end_deadline(timer), do: :ok = Process.cancel_timer(timer, async: true, info: false)

  # The last one to go takes the fetch along.
  defp waiter_ended(state, monitor) do
    case Enum.find(state.fetches, fn {_sum, f} -> List.keymember?(f.waiters, monitor, 1) end) do
      nil ->
        state

      {checksum, fetch} ->
        {{_from, ^monitor, timer}, waiters} = List.keytake(fetch.waiters, monitor, 1)
        end_deadline(timer)

        case waiters do
          [] -> give_up(state, checksum, fetch)
          rest -> put_in(state.fetches[checksum], %{fetch | waiters: rest})
        end
    end
  end

  defp give_up(state, checksum, %{state: {how, _number}}) when how in [:asking, :queued, :again],
    do: failed(state, checksum, Error.new(:cancelled, "nobody waits"))

  defp give_up(state, checksum, fetch) do
    id = elem(fetch.state, 1)
    {_fetch, state} = pop_fetch(state, id, checksum)
    state |> ask(:nothing, "cancel", of: id) |> ask_queued()
  end

  defp let_go(state, id, monitor) do
    case state.held do
      %{^id => [^monitor]} ->
        ask(%{state | held: Map.delete(state.held, id)}, :nothing, "release", of: id)

      %{^id => monitors} ->
        put_in(state.held[id], List.delete(monitors, monitor))

      _none ->
        state
    end
  end

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

    for {_sum, fetch} <- state.fetches,
        not match?({:asking, _number}, fetch.state),
        do: reply(fetch, error)

    for {_key, lease} <- state.leases do
      Process.demonitor(lease.monitor, [:flush])
      :ok = Process.cancel_timer(lease.timer, async: true, info: false)
    end

    for {_sum, %{state: {:reading, _id, key, home}}} <- state.fetches,
        do: tell(home, {:done, self(), key})

    asking =
      Map.filter(state.fetches, fn {_sum, fetch} -> match?({:asking, _number}, fetch.state) end)

    made =
      for {id, %{native: native} = offer} <- state.offers,
          native,
          into: %{},
          do: {id, %{offer | native: nil, bytes: nil}}

    state = %{state | asked: %{}, leases: %{}, held: %{}, fetches: asking, offers: made}

    with true <- now() - state.began > 1_000,
         {:ok, port, _dir} <- Fetcher.open(state.options) do
      state = %{state | port: port, began: now()}

      {:noreply,
       Enum.reduce(made, state, fn {id, offer}, state ->
         ask(state, {:offer, id, nil}, "offer", token: offer.token)
       end)}
    else
      false -> {:stop, error, state}
      {:error, error} -> {:stop, error, state}
    end
  end

  defp lost({:offer, _id, from}, error) when from != nil, do: GenServer.reply(from, {:error, error})
  defp lost({:reply, from}, error), do: GenServer.reply(from, {:error, error})
  defp lost({:stats, from}, error), do: GenServer.reply(from, {:error, error})

  defp lost({what, reader, number}, error) when what in [:copy, :grant],
    do: answer(reader, number, error)

  defp lost(_what, _error), do: :ok

  ## Both

  defp ask(state, what, type, members) do
    id = state.next_id
    Fetcher.command(state.port, type, id, members)
    %{state | next_id: id + 1, asked: Map.put(state.asked, id, what)}
  end

  # A node that is gone is not connected again by this. One that does not take what is on its way already keeps
  # another process waiting, and not this net.
  defp tell(to, message) do
    message = {:tmesh_net, @version, message}

    _pid =
      if :erlang.send(to, message, [:noconnect, :nosuspend]) == :nosuspend,
        do: spawn(fn -> :erlang.send(to, message, [:noconnect]) end)

    :ok
  end

  defp now, do: System.monotonic_time(:millisecond)
end
