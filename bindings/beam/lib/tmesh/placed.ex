# SPDX-License-Identifier: MIT
defmodule Tmesh.Placed do
  @moduledoc """
  A `Tmesh.Graph` over several engines. Each engine runs its part, and values lie in regions that all of them have.

      engines = %{left: Tmesh.Engine.connect!("left"), right: Tmesh.Engine.connect!("right")}
      placed = Tmesh.Placed.open!(graph, %{"h" => :left, "y" => :right}, engines, weights: weights, folder: "models")
      binding = Tmesh.Placed.bind!(placed, %{"x" => x}, %{"y" => y})
      :ok = Tmesh.Placed.dispatch!(binding)

  Nodes that can run together are one partition. Partitions run one after another. A value between two partitions is written once,
  where the next part reads it: tmesh copies nothing. In place of engines you can give `Tmesh.Places`, which several
  graphs share.
  """

  import Tmesh.Bang

  alias Tmesh.{Engine, Error, Graph, Native, Options, Places}
  alias Tmesh.ZeroCopy.TensorRef

  defmodule Binding do
    @moduledoc "The partitions with their inputs and outputs: made by `Tmesh.Placed.bind/3`."
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
  Split the graph into partitions, which the engines open. `at` gives the key of the engine for each node that computes;
  reshapes go with their readers. `Tmesh.Places` may replace the engines.

  Options: `folder` - a folder of models of all these engines, for the partitions while this graph is used; `weights` -
  sealed tensors by name, all of the graph's.

  Errors, beside those of `Tmesh.Engine.graph/3`:

    * `:invalid` - a node has no place, a weight is missing, or another node also reads rows that a `:set_rows`
      replaces
    * `:not_found` - the graph has no such node
    * `:system` with `:enospc` - a place has no room: the message has the bytes needed and available
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
         {:ok, weights} <- Engine.open_here(opts[:weights]),
         folder = Path.expand(opts[:folder]),
         {:ok, native} <-
           Engine.await(fn tag ->
             Native.placed_open(tag, natives, text, places, weights, folder)
           end) do
      nodes = Graph.nodes(graph)

      {:ok,
       %__MODULE__{
         native: native,
         keys: keys,
         nodes: for(node <- nodes, do: node.name),
         kept: for(%{op: :input, cache: :reuse} = node <- nodes, do: node.name)
       }}
    end
  end

  defp natives(%Places{keys: keys, native: native}), do: {keys, native}
  defp natives(engines), do: {Map.keys(engines), for({_key, engine} <- engines, do: engine.native)}

  @doc "Return the place of each part, or the last one if the graph was closed: keys of the engines or places."
  @spec partitions(t()) :: {:ok, [term()]} | {:error, Error.t()}
  def partitions(%__MODULE__{native: native, keys: keys}) do
    with {:ok, partitions} <- Engine.call(fn -> Native.placed_partitions(native) end),
         do: {:ok, Enum.map(partitions, &Enum.at(keys, &1))}
  end

  # The place of nodes that need none: inputs, weights and reshapes go with their readers.
  @nowhere 0xFFFFFFFF

  @doc """
  Move to other places, with all bindings. Everything is opened and bound there before the old places are released.
  Present runs end before, and later ones wait. After an error the graph stays where it was, and runs on. `at` is as
  for `open/4`, for all nodes.

  Errors: those of `open/4` and `bind/3`.
  """
  @spec move(t(), %{String.t() => term()}) :: :ok | {:error, Error.t()}
  def move(%__MODULE__{} = placed, at) do
    with {:ok, places} <- places(at, placed.keys),
         places = Map.new(places),
         [] <- Map.keys(places) -- placed.nodes do
      Engine.await(fn tag ->
        Native.placed_move(
          tag,
          placed.native,
          Enum.map(placed.nodes, &Map.get(places, &1, @nowhere))
        )
      end)
    else
      [unknown | _more] -> {:error, Error.new(:not_found, "there is no node #{unknown}")}
      {:error, _reason} = error -> error
    end
  end

  @doc "Return the place of each node that computes, in the form of `at` of `open/4`."
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
  Check inputs and outputs once, to run often. The output of a `:set_rows` is the tensor of its past. The binding
  keeps the tensors' memory, and owns the values between partitions. If an input with `cache: :reuse` is not given, the
  binding owns it, of zeros at first, in the memory of the place that reads it: `tensor/2`.

  Errors: `:not_found` (no such input or output), `:invalid` (a missing tensor; another tensor than the past), and
  those of `Tmesh.Engine.bind/4`.
  """
  @spec bind(t(), Engine.tensors(), Engine.tensors()) :: {:ok, Binding.t()} | {:error, Error.t()}
  def bind(%__MODULE__{native: placed, kept: kept}, inputs, outputs) do
    own = for name <- kept, not is_map_key(inputs, name), do: {name, nil}

    with {:ok, ins} <- Engine.open_here(inputs),
         {:ok, outs} <- Engine.open_here(outputs, writable: true),
         {:ok, native} <-
           Engine.await(fn tag -> Native.placed_bind(tag, placed, own ++ ins, outs) end),
         do: {:ok, %Binding{native: native}}
  end

  @doc """
  Return an input that the binding owns. Call it again after the graph has moved, because the tensor moves to
  another memory.

  Errors: `:not_found` (it owns no such input).
  """
  @spec tensor(Binding.t(), String.t()) :: {:ok, TensorRef.t()} | {:error, Error.t()}
  def tensor(%Binding{native: binding}, name) do
    with {:ok, {handle, ref}} <- Engine.call(fn -> Native.placed_tensor(binding, name) end),
         do: {:ok, TensorRef.unnamed(handle, ref)}
  end

  @doc """
  Run all partitions. If one fails, later partitions have not run. A graph that was closed while idle gets places first. Options
  and errors are those of `Tmesh.Engine.dispatch/2`.
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
  bang partitions(placed :: t()) :: [term()]
  bang tensor(binding :: Binding.t(), name :: String.t()) :: TensorRef.t()
  bang at(placed :: t()) :: %{String.t() => term()}
  bang bind(placed :: t(), inputs :: Engine.tensors(), outputs :: Engine.tensors()) :: Binding.t()

  bang dispatch(binding :: Binding.t(), opts :: [cancellable: Engine.Cancellable.t() | nil] \\ []) ::
         :ok
end
