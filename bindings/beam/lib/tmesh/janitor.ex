# SPDX-License-Identifier: MIT
defmodule Tmesh.Janitor do
  @moduledoc false
  # Drops what the destructors of handles and binaries leave behind, off the normal schedulers
  # where those run, and gives the library's log lines to Logger.

  use GenServer
  require Logger

  # Log lines of the library's own threads wake nobody; they are fetched at least so often.
  @interval_ms 5_000

  @spec start_link(term()) :: GenServer.on_start()
  def start_link(_arg), do: GenServer.start_link(__MODULE__, [], name: __MODULE__)

  @impl true
  def init(_arg) do
    :ok = Tmesh.Native.janitor()
    {:ok, nil, {:continue, :sweep}}
  end

  @impl true
  def handle_continue(:sweep, state), do: sweep(state)

  @impl true
  def handle_info(:sweep, state) do
    forget_more()
    sweep(state)
  end

  def handle_info(:timeout, state), do: sweep(state)

  defp sweep(state) do
    for {level, message} <- Tmesh.Native.sweep(), do: Logger.log(level, "tmesh: " <> message)
    {:noreply, state, @interval_ms}
  end

  # One sweep does for all who asked before it begins.
  defp forget_more do
    receive do
      :sweep -> forget_more()
    after
      0 -> :ok
    end
  end
end
