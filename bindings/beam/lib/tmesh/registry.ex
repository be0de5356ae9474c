# SPDX-License-Identifier: MIT
defmodule Tmesh.Registry do
  @moduledoc false
  # Keeps handles for processes. A kept handle lives until its owner ends or it is released, whether or not any
  # process has the ref.

  use GenServer

  alias Tmesh.Native

  @spec start_link(term()) :: GenServer.on_start()
  def start_link(_arg), do: GenServer.start_link(__MODULE__, [], name: __MODULE__)

  @doc "Keep `handle` for `owner`. A handle has at most one owner: the last call decides."
  @spec tie(Native.handle(), pid()) :: :ok
  def tie(handle, owner), do: GenServer.call(__MODULE__, {:tie, handle, owner}, :infinity)

  @doc "Keep `handle` no longer. It need not be kept."
  @spec forget(Native.handle()) :: :ok
  def forget(handle), do: GenServer.cast(__MODULE__, {:forget, handle})

  @impl true
  def init(_arg), do: {:ok, %{owners: %{}, monitors: %{}, dropped?: false}}

  @impl true
  def handle_call({:tie, handle, owner}, _from, state) do
    state = drop(state, handle)
    monitor = Process.monitor(owner)

    state = %{
      state
      | owners: Map.put(state.owners, handle, monitor),
        monitors: Map.put(state.monitors, monitor, handle)
    }

    {:reply, :ok, state, rest(state)}
  end

  @impl true
  def handle_cast({:forget, handle}, state), do: {:noreply, drop(state, handle), rest(state)}

  @impl true
  def handle_info({:DOWN, monitor, :process, _pid, _reason}, state)
      when is_map_key(state.monitors, monitor) do
    {:noreply, %{drop(state, Map.fetch!(state.monitors, monitor)) | dropped?: true}, 0}
  end

  # No message waits. Hibernation collects garbage, and with it the handles. It scans everything that is held, so it
  # runs once after many owners that end together.
  def handle_info(:timeout, state), do: {:noreply, %{state | dropped?: false}, :hibernate}
  def handle_info(_other, state), do: {:noreply, state, rest(state)}

  defp rest(%{dropped?: true}), do: 0
  defp rest(_state), do: :infinity

  defp drop(%{owners: owners} = state, handle) when is_map_key(owners, handle) do
    {monitor, owners} = Map.pop!(owners, handle)
    # Do not flush: that would search the whole mailbox for each of many owners that end together.
    Process.demonitor(monitor)
    %{state | owners: owners, monitors: Map.delete(state.monitors, monitor)}
  end

  defp drop(state, _handle), do: state
end
