# SPDX-License-Identifier: MIT
defmodule Tmesh.Registry do
  @moduledoc false
  # Keeps handles for processes: a kept one lives until its owner ends or it is released, whether
  # or not anybody has the ref.

  use GenServer

  alias Tmesh.Native

  @spec start_link(term()) :: GenServer.on_start()
  def start_link(_arg), do: GenServer.start_link(__MODULE__, [], name: __MODULE__)

  @doc "Keep `handle` for `owner`; at most one owner per handle, the last one asked for."
  @spec keep(Native.handle(), pid()) :: :ok
  def keep(handle, owner), do: GenServer.call(__MODULE__, {:keep, handle, owner}, :infinity)

  @doc "Keep `handle` no longer; fine when it is not kept."
  @spec forget(Native.handle()) :: :ok
  def forget(handle), do: GenServer.cast(__MODULE__, {:forget, handle})

  @impl true
  def init(_arg), do: {:ok, %{owners: %{}, monitors: %{}}}

  @impl true
  def handle_call({:keep, handle, owner}, _from, state) do
    state = drop(state, handle)
    monitor = Process.monitor(owner)

    {:reply, :ok,
     %{
       owners: Map.put(state.owners, handle, monitor),
       monitors: Map.put(state.monitors, monitor, handle)
     }}
  end

  @impl true
  def handle_cast({:forget, handle}, state), do: {:noreply, drop(state, handle)}

  # Hibernation collects garbage, and with it the handle.
  @impl true
  def handle_info({:DOWN, monitor, :process, _pid, _reason}, state)
      when is_map_key(state.monitors, monitor) do
    {:noreply, drop(state, Map.fetch!(state.monitors, monitor)), :hibernate}
  end

  def handle_info(_other, state), do: {:noreply, state}

  defp drop(%{owners: owners} = state, handle) when is_map_key(owners, handle) do
    {monitor, owners} = Map.pop!(owners, handle)
    # Not to be flushed: that would look through all that waits, for each of those who end together.
    Process.demonitor(monitor)
    %{owners: owners, monitors: Map.delete(state.monitors, monitor)}
  end

  defp drop(state, _handle), do: state
end
