# SPDX-License-Identifier: MIT
defmodule Tmesh.Application do
  @moduledoc false
  use Application

  @impl true
  def start(_type, _args) do
    with :ok <- load(), do: start()
  end

  # Now, not when one is called first: it may be the one that says that no descriptor is free.
  defp load do
    {:ok, modules} = :application.get_key(:tmesh, :modules)

    case :code.ensure_modules_loaded(modules) do
      :ok -> :ok
      {:error, failed} -> {:error, {:not_loaded, failed}}
    end
  end

  defp start do
    children = [
      Tmesh.Registry,
      Tmesh.Janitor,
      Tmesh.Context,
      # Who has published what (Tmesh.Net.publish/2).
      %{id: Tmesh.Net.Names, start: {:pg, :start_link, [Tmesh.Net.Names]}},
      {DynamicSupervisor, name: Tmesh.WorkerSupervisor}
    ]

    Supervisor.start_link(children, strategy: :rest_for_one, name: Tmesh.Supervisor)
  end

  # Regions that are still in use keep the library's context alive without us.
  @impl true
  def stop(_state), do: Tmesh.Context.close()
end
