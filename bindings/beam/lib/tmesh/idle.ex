# SPDX-License-Identifier: MIT
defmodule Tmesh.Idle do
  @moduledoc false
  # Collects the garbage of idle processes. The emulator collects garbage when a process allocates, and does not
  # know the memory behind a handle. So a process that forgets 50 MB and then waits would hold them for ever.
  #
  # While this VM has many bytes of regions, the janitor looks at known processes once in an interval: those that
  # have or had handles. It collects the garbage of each process that did nothing since the last look.
  #
  # A process may forget memory just after a wait in which it seemed idle. So one that does a little more is
  # collected again, each time after twice as many looks. Forgotten memory is then released at some time. A process
  # with a tick in each interval pays little, even if it has much memory that is no garbage.

  alias Tmesh.{Config, Context, Native}

  @mib 1_048_576
  # The most work of an idle process in an interval: a tick or two, and answers to a few questions.
  @idle_reductions 500
  # The pause grows to two looks, then four, up to 32.
  @most_doublings 5

  @typedoc """
  For each process: its reductions at the last look, the result of that look, how often it was collected, and how
  many looks it is left alone.
  """
  @type seen :: %{
          pid() =>
            {non_neg_integer(), :active | :asked | :collected, non_neg_integer(), non_neg_integer()}
        }

  @spec look(seen()) :: seen()
  def look(seen) do
    if pressure?(),
      do:
        Native.held_by()
        |> Enum.uniq()
        |> List.delete(self())
        |> Enum.reduce(%{}, &see(&1, &2, seen)),
      else: %{}
  end

  defp pressure? do
    with {:ok, mib} when mib > 0 <- Config.get(:idle_gc_mb),
         {:ok, %{bytes_live: bytes}} <- Native.context_stats(Context.get()) do
      bytes >= mib * @mib
    else
      _none_or_wrong -> false
    end
  end

  defp see(pid, now, seen) do
    case Process.info(pid, :reductions) do
      {:reductions, reductions} -> Map.put(now, pid, state(pid, reductions, seen[pid]))
      nil -> now
    end
  end

  defp state(_pid, _reductions, {_before, :asked, _times, _alone} = asked), do: asked

  defp state(_pid, reductions, {before, _how, _times, _alone})
       when reductions - before > @idle_reductions,
       do: {reductions, :active, 0, 0}

  defp state(pid, reductions, {_before, :active, times, _alone}) do
    # Do not wait for the collection, which may take long: a message reports its end.
    :erlang.garbage_collect(pid, async: {__MODULE__, pid})
    {reductions, :asked, times + 1, 0}
  end

  defp state(_pid, _reductions, {before, :collected, times, alone}) when alone > 0,
    do: {before, :collected, times, alone - 1}

  defp state(_pid, reductions, {before, :collected, times, 0}) when reductions > before,
    do: {reductions, :active, times, 0}

  defp state(_pid, _reductions, {_before, :collected, _times, 0} = collected), do: collected
  defp state(_pid, reductions, nil), do: {reductions, :active, 0, 0}

  @doc "Note that a process has collected its garbage, or is gone."
  @spec collected(seen(), pid()) :: seen()
  def collected(seen, pid) do
    # Collecting costs reductions, too: count from the present number.
    case {seen, Process.info(pid, :reductions)} do
      {%{^pid => {_before, :asked, times, _alone}}, {:reductions, now}} ->
        %{seen | pid => {now, :collected, times, alone(times)}}

      _gone ->
        Map.delete(seen, pid)
    end
  end

  defp alone(1), do: 0
  defp alone(times), do: Integer.pow(2, min(times - 1, @most_doublings))
end
