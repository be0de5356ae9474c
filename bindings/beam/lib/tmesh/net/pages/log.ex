# SPDX-License-Identifier: MIT
defmodule Tmesh.Net.Pages.Log do
  @moduledoc false
  # The home of a published sequence: it sends the sequence's table as records, one at a time to a follower that asks.
  # tests/sim/sim_net_pages.py models the protocol. Messages, each {:tmesh_pages, 1, message}:
  #
  #   {:follow, follower, number, shape}     {:followed, number, :ok | {:error, type, text}}
  #   {:next, follower, have}                {:record, record}, once there is a newer one than `have`
  #   {:pages, follower, from, number, update, blocks}    to `from`: {:offer, number, {:ok, offer} | {:error, ...}}
  #   {:done, follower}                      the offer may end
  #   {:leave, follower}                     it has ended with an error
  #
  # A record is a map that turns the table of update `from` (0: the empty one) into that of update `number`. From block
  # `first` on the new table is `pages`, and ends after them. `text` are the tokens of these blocks. `check` is the
  # checksum of the whole table.
  #
  # Pages have numbers of the log, which are never used again: a page of the pool that is freed and reused gets another
  # number here.

  use GenServer

  alias Tmesh.{Error, Net, Options, ZeroCopy}
  alias Tmesh.Pages.Sequence

  # How much is offered at a time, but at least one page.
  @offer_bytes 16 * 1024 * 1024
  @offer_pages 64

  @no_follower "this process publishes pages: ask the follower that Tmesh.Net.Pages.follow/3 makes"

  @type shape :: %{atom() => non_neg_integer()}

  @doc "Return how many pages a follower requests at a time."
  @spec at_once(shape()) :: pos_integer()
  def at_once(shape), do: max(1, min(@offer_pages, div(@offer_bytes, bytes(shape))))

  defp bytes(shape), do: shape.page_bytes * shape.devices

  @doc "Compute the checksum of a table."
  @spec check(pos_integer(), non_neg_integer(), [pos_integer()]) :: binary()
  def check(number, tokens, pages) do
    :erlang.md5([<<number::64, tokens::64>> | Enum.map(pages, &<<&1::64>>)])
  end

  @impl true
  def init({shape, owner}) do
    _monitor = Process.monitor(owner)

    {:ok,
     %{
       shape: shape,
       owner: owner,
       # The newest update, and the log's page numbers by those of the pool.
       now: %{number: 0, tokens: 0, pages: [], text: nil, fork: nil},
       ours: %{},
       next: 1,
       # By pid: the update sent last, whether it waits for more, and the offer for it.
       followers: %{}
     }}
  end

  @impl true
  def handle_call({:update, {fork, tokens, table, text}}, _from, state) do
    {pages, {ours, next}} =
      Enum.map_reduce(table, {%{}, state.next}, fn page, {ours, next} ->
        case state.ours do
          %{^page => number} -> {number, {Map.put(ours, page, number), next}}
          _new -> {next, {Map.put(ours, page, next), next + 1}}
        end
      end)

    number = state.now.number + 1
    now = %{number: number, tokens: tokens, pages: pages, text: text, fork: fork}
    before = state.now
    state = %{state | now: now, ours: ours, next: next}
    let_go(state, before)

    state =
      for {pid, %{waits: true}} <- state.followers, reduce: state do
        state -> send_record(state, pid)
      end

    {:reply, {:ok, number}, state}
  end

  def handle_call({:publish, name}, _from, state),
    do: {:reply, Net.publish(name, self()), state}

  def handle_call(_other, _from, state),
    do: {:reply, {:error, Error.new(:invalid, @no_follower)}, state}

  @impl true
  def handle_info({:tmesh_pages, 1, {:follow, follower, number, shape}}, state)
      when is_pid(follower) do
    state = if state.followers[follower], do: leave(state, follower), else: state

    if shape == state.shape do
      tell(follower, {:followed, number, :ok})
      entry = %{monitor: Process.monitor(follower), sent: nil, waits: false, offer: nil}
      {:noreply, put_in(state.followers[follower], entry)}
    else
      why = "the pools differ: #{inspect(state.shape)} at home, #{inspect(shape)} here"
      tell(follower, {:followed, number, {:error, :invalid, why}})
      {:noreply, state}
    end
  end

  def handle_info({:tmesh_pages, 1, {:next, follower, have}}, state)
      when is_map_key(state.followers, follower) do
    state = done(state, follower)

    # A follower that begins anew has nothing.
    if state.now.number > have,
      do: {:noreply, send_record(state, follower, have == 0)},
      else: {:noreply, put_in(state.followers[follower].waits, true)}
  end

  def handle_info({:tmesh_pages, 1, {:pages, follower, from, number, update, blocks}}, state)
      when is_map_key(state.followers, follower) and is_pid(from) do
    state = done(state, follower)

    case offer(state, state.followers[follower].sent, update, blocks) do
      {:ok, offer, ref} ->
        tell(from, {:offer, number, {:ok, offer}})
        {:noreply, put_in(state.followers[follower].offer, {offer, ref})}

      {:error, %Error{type: type, message: text}} ->
        tell(from, {:offer, number, {:error, type, text}})
        {:noreply, state}
    end
  end

  def handle_info({:tmesh_pages, 1, {:done, follower}}, state)
      when is_map_key(state.followers, follower),
      do: {:noreply, done(state, follower)}

  def handle_info({:DOWN, _monitor, :process, owner, _reason}, %{owner: owner} = state),
    do: {:stop, :normal, state}

  def handle_info({:DOWN, _monitor, :process, follower, _reason}, state)
      when is_map_key(state.followers, follower),
      do: {:noreply, leave(state, follower)}

  def handle_info({:tmesh_pages, 1, {:leave, follower}}, state)
      when is_map_key(state.followers, follower),
      do: {:noreply, leave(state, follower)}

  def handle_info(_other, state), do: {:noreply, state}

  # Release the pages at once, not when this process is collected.
  @impl true
  def terminate(_reason, state) do
    Enum.each(state.followers, fn {follower, _entry} -> done(state, follower) end)
    for {_pid, %{sent: %{fork: fork}}} <- state.followers, do: Sequence.release(fork)
    _ = if state.now.fork, do: Sequence.release(state.now.fork)
    :ok
  end

  defp leave(state, follower) do
    state = done(state, follower)
    {gone, followers} = Map.pop!(state.followers, follower)
    Process.demonitor(gone.monitor, [:flush])
    state = %{state | followers: followers}
    let_go(state, gone.sent)
    state
  end

  # Keep the update that a follower got, as long as the follower may ask for its pages.
  defp send_record(state, follower, anew \\ false) do
    entry = state.followers[follower]
    now = state.now
    sent = if anew, do: nil, else: entry.sent
    before = if sent, do: sent, else: %{number: 0, pages: [], text: nil}
    # Tokens may differ in equal pages, or be given only now.
    first = min(equal(before.pages, now.pages), equal_text(before.text, now.text, state.shape))

    tell(
      follower,
      {:record,
       %{
         from: before.number,
         number: now.number,
         tokens: now.tokens,
         first: first,
         pages: Enum.drop(now.pages, first),
         text: now.text && drop(now.text, first * state.shape.page_tokens * 4),
         check: check(now.number, now.tokens, now.pages)
       }}
    )

    state = put_in(state.followers[follower], %{entry | sent: now, waits: false})
    let_go(state, entry.sent)
    state
  end

  defp equal([page | one], [page | other]), do: 1 + equal(one, other)
  defp equal(_one, _other), do: 0

  # Count in blocks.
  defp equal_text(nil, nil, _shape), do: :infinity
  defp equal_text(nil, _text, _shape), do: 0
  defp equal_text(_text, nil, _shape), do: 0

  defp equal_text(one, other, shape),
    do: div(:binary.longest_common_prefix([one, other]), shape.page_tokens * 4)

  defp drop(text, bytes), do: binary_part(text, bytes, byte_size(text) - bytes)

  defp let_go(_state, nil), do: :ok
  defp let_go(_state, %{fork: nil}), do: :ok

  defp let_go(state, %{number: number, fork: fork}) do
    unless state.now.number == number or
             Enum.any?(state.followers, fn {_pid, entry} ->
               entry.sent != nil and entry.sent.number == number
             end),
           do: Sequence.release(fork)

    :ok
  end

  defp offer(state, %{number: update} = sent, update, blocks) do
    count = length(sent.pages)

    if is_list(blocks) and blocks != [] and length(blocks) <= at_once(state.shape) and
         Enum.all?(blocks, &(is_integer(&1) and &1 >= 0 and &1 < count)) do
      with {:ok, bytes} <- read(sent.fork, blocks, state.shape),
           {:ok, ref} <- ZeroCopy.from_binary(bytes, [byte_size(bytes)], :uint8) do
        case Net.offer(ref) do
          {:ok, offer} ->
            {:ok, offer, ref}

          {:error, error} ->
            _ = ZeroCopy.release(ref)
            {:error, error}
        end
      end
    else
      asked = inspect(blocks, limit: 8, printable_limit: 64)

      why =
        "update #{update} has blocks 0 to #{count - 1}, of which one request names 1 to " <>
          "#{at_once(state.shape)}, not #{asked}"

      {:error, Error.new(:invalid, why)}
    end
  end

  defp offer(_state, _sent, _update, _blocks),
    do: {:error, Error.new(:stale, "that update was not sent to this follower")}

  defp read(fork, blocks, shape) do
    pages = for block <- blocks, device <- 0..(shape.devices - 1), do: {block, device}
    read = &Sequence.read(fork, elem(&1, 0), device: elem(&1, 1))
    with {:ok, bytes} <- Options.map_ok(pages, read), do: {:ok, IO.iodata_to_binary(bytes)}
  end

  defp done(state, follower) do
    case state.followers[follower].offer do
      nil ->
        state

      {offer, ref} ->
        # An update must not wait for a fetcher that does not answer.
        :ok = Net.withdraw_later(offer)
        _ = ZeroCopy.release(ref)
        put_in(state.followers[follower].offer, nil)
    end
  end

  # Do not reconnect a node that is gone.
  defp tell(to, message), do: :erlang.send(to, {:tmesh_pages, 1, message}, [:noconnect])
end
