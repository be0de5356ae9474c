# SPDX-License-Identifier: MIT
defmodule Tmesh.Janitor do
  @moduledoc false
  # Drops the objects that destructors of handles and binaries leave, away from the normal schedulers on which those
  # run. It also passes the library's log lines to Logger, and collects idle processes.

  use GenServer
  require Logger

  alias Tmesh.{Config, Idle, Telemetry}

  @spec start_link(term()) :: GenServer.on_start()
  def start_link(_arg), do: GenServer.start_link(__MODULE__, [], name: __MODULE__)

  @patience_ms 60_000

  # Drop garbage and try once more, if a call was refused for lack of something that garbage may hold (memory,
  # files, a limit). The garbage of the caller and the objects waiting here are dropped.
  @spec retry((() -> result)) :: result when result: term()
  def retry(make), do: retry(make.(), make)

  # Continue after the first try.
  @spec retry(result, (() -> result)) :: result when result: term()
  def retry(tried, make) do
    case tried do
      {:error, {code, _message}} = refused when code in [:edquot, :emfile, :enfile, :enomem] ->
        :erlang.garbage_collect()
        if swept?(), do: make.(), else: refused

      result ->
        result
    end
  end

  # eagain: too many calls wait for slow peers, on schedulers that the VM's files need too. So wait in the calling
  # process instead.
  @spec patiently((() -> result)) :: result when result: term()
  def patiently(make), do: patiently(make, System.monotonic_time(:millisecond) + @patience_ms)

  defp patiently(make, deadline) do
    with {:error, {:eagain, _message}} = busy <- retry(make) do
      if System.monotonic_time(:millisecond) < deadline do
        Process.sleep(:rand.uniform(5))
        patiently(make, deadline)
      else
        busy
      end
    end
  end

  # False if no janitor answers, because the application stops.
  defp swept? do
    GenServer.call(__MODULE__, :sweep, @patience_ms) == :ok
  catch
    :exit, _reason -> false
  end

  @impl true
  def init(_arg) do
    # Processes that make garbage must not delay the one that drops it.
    Process.flag(:priority, :high)
    :ok = Tmesh.Native.janitor()
    state = %{interval_ms: Config.default(:cleanup_interval_ms), looked: now(), seen: %{}}
    {:ok, state, {:continue, :sweep}}
  end

  @impl true
  def handle_continue(:sweep, state), do: sweep(state)

  @impl true
  def handle_info(:sweep, state) do
    forget_more()
    sweep(state)
  end

  # The collected objects arrive as garbage.
  def handle_info({:garbage_collect, {Idle, pid}, _done}, state),
    do: wait(%{state | seen: Idle.collected(state.seen, pid)})

  # The end of an interval. An unknown message is a reason for a sweep, too.
  def handle_info(_other, state), do: sweep(state)

  # Garbage may come with the collection of the caller's heap: its message came before this one.
  @impl true
  def handle_call(:sweep, from, state) do
    swept = sweep(state)
    GenServer.reply(from, :ok)
    swept
  end

  # Sweep regularly. Log lines of the library's own threads wake the janitor only if they are warnings, and a
  # message about garbage may have been lost.
  defp sweep(state) do
    began = System.monotonic_time()
    for {level, message} <- Tmesh.Native.sweep(), do: Logger.log(level, "tmesh: " <> message)
    duration = System.monotonic_time() - began
    Telemetry.execute([:tmesh, :janitor, :sweep], %{duration: duration}, %{})
    wait(look(%{state | interval_ms: interval(state.interval_ms)}))
  end

  # Use at most the longest time of a timer, and 0 for never.
  defp wait(%{interval_ms: ms} = state),
    do: {:noreply, state, if(ms == 0, do: :infinity, else: min(ms, 0xFFFF_FFFF))}

  # Look once in an interval, however often a sweep is requested.
  defp look(%{interval_ms: ms, looked: looked} = state) do
    if ms > 0 and now() - looked >= ms,
      do: %{state | looked: now(), seen: Idle.look(state.seen)},
      else: state
  end

  defp now, do: System.monotonic_time(:millisecond)

  # After a wrong value, keep the last valid one.
  defp interval(last) do
    case Config.get(:cleanup_interval_ms) do
      {:ok, interval_ms} ->
        interval_ms

      {:error, error} ->
        Logger.error("tmesh: " <> error.message)
        last
    end
  end

  # One sweep serves all callers that asked before it begins.
  defp forget_more do
    receive do
      :sweep -> forget_more()
    after
      0 -> :ok
    end
  end
end
