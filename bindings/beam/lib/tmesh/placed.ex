# SPDX-License-Identifier: MIT
defmodule Tmesh.Placed do
  @moduledoc """
  A `Tmesh.Graph` over several engines: each part of it runs on its own, and values lie in regions that all of them have.

      engines = %{left: Tmesh.Engine.connect!("left"), right: Tmesh.Engine.connect!("right")}
      placed = Tmesh.Placed.open!(graph, %{"h" => :left, "y" => :right}, engines, weights: weights, folder: "models")
      binding = Tmesh.Placed.bind!(placed, %{"x" => x}, %{"y" => y})
      :ok = Tmesh.Placed.dispatch!(binding)

  Nodes that can run together are one part. Parts run one after another. What goes from one to the next is written once,
  where the next one reads it: tmesh copies nothing. In place of engines there may be `Tmesh.Places`, which several graphs share.
  """

  import Tmesh.Bang

  alias Tmesh.{Engine, Error, Graph, Native, Options, Places}
  alias Tmesh.ZeroCopy.TensorRef

  defmodule Binding do
    @moduledoc "The parts with their inputs and outputs: made by `Tmesh.Placed.bind/3`."
    @enforce_keys [:native]
    @derive {Inspect, only: []}
    defstruct @enforce_keys

    @type t :: %__MODULE__{native: Native.engine()}
  end

  @enforce_keys [:native, :keys, :nodes, :kept]
  @derive {Inspect, only: [:nodes]}
  defstruct @enforce_keys

  @typedoc "`kept`: inputs that later runs read again."
  @type t :: %__MODULE__{
          native: Native.engine(),
          keys: [term()],
          nodes: [String.t()],
          kept: [String.t()]
        }

  @doc """
  The graph in parts, which the engines open. `at` says for each node that computes which of the engines runs it, by its key;
  reshapes go with who reads them. `Tmesh.Places` may stand for the engines.

  Options: `folder` - a folder of models of all these engines, where the parts are while this is used; `weights` - sealed
  tensors by name, all of the graph's.

  Errors: `:invalid` (a node that is nowhere, a weight that was not given, rows that a `:set_rows` replaces and another node
  reads too), `:not_found` (a node that the graph has not), `:system` with `:enospc` (a place has no
  room: the message has the bytes needed and there), and those of `Tmesh.Engine.graph/3`.
  """
  @spec open(Graph.t(), %{String.t() => term()}, %{term() => Engine.t()} | Places.t(),
          folder: Path.t(),
          weights: Engine.tensors()
        ) :: {:ok, t()} | {:error, Error.t()}
  def open(%Graph{} = graph, at, engines, opts) do
    with {:ok, opts} <- Options.validate(opts, folder: ".", weights: %{}),
         {keys, natives} = natives(engines),
         {:ok, places} <- places(at, keys),
         {:ok, text} <- Graph.to_json(graph),
         weights = for({name, ref} <- opts[:weights], do: {name, ref.handle}),
         folder = Path.expand(opts[:folder]),
         {:ok, native} <-
           Engine.call(fn -> Native.placed_open(natives, text, places, weights, folder) end) do
      nodes = Graph.nodes(graph)

      {:ok,
       %__MODULE__{
         native: native,
         keys: keys,
         nodes: for(node <- nodes, do: node.name),
         kept: for(%{op: :input, cache: :keep} = node <- nodes, do: node.name)
       }}
    end
  end

  defp natives(%Places{keys: keys, native: native}), do: {keys, native}
  defp natives(engines), do: {Map.keys(engines), for({_key, engine} <- engines, do: engine.native)}

  @doc "Where each part runs, in their order, or ran when it was given up: keys of the engines or places."
  @spec parts(t()) :: {:ok, [term()]} | {:error, Error.t()}
  def parts(%__MODULE__{native: native, keys: keys}) do
    with {:ok, parts} <- Engine.call(fn -> Native.placed_parts(native) end),
         do: {:ok, Enum.map(parts, &Enum.at(keys, &1))}
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
  has what goes between parts. An input with `cache: :keep` that is not given is the binding's own, of zeros at first, in the
  memory of the place that reads it: `tensor/2`.

  Errors: `:not_found` (no such input or output), `:invalid` (one is missing; another tensor than the past), and those of
  `Tmesh.Engine.bind/4`.
  """
  @spec bind(t(), Engine.tensors(), Engine.tensors()) :: {:ok, Binding.t()} | {:error, Error.t()}
  def bind(%__MODULE__{native: placed, kept: kept}, inputs, outputs) do
    own = for name <- kept, not is_map_key(inputs, name), do: {name, nil}
    ins = own ++ for({name, ref} <- inputs, do: {name, ref.handle})
    outs = for {name, ref} <- outputs, do: {name, ref.handle}

    with {:ok, native} <- Engine.call(fn -> Native.placed_bind(placed, ins, outs) end),
         do: {:ok, %Binding{native: native}}
  end

  @doc """
  Where an input that the binding owns lies now. When the graph has gone to another memory it lies elsewhere: ask again.

  Errors: `:not_found`: it owns no such input.
  """
  @spec tensor(Binding.t(), String.t()) :: {:ok, TensorRef.t()} | {:error, Error.t()}
  def tensor(%Binding{native: binding}, name) do
    with {:ok, {handle, ref}} <- Engine.call(fn -> Native.placed_tensor(binding, name) end),
         do: {:ok, TensorRef.unnamed(handle, ref)}
  end

  @doc """
  Run all parts. After an error of one those behind it have not run. A graph that was given up takes places first. Options and errors: as `Tmesh.Engine.dispatch/2`.
  """
  @spec dispatch(Binding.t(), cancellable: Engine.Cancellable.t() | nil) ::
          :ok | {:error, Error.t()}
  def dispatch(%Binding{native: binding}, opts \\ []), do: Engine.run(binding, opts)

  bang open(
         graph :: Graph.t(),
         at :: %{String.t() => term()},
         engines :: %{term() => Engine.t()} | Places.t(),
         opts :: [folder: Path.t(), weights: Engine.tensors()]
       ) :: t()

  bang move(placed :: t(), at :: %{String.t() => term()}) :: :ok
  bang parts(placed :: t()) :: [term()]
  bang tensor(binding :: Binding.t(), name :: String.t()) :: TensorRef.t()
  bang at(placed :: t()) :: %{String.t() => term()}
  bang bind(placed :: t(), inputs :: Engine.tensors(), outputs :: Engine.tensors()) :: Binding.t()

  bang dispatch(binding :: Binding.t(), opts :: [cancellable: Engine.Cancellable.t() | nil] \\ []) ::
         :ok
end
