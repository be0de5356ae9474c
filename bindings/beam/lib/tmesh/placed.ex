# SPDX-License-Identifier: MIT
defmodule Tmesh.Placed do
  @moduledoc """
  A `Tmesh.Graph` over several engines: each part of it runs on its own, and values lie in regions that all of them have.

      engines = %{left: Tmesh.Engine.connect!("left"), right: Tmesh.Engine.connect!("right")}
      placed = Tmesh.Placed.open!(graph, %{"h" => :left, "y" => :right}, engines, weights: weights, folder: "models")
      binding = Tmesh.Placed.bind!(placed, %{"x" => x}, %{"y" => y})
      :ok = Tmesh.Placed.dispatch!(binding)

  Nodes that can run together are one part. Parts run one after another. What goes from one to the next is written once,
  where the next one reads it: tmesh copies nothing.
  """

  import Tmesh.Bang

  alias Tmesh.{Engine, Error, Graph, Native, Options}

  defmodule Binding do
    @moduledoc "The parts with their inputs and outputs: made by `Tmesh.Placed.bind/3`."
    @enforce_keys [:native]
    @derive {Inspect, only: []}
    defstruct @enforce_keys

    @type t :: %__MODULE__{native: Native.engine()}
  end

  @enforce_keys [:native, :parts, :keys, :nodes]
  @derive {Inspect, only: [:parts]}
  defstruct @enforce_keys

  @typedoc "`parts`: where each ran when it was opened, in their order."
  @type t :: %__MODULE__{
          native: Native.engine(),
          parts: [term()],
          keys: [term()],
          nodes: [String.t()]
        }

  @doc """
  The graph in parts, which the engines open. `at` says for each node that computes which of the engines runs it, by its key;
  reshapes go with who reads them.

  Options: `folder` - a folder of models of all these engines, where the parts are while this is used; `weights` - sealed
  tensors by name, all of the graph's.

  Errors: `:invalid` (a node that is nowhere, a weight that was not given, rows that a `:set_rows` replaces and another node
  reads too), `:not_found` (a node that the graph has not), and those of `Tmesh.Engine.graph/3`.
  """
  @spec open(Graph.t(), %{String.t() => term()}, %{term() => Engine.t()},
          folder: Path.t(),
          weights: Engine.tensors()
        ) :: {:ok, t()} | {:error, Error.t()}
  def open(%Graph{} = graph, at, engines, opts) do
    with {:ok, opts} <- Options.validate(opts, folder: ".", weights: %{}),
         keys = Map.keys(engines),
         {:ok, places} <- places(at, keys),
         {:ok, text} <- Graph.to_json(graph),
         natives = Enum.map(keys, &engines[&1].native),
         weights = for({name, ref} <- opts[:weights], do: {name, ref.handle}),
         folder = Path.expand(opts[:folder]),
         {:ok, native} <-
           Engine.call(fn -> Native.placed_open(natives, text, places, weights, folder) end),
         {:ok, parts} <- Engine.call(fn -> Native.placed_parts(native) end),
         do:
           {:ok,
            %__MODULE__{
              native: native,
              parts: Enum.map(parts, &Enum.at(keys, &1)),
              keys: keys,
              nodes: for(node <- Graph.nodes(graph), do: node.name)
            }}
  end

  # What no node is at: inputs, weights and reshapes go with who reads them.
  @nowhere 0xFFFFFFFF

  @doc """
  Go to other places, with all bindings: everything is opened and bound there before the old places are let go. Runs end
  before, and later ones wait. After an error the graph is where it was, and runs on. `at` is as for `open/4`, all of it.

  Errors: as `open/4` and `bind/3`.
  """
  @spec move(t(), %{String.t() => term()}) :: :ok | {:error, Error.t()}
  def move(%__MODULE__{} = placed, at) do
    with {:ok, places} <- places(at, placed.keys),
         places = Map.new(places),
         [] <- Map.keys(places) -- placed.nodes do
      Engine.call(fn ->
        Native.placed_move(placed.native, Enum.map(placed.nodes, &Map.get(places, &1, @nowhere)))
      end)
    else
      [unknown | _more] -> {:error, Error.new(:not_found, "there is no node #{unknown}")}
      {:error, _reason} = error -> error
    end
  end

  @doc "Where each node that computes runs: as `at` of `open/4`."
  @spec at(t()) :: {:ok, %{String.t() => term()}} | {:error, Error.t()}
  def at(%__MODULE__{} = placed) do
    with {:ok, numbers} <-
           Engine.call(fn -> Native.placed_at(placed.native, length(placed.nodes)) end),
         do:
           {:ok,
            for {node, number} <- Enum.zip(placed.nodes, numbers), number != @nowhere, into: %{} do
              {node, Enum.at(placed.keys, number)}
            end}
  end

  defp places(at, keys) do
    numbers = keys |> Enum.with_index() |> Map.new()

    case Enum.find(at, fn {_node, key} -> not is_map_key(numbers, key) end) do
      nil -> {:ok, for({node, key} <- at, do: {node, numbers[key]})}
      {node, _key} -> {:error, Error.new(:invalid, "node #{node} is on no engine that was given")}
    end
  end

  @doc """
  Check once, to run often. The output of a `:set_rows` is the tensor of its past. The binding keeps the tensors' memory, and
  has what goes between parts.

  Errors: `:not_found` (no such input or output), `:invalid` (one is missing; another tensor than the past), and those of
  `Tmesh.Engine.bind/4`.
  """
  @spec bind(t(), Engine.tensors(), Engine.tensors()) :: {:ok, Binding.t()} | {:error, Error.t()}
  def bind(%__MODULE__{native: placed}, inputs, outputs) do
    ins = for {name, ref} <- inputs, do: {name, ref.handle}
    outs = for {name, ref} <- outputs, do: {name, ref.handle}

    with {:ok, native} <- Engine.call(fn -> Native.placed_bind(placed, ins, outs) end),
         do: {:ok, %Binding{native: native}}
  end

  @doc """
  Run all parts. After an error of one those behind it have not run. Options and errors: as `Tmesh.Engine.dispatch/2`.
  """
  @spec dispatch(Binding.t(), cancellable: Engine.Cancellable.t() | nil) ::
          :ok | {:error, Error.t()}
  def dispatch(%Binding{native: binding}, opts \\ []), do: Engine.run(binding, opts)

  bang open(
         graph :: Graph.t(),
         at :: %{String.t() => term()},
         engines :: %{term() => Engine.t()},
         opts :: [folder: Path.t(), weights: Engine.tensors()]
       ) :: t()

  bang move(placed :: t(), at :: %{String.t() => term()}) :: :ok
  bang at(placed :: t()) :: %{String.t() => term()}
  bang bind(placed :: t(), inputs :: Engine.tensors(), outputs :: Engine.tensors()) :: Binding.t()

  bang dispatch(binding :: Binding.t(), opts :: [cancellable: Engine.Cancellable.t() | nil] \\ []) ::
         :ok
end
