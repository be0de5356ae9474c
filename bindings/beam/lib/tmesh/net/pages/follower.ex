# SPDX-License-Identifier: MIT
defmodule Tmesh.Net.Pages.Follower do
  @moduledoc false
  # The other end of Tmesh.Net.Pages.Log. It has a whole table, whose pages are all here. Beside it, it may build
  # the next table: it starts from blocks that it has, and fetches the pages after the first difference, some at a
  # time. Then it asks for the next record. So at most one message of the log is in transit.

  use GenServer
  require Logger

  alias Tmesh.{Error, Net, Pages, ZeroCopy}
  alias Tmesh.Net.FarStream
  alias Tmesh.Net.Pages.Log
  alias Tmesh.Pages.Sequence

  # How many failures one table may have, and the pause after each.
  @tries 3
  @again_ms 100

  @no_log "this process follows pages: Tmesh.Net.Pages.update/3 takes the process of publish/4"

  @impl true
  def init({home, pages, shape, timeout, owner}) do
    _monitor = Process.monitor(owner)

    {:ok,
     %{
       home: home,
       monitor: nil,
       pages: pages,
       shape: shape,
       timeout: timeout,
       owner: owner,
       # The whole table. `hashes` are of its full blocks, and nil without tokens.
       whole: %{number: 0, pages: [], text: nil, hashes: nil, sequence: nil},
       # The same members of the next table, and its missing blocks in portions.
       building: nil,
       fetch: nil,
       tries: 0,
       waiting: [],
       error: nil,
       counts: %{fetched: 0, had: 0, passed_over: 0, resyncs: 0}
     }}
  end

  @impl true
  def handle_call(:begin, _from, state) do
    monitor = Process.monitor(state.home)
    number = make_ref()
    tell(state.home, {:follow, self(), number, state.shape})

    receive do
      {:tmesh_pages, 1, {:followed, ^number, :ok}} ->
        tell(state.home, {:next, self(), 0})
        {:reply, :ok, %{state | monitor: monitor}}

      {:tmesh_pages, 1, {:followed, ^number, {:error, type, text}}}
      when is_atom(type) and is_binary(text) ->
        {:reply, {:error, Error.new(type, text)}, state}

      {:tmesh_pages, 1, {:followed, ^number, _garbage}} ->
        why = "#{node(state.home)} sent a follower a malformed answer"
        {:reply, {:error, Error.new(:protocol, why)}, state}

      {:DOWN, ^monitor, :process, _pid, reason} ->
        {:reply, {:error, gone(state, reason)}, state}
    after
      state.timeout ->
        why = "#{inspect(state.home)} did not answer in time, or publishes no pages"
        {:reply, {:error, Error.new(:timeout, why)}, state}
    end
  end

  def handle_call({:sequence, number, timeout}, from, state) do
    cond do
      state.whole.number >= number ->
        {:reply, Sequence.fork(state.whole.sequence), state}

      state.error ->
        {:reply, {:error, state.error}, state}

      true ->
        {pid, _tag} = from
        monitor = Process.monitor(pid)

        # Use at most the longest time that a timer takes.
        _ =
          if timeout != :infinity,
            do: Process.send_after(self(), {:late, monitor}, min(timeout, 0xFFFF_FFFF))

        {:noreply, %{state | waiting: [{monitor, from, number} | state.waiting]}}
    end
  end

  def handle_call(:info, _from, state) do
    info = %{number: state.whole.number, blocks: length(state.whole.pages), error: state.error}
    {:reply, {:ok, Map.merge(state.counts, info)}, state}
  end

  def handle_call(_other, _from, state),
    do: {:reply, {:error, Error.new(:invalid, @no_log)}, state}

  @impl true
  def handle_info({:tmesh_pages, 1, {:record, record}}, %{building: nil, error: nil} = state) do
    with {:ok, next} <- apply_record(state.whole, record, state.shape) do
      begin_to_build(state, next)
    else
      {:error, error} -> anew(state, error)
    end
  end

  def handle_info({:fetched, fetch, result}, %{fetch: {fetch, _pid}} = state) do
    state = %{state | fetch: nil}
    [blocks | portions] = state.building.missing

    with {:ok, ref} <- result,
         :ok <- write(state, blocks, ref) do
      tell(state.home, {:done, self()})
      state = update_in(state.counts.fetched, &(&1 + length(blocks)))
      fetch(put_in(state.building.missing, portions))
    else
      {:error, error} -> anew(state, error)
    end
  end

  def handle_info(:again, %{error: nil} = state) do
    tell(state.home, {:next, self(), 0})
    {:noreply, state}
  end

  def handle_info({:late, monitor}, state) do
    case List.keytake(state.waiting, monitor, 0) do
      {{_monitor, from, number}, waiting} ->
        Process.demonitor(monitor, [:flush])
        why = "update #{number} is not whole here; #{state.whole.number} is"
        GenServer.reply(from, {:error, Error.new(:timeout, why)})
        {:noreply, %{state | waiting: waiting}}

      nil ->
        {:noreply, state}
    end
  end

  def handle_info({:DOWN, _monitor, :process, owner, _reason}, %{owner: owner} = state),
    do: {:stop, :normal, state}

  def handle_info({:DOWN, monitor, :process, _pid, reason}, %{monitor: monitor} = state),
    do: failed(state, gone(state, reason))

  def handle_info({:DOWN, monitor, :process, _pid, _reason}, state),
    do: {:noreply, %{state | waiting: List.keydelete(state.waiting, monitor, 0)}}

  def handle_info(_other, state), do: {:noreply, state}

  # Release the pages at once, not when this process is collected.
  @impl true
  def terminate(_reason, state) do
    state = drop(state)
    if state.whole.sequence, do: Sequence.release(state.whole.sequence)
  end

  ## Records

  @doc false
  # Return the table after a record, without its sequence.
  @spec apply_record(map(), map(), Log.shape()) :: {:ok, map()} | {:error, Error.t()}
  def apply_record(whole, record, shape) do
    with %{from: from, number: number, tokens: tokens, first: first, pages: pages} <- record,
         %{text: new, check: check} <- record,
         true <-
           is_integer(number) and is_integer(first) and first >= 0 and is_list(pages) and
             not List.improper?(pages),
         true <- is_integer(tokens) and tokens >= 0 and Enum.all?(pages, &is_integer/1),
         true <- from in [0, whole.number] and number > from and number >= whole.number,
         old = if(from == 0, do: [], else: whole.pages),
         true <- first <= length(old),
         all = Enum.take(old, first) ++ pages,
         true <- check == Log.check(number, tokens, all),
         true <- length(all) == div(tokens + shape.page_tokens - 1, shape.page_tokens),
         {:ok, text} <- text(whole.text, new, first * shape.page_tokens * 4, tokens) do
      {:ok, %{number: number, tokens: tokens, pages: all, text: text, from: from}}
    else
      _wrong -> {:error, Error.new(:protocol, "a record of the log is damaged, or does not follow")}
    end
  end

  defp text(_old, nil, _kept, _tokens), do: {:ok, nil}

  defp text(old, new, kept, tokens) do
    if is_binary(new) and byte_size(old || <<>>) >= kept and kept + byte_size(new) == tokens * 4,
      do: {:ok, binary_part(old || <<>>, 0, kept) <> new},
      else: :error
  end

  ## Building

  defp begin_to_build(state, next) do
    passed = if next.from == 0, do: 0, else: next.number - next.from - 1
    state = update_in(state.counts.passed_over, &(&1 + passed))

    with {:ok, hashes} <- hashes(state, next),
         {:ok, sequence, kept} <- base(state, next, hashes),
         building = Map.merge(next, %{hashes: hashes, sequence: sequence, missing: []}),
         state = %{state | building: building},
         {:error, error} <- resize(state, kept) do
      failed(state, error)
    else
      {:error, error} -> failed(state, error)
      {:ok, state} -> fetch(state)
    end
  end

  # Reuse the hashes of blocks whose tokens have not changed.
  defp hashes(_state, %{text: nil}), do: {:ok, nil}

  defp hashes(state, next) do
    block = state.shape.page_tokens * 4
    known = if state.whole.hashes, do: state.whole.hashes, else: []
    same = div(:binary.longest_common_prefix([state.whole.text || <<>>, next.text]), block)
    known = Enum.take(known, same)
    more(state.pages, next.text, length(known) * block, block, Enum.reverse(known))
  end

  defp more(pages, text, at, block, known) when at + block <= byte_size(text) do
    tokens = for <<token::signed-little-32 <- binary_part(text, at, block)>>, do: token

    with {:ok, hash} <- Pages.hash(pages, tokens, List.first(known)),
         do: more(pages, text, at + block, block, [hash | known])
  end

  defp more(_pages, _text, _at, _block, known), do: {:ok, Enum.reverse(known)}

  # Start from the sequence that has most of the blocks already: the previous one, or a prefix of the tenant.
  defp base(state, next, hashes) do
    kept = equal(state.whole.pages, next.pages)

    with {:ok, found, count} <- find(state, hashes, kept) do
      cond do
        found ->
          {:ok, found, count}

        state.whole.sequence ->
          with {:ok, fork} <- Sequence.fork(state.whole.sequence), do: {:ok, fork, kept}

        true ->
          with {:ok, sequence} <- Pages.sequence(state.pages), do: {:ok, sequence, 0}
      end
    end
  end

  defp equal([page | one], [page | other]), do: 1 + equal(one, other)
  defp equal(_one, _other), do: 0

  defp find(_state, nil, _kept), do: {:ok, nil, 0}
  defp find(_state, hashes, kept) when length(hashes) <= kept, do: {:ok, nil, 0}

  defp find(state, hashes, kept) do
    with {:ok, found} <- Pages.find(state.pages, Enum.take(hashes, 8_192)),
         {:ok, table} <- Sequence.block_table(found) do
      if length(table) > kept do
        {:ok, found, length(table)}
      else
        Sequence.release(found)
        {:ok, nil, 0}
      end
    end
  end

  # Append fresh pages to the kept ones. Nothing is copied into them first.
  defp resize(state, kept) do
    %{sequence: sequence, tokens: tokens, pages: pages} = state.building
    kept_tokens = min(kept * state.shape.page_tokens, tokens)

    with {:ok, has} <- Sequence.tokens(sequence),
         :ok <- if(has > kept_tokens, do: Sequence.truncate(sequence, kept_tokens), else: :ok),
         {:ok, has} <- Sequence.tokens(sequence),
         :ok <- if(has < tokens, do: Sequence.append(sequence, tokens - has), else: :ok) do
      missing = Enum.to_list(kept..(length(pages) - 1)//1)
      state = update_in(state.counts.had, &(&1 + kept))
      {:ok, put_in(state.building.missing, Enum.chunk_every(missing, Log.at_once(state.shape)))}
    end
  end

  defp fetch(%{building: %{missing: []}} = state), do: whole(state)

  defp fetch(%{building: %{missing: [blocks | _portions], number: update}} = state) do
    {follower, home, timeout, fetch} = {self(), state.home, state.timeout, make_ref()}

    pid =
      spawn_link(fn ->
        result = get(follower, home, update, blocks, timeout)
        send(follower, {:fetched, fetch, result})
      end)

    {:noreply, %{state | fetch: {fetch, pid}}}
  end

  defp get(follower, home, update, blocks, timeout) do
    number = make_ref()
    tell(home, {:pages, follower, self(), number, update, blocks})

    receive do
      {:tmesh_pages, 1, {:offer, ^number, {:ok, offer}}} when is_map(offer) ->
        opened = Net.open(offer, timeout: timeout)
        # The pool has a copy of the pages.
        _ = with {:ok, _ref} <- opened, do: FarStream.forget(offer)
        opened

      {:tmesh_pages, 1, {:offer, ^number, {:error, type, text}}}
      when is_atom(type) and is_binary(text) ->
        {:error, Error.new(type, text)}

      {:tmesh_pages, 1, {:offer, ^number, _garbage}} ->
        {:error, Error.new(:protocol, "#{node(home)} sent a malformed offer of pages")}
    after
      timeout -> {:error, Error.new(:timeout, "#{node(home)} does not offer its pages in time")}
    end
  end

  defp write(%{building: building, shape: shape}, blocks, %ZeroCopy.TensorRef{} = ref) do
    size = shape.page_bytes
    parts = for block <- blocks, device <- 0..(shape.devices - 1), do: {block, device}

    result =
      with {:ok, bytes} <- ZeroCopy.to_binary(ref, copy: false),
           true <- byte_size(bytes) == length(parts) * size do
        parts
        |> Enum.with_index()
        |> Enum.reduce_while(:ok, fn {{block, device}, at}, :ok ->
          part = binary_part(bytes, at * size, size)

          case Sequence.write(building.sequence, block, 0, part, device: device) do
            :ok -> {:cont, :ok}
            error -> {:halt, error}
          end
        end)
      else
        false -> {:error, Error.new(:protocol, "not the pages that were asked for")}
        error -> error
      end

    _ = ZeroCopy.release(ref)
    result
  end

  defp write(state, _blocks, _other) do
    why = "#{node(state.home)} offered something else than the memory of pages"
    {:error, Error.new(:protocol, why)}
  end

  defp whole(%{building: building} = state) do
    if state.whole.sequence, do: Sequence.release(state.whole.sequence)
    whole = Map.take(building, [:number, :pages, :text, :hashes, :sequence])
    # Other sequences of the tenant may find them. Lack of room for this is no error.
    _ = if whole.hashes not in [nil, []], do: Sequence.cache(whole.sequence, whole.hashes)
    tell(state.home, {:next, self(), whole.number})

    {served, waiting} = Enum.split_with(state.waiting, &(elem(&1, 2) <= whole.number))

    for {monitor, from, _number} <- served do
      Process.demonitor(monitor, [:flush])
      GenServer.reply(from, Sequence.fork(whole.sequence))
    end

    {:noreply, %{state | whole: whole, building: nil, tries: 0, waiting: waiting}}
  end

  ## Ends

  # Drop the unfinished table; the whole one stays.
  defp drop(state) do
    with {_fetch, pid} <- state.fetch do
      Process.unlink(pid)
      Process.exit(pid, :kill)
    end

    if state.building, do: Sequence.release(state.building.sequence)
    %{state | building: nil, fetch: nil}
  end

  defp anew(state, error) do
    if state.tries + 1 < @tries do
      Logger.warning("tmesh: a follower of pages begins anew: #{error.message}")
      state = update_in(drop(state).counts.resyncs, &(&1 + 1))
      Process.send_after(self(), :again, @again_ms * Integer.pow(4, state.tries))
      {:noreply, %{state | tries: state.tries + 1}}
    else
      failed(state, error)
    end
  end

  defp failed(state, error) do
    state = drop(state)
    Process.demonitor(state.monitor, [:flush])
    tell(state.home, {:leave, self()})

    for {monitor, from, _number} <- state.waiting do
      Process.demonitor(monitor, [:flush])
      GenServer.reply(from, {:error, error})
    end

    {:noreply, %{state | error: error, waiting: []}}
  end

  defp gone(state, :noconnection),
    do: Error.new(:gone, "#{node(state.home)} is gone, or cannot be reached: its pages' log ends")

  defp gone(state, reason),
    do: Error.new(:gone, "the log of pages on #{node(state.home)} has ended: #{inspect(reason)}")

  # Do not reconnect a node that is gone.
  defp tell(to, message), do: :erlang.send(to, {:tmesh_pages, 1, message}, [:noconnect])
end
