# SPDX-License-Identifier: MIT
defmodule Tmesh.Worker.Supervisor do
  @moduledoc false
  # A pool and its workers. Workers register with their pool, so a new pool gets new workers. A worker that ends is
  # replaced alone.

  use Supervisor

  @spec start_link(map()) :: Supervisor.on_start()
  def start_link(options), do: Supervisor.start_link(__MODULE__, options)

  @impl true
  def init(%{name: name, size: size} = options) do
    workers =
      for n <- 1..size do
        Supervisor.child_spec({Tmesh.Worker.Process, {name, options}}, id: n)
      end

    children = [
      {Tmesh.Worker.Pool, options},
      %{
        id: :workers,
        type: :supervisor,
        start: {Supervisor, :start_link, [workers, [strategy: :one_for_one]]}
      }
    ]

    Supervisor.init(children, strategy: :rest_for_one)
  end
end
