# SPDX-License-Identifier: MIT
defmodule Tmesh.Net.Reader do
  @moduledoc false
  # The reader in Tmesh.Net.Server: it fetches what other nodes offer. One fetch serves all waiters for the same
  # bytes.

  import Tmesh.Net.Protocol
  require Logger

  alias Tmesh.Error
  alias Tmesh.Net.{Answer, Fetcher}

  # The most fetches that ask or read at once: as many as a fetcher takes from one address. Others wait their turn.
  @at_once 8
  # A home without a free key is asked again after this time, then after twice as long, and so on.
  @again_ms 100
  @again_most_ms 5_000

  @typedoc "The longest silence of each home, the deadline by the clock, and the process for progress."
  @type limits :: {pos_integer(), integer() | :infinity, pid() | nil}

  @spec open(map(), map(), limits(), GenServer.from()) :: map()
  def open(state, wanted, {timeout, until, told}, {pid, _tag} = from) do
    monitor = Process.monitor(pid)
    waiter = {from, monitor, deadline(until, wanted.checksum, monitor), told}

    case state.fetches[wanted.checksum] do
      nil ->
        begin(state, wanted, timeout, waiter)

      fetch ->
        # Add homes that this open knows and the first one did not.
        more = Enum.reject(wanted.sources, &(&1 in fetch.wanted.sources))
        wanted = %{fetch.wanted | sources: fetch.wanted.sources ++ more}
        waiters = [waiter | fetch.waiters]
        fetch = %{fetch | waiters: waiters, wanted: wanted, sources: fetch.sources ++ more}
        put_in(state.fetches[wanted.checksum], fetch)
    end
  end

  # Find the bytes among the kept ones first. Otherwise fetch them from a home.
  defp begin(state, wanted, timeout, waiter) do
    fetch = %{
      wanted: wanted,
      # The homes not asked yet, and the present one.
      sources: wanted.sources,
      home: nil,
      # Whether the last home had no free key, how often that happened, and until when it may.
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

  # A place is free: take the fetch that has waited longest.
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

  # The previous home failed with this error.
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
          do: put_in(state.fetches[checksum], wait_again(%{fetch | until: until}, checksum)),
          else: failed(put_in(state.fetches[checksum], fetch), checksum, error)

      [] ->
        failed(put_in(state.fetches[checksum], fetch), checksum, error)
    end
  end

  # Ask all of its homes later.
  defp wait_again(fetch, checksum) do
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

    # Make no atom and no connection for a name in a ref.
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

  ## Answers of homes

  @spec answered(map(), term(), term(), term()) :: map()
  def answered(state, home, number, answer) do
    case asked(state, number) do
      {checksum, fetch} ->
        answer = if is_pid(home), do: answer
        answered_by(state, checksum, fetch, home, Answer.read(answer, fetch.home))

      nil ->
        give_back(state, home, answer)
        state
    end
  end

  @doc "Handle an answer in another version of the protocol."
  @spec answered_in(map(), term(), term(), term()) :: map()
  def answered_in(state, version, home, number) do
    case asked(state, number) do
      {checksum, fetch} ->
        answered_by(state, checksum, fetch, home, Answer.of_version(version, fetch.home))

      nil ->
        state
    end
  end

  defp asked(state, number),
    do: Enum.find(state.fetches, fn {_sum, f} -> f.state == {:asking, number} end)

  defp answered_by(state, checksum, fetch, home, {:ok, key, address}),
    do: read(state, checksum, fetch, home, key, address)

  defp answered_by(state, checksum, fetch, _home, {:bytes, data}),
    do: store(state, checksum, fetch, data)

  defp answered_by(state, checksum, _fetch, _home, {:error, error}) do
    state = put_in(state.fetches[checksum].busy, error.type == :limit_exceeded)
    next_home(state, checksum, error)
  end

  # It is too late: give the key back, unless it came twice and is in use.
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

  @spec silent(map(), String.t(), reference()) :: map()
  def silent(state, checksum, number) do
    case state.fetches do
      %{^checksum => %{state: {:asking, ^number}} = fetch} ->
        why = Error.new(:timeout, "#{fetch.home} did not answer in time")
        next_home(state, checksum, why)

      _other ->
        state
    end
  end

  @spec again(map(), String.t(), reference()) :: map()
  def again(state, checksum, number) do
    case state.fetches do
      %{^checksum => %{state: {:again, ^number}} = fetch} ->
        state = put_in(state.fetches[checksum].sources, fetch.wanted.sources)
        next_home(state, checksum, nobody_left())

      _other ->
        state
    end
  end

  @spec home_ended(map(), {String.t(), map()}, term()) :: map()
  def home_ended(state, {checksum, fetch}, reason) do
    type = if reason == :noproc, do: :not_started, else: :gone
    next_home(state, checksum, Error.new(type, "Tmesh.Net of #{fetch.home}: #{inspect(reason)}"))
  end

  ## Messages of the fetcher

  @spec progress(map(), String.t(), non_neg_integer()) :: map()
  def progress(state, checksum, bytes) do
    with %{state: {:reading, _id, key, home}} = fetch <- state.fetches[checksum] do
      tell(home, {:renew, self(), key})
      say_progress(fetch, bytes)
    end

    state
  end

  defp say_progress(%{wanted: wanted, waiters: waiters}, bytes) do
    for {_from, _monitor, _timer, told} <- waiters, told do
      send(
        told,
        {:tmesh_progress, %{checksum: wanted.checksum, bytes: bytes, region_bytes: wanted.bytes}}
      )
    end
  end

  @spec fetched(map(), non_neg_integer(), String.t(), map()) :: map()
  def fetched(state, id, checksum, %{"type" => type} = message)
      when type in ["fetched", "found"] do
    unless message["kept"],
      do: Logger.warning("tmesh: the fetched memory is not kept: #{message["why"]}")

    case pop_fetch(state, id, checksum) do
      {nil, state} ->
        ask(state, :nothing, "release", of: id)

      {fetch, state} ->
        _ = if type == "fetched", do: say_progress(fetch, fetch.wanted.bytes)

        monitors =
          for {from, monitor, timer, _told} <- fetch.waiters do
            end_deadline(timer)
            GenServer.reply(from, {:ok, message["token"], message["region"], {id, monitor}})
            monitor
          end

        ask_queued(put_in(state.held[id], monitors))
    end
  end

  # The reason why it was not among the kept ones does not matter: keeping it will fail for that reason, too.
  def fetched(state, id, checksum, message) do
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

  # Do nothing if all waiters have gone and the fetch was cancelled: another one of the same bytes may have begun.
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

  # The caller makes sure that no fetch of these bytes reads.
  defp failed(state, checksum, error) do
    {fetch, fetches} = Map.pop!(state.fetches, checksum)
    if fetch.monitor, do: Process.demonitor(fetch.monitor, [:flush])
    reply(fetch, error)
    ask_queued(%{state | fetches: fetches})
  end

  defp reply(fetch, error) do
    Enum.each(fetch.waiters, fn {from, monitor, timer, _told} ->
      end_deadline(timer)
      Process.demonitor(monitor, [:flush])
      GenServer.reply(from, {:error, error})
    end)
  end

  ## Waiters

  defp deadline(:infinity, _checksum, _monitor), do: nil

  defp deadline(until, checksum, monitor),
    do: Process.send_after(self(), {:late, checksum, monitor}, max(until, now()), abs: true)

  defp end_deadline(nil), do: :ok
  defp end_deadline(timer), do: :ok = Process.cancel_timer(timer, async: true, info: false)

  # A waiter whose time is over gets its error. If it is the last one, the fetch ends.
  @spec late(map(), String.t(), reference()) :: map()
  def late(state, checksum, monitor) do
    with %{waiters: waiters} <- state.fetches[checksum],
         {from, ^monitor, _timer, _told} <- List.keyfind(waiters, monitor, 1) do
      Process.demonitor(monitor, [:flush])
      GenServer.reply(from, {:error, Error.new(:timeout, "the fetch did not end by its deadline")})
      waiter_ended(state, monitor)
    else
      nil -> state
    end
  end

  # If the last waiter goes, the fetch ends.
  @spec waiter_ended(map(), reference()) :: map()
  def waiter_ended(state, monitor) do
    case Enum.find(state.fetches, fn {_sum, f} -> List.keymember?(f.waiters, monitor, 1) end) do
      nil ->
        state

      {checksum, fetch} ->
        {{_from, ^monitor, timer, _told}, waiters} = List.keytake(fetch.waiters, monitor, 1)
        end_deadline(timer)

        case waiters do
          [] -> give_up(state, checksum, fetch)
          rest -> put_in(state.fetches[checksum], %{fetch | waiters: rest})
        end
    end
  end

  defp give_up(state, checksum, %{state: {how, _number}}) when how in [:asking, :queued, :again],
    do: failed(state, checksum, Error.new(:cancelled, "no process waits for the fetch"))

  defp give_up(state, checksum, fetch) do
    id = elem(fetch.state, 1)
    {_fetch, state} = pop_fetch(state, id, checksum)
    state |> ask(:nothing, "cancel", of: id) |> ask_queued()
  end

  @doc "Release a held region for a waiter that has opened it or is gone."
  @spec let_go(map(), non_neg_integer(), reference()) :: map()
  def let_go(state, id, monitor) do
    case state.held do
      %{^id => [^monitor]} ->
        ask(%{state | held: Map.delete(state.held, id)}, :nothing, "release", of: id)

      %{^id => monitors} ->
        put_in(state.held[id], List.delete(monitors, monitor))

      _none ->
        state
    end
  end

  @doc "Answer all waiters, because the fetcher has ended."
  @spec fetcher_ended(map(), Error.t()) :: map()
  def fetcher_ended(state, error) do
    for {_sum, fetch} <- state.fetches,
        not match?({:asking, _number}, fetch.state),
        do: reply(fetch, error)

    for {_sum, %{state: {:reading, _id, key, home}}} <- state.fetches,
        do: tell(home, {:done, self(), key})

    asking =
      Map.filter(state.fetches, fn {_sum, fetch} -> match?({:asking, _number}, fetch.state) end)

    %{state | held: %{}, fetches: asking}
  end
end
