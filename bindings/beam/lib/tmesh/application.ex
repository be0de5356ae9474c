# SPDX-License-Identifier: MIT
defmodule Tmesh.Application do
  @moduledoc false
  use Application

  @impl true
  def start(_type, _args) do
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
