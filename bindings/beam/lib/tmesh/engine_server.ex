# SPDX-License-Identifier: MIT
defmodule Tmesh.Engine.Server do
  @moduledoc """
  Serves an engine from a supervision tree. The program `tmesh-engine` runs at a port. It starts the engine's process,
  and after a crash the next one. It ends with this process, at the latest with the VM.

      children = [{Tmesh.Engine.Server, name: "decode", models: ["/srv/models"]}]

  Options:

    * `name` - the name that clients connect to, 1 to 32 small letters, digits and hyphens (required)
    * `engine` - the kind of engine (`"onnx"`)
    * `models` - folders from which it may read models
    * `library` - the engine's own library
    * `threads`, `clients`, `limit`, `patience` - as in `tmesh-engine(1)`
    * `confined` - `false` serves an engine with all rights of its user, also on a kernel that cannot confine it
      (`true`)
    * `program` - the path of tmesh-engine (`TMESH_ENGINE_PROGRAM`, then PATH)
    * `server` - a name for this process
  """
  use GenServer

  alias Tmesh.{Error, Options}

  @options [engine: "onnx", models: [], library: nil, threads: 1, clients: 64, limit: 60] ++
             [patience: 0.5, confined: true, program: nil, server: nil, name: nil]

  @doc """
  Return a child specification for a supervisor. The child's id is the name of the engine, so that several can be
  children of one supervisor.
  """
  @spec child_spec(keyword()) :: Supervisor.child_spec()
  def child_spec(opts) do
    named = Keyword.keyword?(opts) and opts[:name]
    %{id: named || __MODULE__, start: {__MODULE__, :start_link, [opts]}}
  end

  @doc """
  Start the engine. When this returns, clients can connect.

  Errors: `:invalid`, `:unsupported`. The message of the latter names the reason: there is no such program, engine or
  library, or the name is taken.
  """
  @spec start_link(keyword()) :: GenServer.on_start()
  def start_link(opts) do
    with {:ok, opts} <- Options.validate(opts, @options) do
      GenServer.start_link(__MODULE__, opts, if(opts[:server], do: [name: opts[:server]], else: []))
    end
  end

  @impl true
  def init(opts) do
    Process.flag(:trap_exit, true)

    with {:ok, program} <- program(opts),
         :ok <- name(opts[:name]),
         port =
           Port.open(
             {:spawn_executable, program},
             [:binary, :exit_status, {:line, 4096}] ++ [args: args(opts)]
           ),
         do: await(port, "ready #{opts[:name]}")
  end

  defp program(opts) do
    case opts[:program] || System.get_env("TMESH_ENGINE_PROGRAM") ||
           System.find_executable("tmesh-engine") do
      nil ->
        stop(:unsupported, "there is no program tmesh-engine in PATH: it comes with tmesh's tools")

      program ->
        {:ok, program}
    end
  end

  defp name(name) when is_binary(name), do: :ok
  defp name(_none), do: stop(:invalid, "an engine needs a name under which it is served")

  defp args(opts) do
    ["--with-input", "--engine=#{opts[:engine]}", "--threads=#{opts[:threads]}"] ++
      ["--clients=#{opts[:clients]}", "--limit=#{opts[:limit]}", "--patience=#{opts[:patience]}"] ++
      if(opts[:confined], do: [], else: ["--unconfined"]) ++
      for(folder <- opts[:models], do: "--models=#{Path.expand(folder)}") ++
      for(library <- List.wrap(opts[:library]), do: "--library=#{library}") ++ ["--", opts[:name]]
  end

  defp await(port, ready) do
    receive do
      {^port, {:data, {_whole, ^ready}}} ->
        {:ok, port}

      {^port, {:data, {_whole, words}}} ->
        stop(:unsupported, words)

      {^port, {:exit_status, 2}} ->
        stop(:invalid, "tmesh-engine refused its arguments, and said why")

      {^port, {:exit_status, status}} ->
        stop(:unsupported, "tmesh-engine ended with #{status}")
    end
  end

  defp stop(type, message), do: {:stop, Error.new(type, message)}

  @impl true
  def handle_info({port, {:exit_status, status}}, port), do: {:stop, {:tmesh_engine, status}, port}
  def handle_info({:EXIT, port, reason}, port), do: {:stop, reason, port}
  def handle_info(_other, port), do: {:noreply, port}
end
