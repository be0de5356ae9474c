# SPDX-License-Identifier: MIT
defmodule Tmesh.Costs do
  @moduledoc """
  What this machine's devices, the links between them and its engines take: measured, kept, and used to place graphs.

      Tmesh.Costs.measure!()                                      # once for a machine; or: tmeshctl devices --measure
      costs = Tmesh.Costs.read!()                                 # refused when the machine is not that one any more
      at = Tmesh.Costs.place!(costs, graph, engines)              # for Tmesh.Placed.open/4
      places = Tmesh.Places.open!(engines, costs: costs)

  The program `tmeshctl-devices` looks at the machine and measures: no engine is loaded into the emulator. Numbers are bytes or
  operations a second, and seconds.
  """

  import Tmesh.Bang

  alias Tmesh.{Context, Engine, Error, Graph, Native, Options}
  alias Tmesh.Engine.Devices

  @enforce_keys [:native, :how, :links, :engines]
  @derive {Inspect, only: [:how, :links, :engines]}
  defstruct @enforce_keys

  @typedoc "A copy from the memory of one device to that of another, or its own."
  @type link :: %{bandwidth: float(), latency: float()}

  @typedoc """
  `launch_served`: by process; `nil`: not measured. `node`: of a small node more in a graph. `matmul`: by the rows of a matrix that
  is multiplied by one of 512 by 512.
  """
  @type engine :: %{
          launch: float(),
          launch_served: float() | nil,
          node: float(),
          matmul: %{pos_integer() => float()}
        }

  @typedoc """
  `how`: when, of how many samples, copies of how many bytes, the load of the machine. `links`: by device, from and to; `engines`: by
  name. What was not measured is not there.
  """
  @type t :: %__MODULE__{
          native: Native.engine(),
          how: %{String.t() => term()},
          links: %{{String.t(), String.t()} => link()},
          engines: %{String.t() => engine()}
        }

  @doc """
  Measure this machine, in about a second, and keep that for `read/1`, in `XDG_CACHE_HOME`, else `~/.cache`. Engines in processes
  of their own are measured where `tmesh-engine` is installed.

  Options: `program` - where `tmeshctl-devices` is (`TMESH_DEVICES_PROGRAM`, then PATH).

  Errors: `:unsupported` (there is no such program, or it failed, as when nothing can be kept: run it to see why), `:protocol`,
  `:invalid`.
  """
  @spec measure(program: Path.t()) :: {:ok, t()} | {:error, Error.t()}
  def measure(opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, program: nil),
         {:ok, costs} <- Devices.text(opts[:program], ["--measure"]),
         {:ok, devices} <- Devices.text(opts[:program], []),
         do: made(fn -> Native.costs_parse(Context.get(), devices, costs) end)
  end

  @doc """
  What `measure/1` kept. A file that others may write, that is malformed, or that is of another machine, kernel or version of an
  engine is refused: nothing is measured anew.

  Options: `path` of the file (by default where `XDG_CACHE_HOME` and `HOME` said when the VM started); `program`, as of
  `measure/1`.

  Errors: `:not_found` (nothing was measured here), `:access` (another's file, or others may write it), `:protocol` (malformed),
  `:stale` (the message says what differs), and those of `measure/1`.
  """
  @spec read(path: Path.t() | nil, program: Path.t()) :: {:ok, t()} | {:error, Error.t()}
  def read(opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, path: nil, program: nil),
         {:ok, devices} <- Devices.text(opts[:program], []),
         do: made(fn -> Native.costs_read(Context.get(), devices, opts[:path]) end)
  end

  defp made(native) do
    with {:ok, {native, text}} <- Engine.call(native),
         {:ok, told} <- Native.json_decode(text) do
      {:ok,
       %__MODULE__{
         native: native,
         how: told["how"],
         links:
           for %{"bandwidth" => bandwidth} = link when bandwidth != nil <- told["links"],
               into: %{} do
             {{link["from"], link["to"]}, %{bandwidth: bandwidth, latency: link["latency"]}}
           end,
         engines: Map.new(told["engines"], fn {name, told} -> {name, engine(told)} end)
       }}
    end
  end

  defp engine(told) do
    %{
      launch: told["launch"],
      launch_served: told["launch_served"],
      node: told["node"],
      matmul: Map.new(told["matmul"], &{&1["rows"], &1["flops"]})
    }
  end

  # What no node is at, as in Tmesh.Placed.
  @nowhere 0xFFFFFFFF

  @doc """
  Where each node that computes is to run, so that the last one ends early: `at` of `Tmesh.Placed.open/4`.

  Options: `memory` - bytes for weights and caches, by key of `engines`; else what was free when it was measured.

  Errors: `:system` with `:enospc` (what does not fit, with the bytes needed and there), `:unsupported` (an engine or a link that
  was not measured, a node that none runs), `:invalid`.
  """
  @spec place(t(), Graph.t(), %{term() => Engine.t()}, memory: %{term() => pos_integer()}) ::
          {:ok, %{String.t() => term()}} | {:error, Error.t()}
  def place(%__MODULE__{native: native}, %Graph{} = graph, engines, opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, memory: %{}),
         {:ok, memory} <- memory(opts[:memory], engines),
         {:ok, text} <- Graph.to_json(graph),
         keys = Map.keys(engines),
         places = for({key, engine} <- engines, do: {engine.native, Map.get(memory, key, 0)}),
         {:ok, at} <- Engine.call(fn -> Native.costs_find(native, text, places) end) do
      {:ok,
       for {node, number} <- Enum.zip(Graph.nodes(graph), at), number != @nowhere, into: %{} do
         {node.name, Enum.at(keys, number)}
       end}
    end
  end

  defp memory(%{} = memory, engines) do
    if Enum.all?(memory, fn {key, n} -> is_map_key(engines, key) and is_integer(n) and n > 0 end),
      do: {:ok, memory},
      else: {:error, Error.new(:invalid, "memory is bytes of at least 1, by keys of the engines")}
  end

  defp memory(_wrong, _engines), do: {:error, Error.new(:invalid, "memory is a map of bytes")}

  bang measure(opts :: [program: Path.t()] \\ []) :: t()
  bang read(opts :: [path: Path.t() | nil, program: Path.t()] \\ []) :: t()

  bang place(
         costs :: t(),
         graph :: Graph.t(),
         engines :: %{term() => Engine.t()},
         opts :: [memory: %{term() => pos_integer()}] \\ []
       ) :: %{String.t() => term()}
end
