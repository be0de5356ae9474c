# SPDX-License-Identifier: MIT
defmodule Tmesh.Idle do
  @moduledoc false
  # The emulator collects garbage where a process allocates, and knows nothing of the memory behind a
  # handle: a process that forgets 50 MB and then waits holds them for ever. While this VM has many
  # bytes of regions the janitor looks, once in an interval, at the processes that are known to have
  # or have had handles, and has the garbage of each one that did nothing since the last look
  # collected. One that seemed to do nothing while it waited for memory may forget it just after: what
  # does a little more is collected again, each time after twice as many looks. So what was forgotten is
  # let go of at some time, and who has a tick in each interval pays little for much that is no garbage.

  alias Tmesh.{Config, Context, Native}

  @mib 1_048_576
  # Of an interval: what somebody else's questions and a tick or two cost is still idle.
  @idle_reductions 500
  # Two looks more, then four, up to 32.
  @most_doublings 5

  @typedoc """
  Of each: its reductions at the last look, what became of it then, how often it was collected, and how
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
    # The answer comes when it is done, which may take long: nobody waits for it.
    :erlang.garbage_collect(pid, async: {__MODULE__, pid})
    {reductions, :asked, times + 1, 0}
  end

  defp state(_pid, _reductions, {before, :collected, times, alone}) when alone > 0,
    do: {before, :collected, times, alone - 1}

  defp state(_pid, reductions, {before, :collected, times, 0}) when reductions > before,
    do: {reductions, :active, times, 0}

  defp state(_pid, _reductions, {_before, :collected, _times, 0} = collected), do: collected
  defp state(_pid, reductions, nil), do: {reductions, :active, 0, 0}

  @doc "A process that was asked has collected its garbage, or is gone."
  @spec collected(seen(), pid()) :: seen()
  def collected(seen, pid) do
    # Collecting costs reductions too: what it has then counts.
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
