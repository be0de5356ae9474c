# SPDX-License-Identifier: MIT
defmodule Tmesh.Application do
  @moduledoc false
  use Application

  alias Tmesh.{Config, Error}

  @impl true
  def start(_type, _args) do
    with :ok <- library(), :ok <- load(), :ok <- Config.names(), do: start()
  end

  # An escript is one file: the emulator finds no library in it, and does not report that.
  defp library do
    priv = :code.priv_dir(:tmesh)

    with true <- is_list(priv),
         library = Path.join(priv, "tmesh_nif.so"),
         true <- File.regular?(library) do
      :ok
    else
      _none ->
        {:error,
         Error.new(
           :not_found,
           "the application :tmesh has no priv/tmesh_nif.so here: an escript carries no libraries, so run it as a release " <>
             "(mix release) or by mix run; otherwise compile it anew (mix deps.compile tmesh --force)"
         )}
    end
  end

  # Load all modules now. A module loaded later may be the one that reports the lack of descriptors.
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
      # The groups of published names (Tmesh.Net.publish/2).
      %{id: Tmesh.Net.Names, start: {:pg, :start_link, [Tmesh.Net.Names]}},
      {DynamicSupervisor, name: Tmesh.WorkerSupervisor}
    ]

    # No child depends on the state of another: the end of one ends no pool of workers.
    Supervisor.start_link(children, strategy: :one_for_one, name: Tmesh.Supervisor)
  end

  # Regions in use keep the library's context alive after this.
  @impl true
  def stop(_state), do: Tmesh.Context.close()
end
