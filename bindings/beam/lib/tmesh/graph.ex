# SPDX-License-Identifier: MIT
defmodule Tmesh.Graph do
  @moduledoc """
  Graphs for the engine "ggml". Each call adds a node. The library infers and checks dtypes and shapes in that call.

      iex> graph =
      ...>   Tmesh.Graph.new!("g")
      ...>   |> Tmesh.Graph.input!("x", :float32, [1, 4])
      ...>   |> Tmesh.Graph.weight!("w", :float32, [2, 4])
      ...>   |> Tmesh.Graph.add!("h", :matmul, ["x", "w"])
      ...>   |> Tmesh.Graph.output!("y", "h")
      #Tmesh.Graph<"g", 3 nodes, 1 output>
      iex> graph |> Tmesh.Graph.to_text!() |> String.split("\\n", trim: true)
      ["graph g", "x = input : float32[1,4]", "w = weight : float32[2,4]",
       "h = matmul(x, w) : float32[1,2]", "output y = h"]
      iex> {:error, error} = Tmesh.Graph.add(graph, "bad", :add, ["x", "h"])
      iex> error.message
      "node \\"bad\\": add: dimensions of the second are the first's or 1; given \\"x\\" float32[1,4], \\"h\\" float32[1,2]"

  Save it as a file below one of an engine's folders of models, here that of `{Tmesh.Engine.Server, name: "decode",
  engine: "ggml", models: ["models"]}`:

      :ok = Tmesh.Graph.save!(graph, "models/g.graph")
      engine = Tmesh.Engine.connect!("decode")
      opened = Tmesh.Engine.graph!(engine, "models/g.graph", weights: %{"w" => sealed})
      :ok = Tmesh.Engine.dispatch!(opened, %{"x" => x}, %{"y" => y})

  A graph is a value: adding to it changes no other graph. `docs/reference/engines.md` describes the formats, and
  `include/tmesh/graph.h` the arguments of each operator.
  """

  use Tmesh.Bang,
      ~w(new/1 input/5 weight/5 add/5 output/3 parse/1 read/1 to_json/1 to_text/1 to_dot/1 save/2)

  alias Tmesh.{Error, Native, Options}
  alias Tmesh.ZeroCopy.{Layout, TensorRef}

  @enforce_keys [:native, :name, :node_count, :output_count]
  defstruct @enforce_keys

  @type t :: %__MODULE__{
          native: Native.graph(),
          name: String.t(),
          node_count: non_neg_integer(),
          output_count: non_neg_integer()
        }

  @typedoc "`:input` and `:weight` have calls of their own."
  @type op ::
          :matmul
          | :rms_norm
          | :layer_norm
          | :rope
          | :softmax
          | :add
          | :mul
          | :silu
          | :gelu
          | :get_rows
          | :set_rows
          | :reshape
          | :transpose
          | :concat
          | :attention
          | :lora

  @typedoc "A hint about a value's use: later runs read it again, or it is read once."
  @type cache :: :none | :reuse | :stream

  @type attribute ::
          {:dtype, TensorRef.dtype() | TensorRef.nx_type()}
          | {:shape, TensorRef.shape() | tuple()}
          | {:eps, number()}
          | {:scale, number()}
          | {:base, number()}
          | {:dims, non_neg_integer()}
          | {:halves, boolean()}
          | {:axis, non_neg_integer()}
          | {:axes, [non_neg_integer()]}
          | {:cache, cache()}

  @attributes ~w(dtype shape eps scale base dims halves axis axes cache quant)a

  @doc "Make an empty graph. Errors: `:invalid` (names are 1 to 63 letters, digits and `_.-/`)."
  @spec new(String.t()) :: {:ok, t()} | {:error, Error.t()}
  def new(name), do: made(Native.graph_create(name))

  @doc """
  Add an input, which each run is given. Option: `cache`.

  Errors of all calls that add a node: `:invalid` (the message names the node and the mistake), `:system` (more than
  65,536 nodes). The given graph does not change.
  """
  @spec input(
          t(),
          String.t(),
          TensorRef.dtype() | TensorRef.nx_type(),
          TensorRef.shape() | tuple(),
          cache: cache()
        ) :: {:ok, t()} | {:error, Error.t()}
  def input(%__MODULE__{} = graph, name, dtype, shape, opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, [:cache]),
         do: node_of(graph, name, :input, [], [dtype: dtype, shape: shape] ++ opts)
  end

  @doc """
  Add a weight, which is given when the graph is opened. Options: `cache`; `quant` - it has blocks of that type of
  GGUF, `"Q8_0"`, of dtype `:float32`.
  """
  @spec weight(
          t(),
          String.t(),
          TensorRef.dtype() | TensorRef.nx_type(),
          TensorRef.shape() | tuple(),
          cache: cache(),
          quant: String.t()
        ) :: {:ok, t()} | {:error, Error.t()}
  def weight(%__MODULE__{} = graph, name, dtype, shape, opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, [:cache, :quant]),
         do: node_of(graph, name, :weight, [], [dtype: dtype, shape: shape] ++ opts)
  end

  @doc """
  Add a node that computes, with inputs by their names. `dtype` and `shape` are inferred, and compared if you give
  them; `:reshape` needs `shape`. The other options belong to the operator.
  """
  @spec add(t(), String.t(), op(), [String.t()], [attribute()]) ::
          {:ok, t()} | {:error, Error.t()}
  def add(%__MODULE__{} = graph, name, op, inputs, opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, @attributes),
         do: node_of(graph, name, op, inputs, opts)
  end

  defp node_of(graph, name, op, inputs, opts) do
    opts =
      for {key, value} <- opts do
        case key do
          :dtype -> {key, Layout.dtype(value)}
          :shape -> {key, Layout.shape(value)}
          _other -> {key, value}
        end
      end

    grown(graph, {name, op, inputs, opts})
  end

  @doc "Make the value of a node an output. Errors: `:invalid` (an input or weight is no result)."
  @spec output(t(), String.t(), String.t()) :: {:ok, t()} | {:error, Error.t()}
  def output(%__MODULE__{} = graph, name, node), do: grown(graph, {name, node})

  defp grown(graph, what),
    do: made(Native.graph_add(graph.native, graph.node_count, graph.output_count, what))

  defp made({:ok, {native, name, nodes, outputs}}),
    do: {:ok, %__MODULE__{native: native, name: name, node_count: nodes, output_count: outputs}}

  defp made({:error, reason}), do: {:error, Error.from_native(reason)}

  @doc """
  Read a graph from its text. It is checked completely, even if it is hostile.

  Errors: `:protocol` (the message names the node or the line), `:system` (more than 16 MiB or 65,536 nodes).
  """
  @spec parse(String.t()) :: {:ok, t()} | {:error, Error.t()}
  def parse(text), do: made(Native.graph_parse(text))

  @doc "Read a graph from a file. Errors: those of `parse/1`, `:not_found`, `:access`, `:system`."
  @spec read(Path.t()) :: {:ok, t()} | {:error, Error.t()}
  def read(path), do: path |> Path.expand() |> Native.graph_read() |> made()

  @doc "Return the graph as JSON."
  @spec to_json(t()) :: {:ok, String.t()} | {:error, Error.t()}
  def to_json(%__MODULE__{} = graph), do: written(graph, :json)

  @doc "Return the graph as text, which C and `parse/1` read."
  @spec to_text(t()) :: {:ok, String.t()} | {:error, Error.t()}
  def to_text(%__MODULE__{} = graph), do: written(graph, :text)

  @doc "Return a picture as input for Graphviz: `dot -Tsvg` makes an SVG of it."
  @spec to_dot(t()) :: {:ok, String.t()} | {:error, Error.t()}
  def to_dot(%__MODULE__{} = graph), do: written(graph, :dot)

  defp written(graph, form) do
    with {:error, reason} <-
           Native.graph_write(graph.native, graph.node_count, graph.output_count, form),
         do: {:error, Error.from_native(reason)}
  end

  @doc "Write the text to a file, for `Tmesh.Engine.graph/3`. Errors: `:not_found`, `:access`, `:system`."
  @spec save(t(), Path.t()) :: :ok | {:error, Error.t()}
  def save(%__MODULE__{} = graph, path) do
    with {:ok, text} <- to_text(graph),
         {:error, reason} <- File.write(path, text),
         do: {:error, Error.from_native({reason, "#{path}: #{:file.format_error(reason)}"})}
  end

  @doc """
  List all nodes, with inputs before their readers: maps of `name`, `op`, `inputs`, `dtype`, `shape` and the
  operator's attributes.
  """
  @spec nodes(t()) :: [map()]
  def nodes(%__MODULE__{} = graph), do: for(node <- decoded(graph)["nodes"], do: node_map(node))

  @doc "Return the node of each output, by the output's name."
  @spec outputs(t()) :: %{String.t() => String.t()}
  def outputs(%__MODULE__{} = graph), do: decoded(graph)["outputs"]

  @doc """
  Return the input whose memory an output uses, for each output of `:set_rows`. Pass the result to
  `Tmesh.Engine.bind/4` as `in_place`.
  """
  @spec in_place(t()) :: %{String.t() => String.t()}
  def in_place(%__MODULE__{} = graph) do
    graph_map = decoded(graph)
    nodes = Map.new(graph_map["nodes"], &{&1["name"], &1})

    for {output, name} <- graph_map["outputs"],
        nodes[name]["op"] == "set_rows",
        into: %{},
        do: {output, past(nodes, name)}
  end

  defp past(nodes, name) do
    case nodes[name] do
      %{"op" => "set_rows", "inputs" => [past | _new]} -> past(nodes, past)
      _input -> name
    end
  end

  # The library has just written this text, so it is valid.
  defp decoded(graph) do
    {:ok, map} = graph |> to_json!() |> Native.json_decode()
    map
  end

  # The operators, dtypes and caches that the library writes. Another word stays a text: reading makes no atom.
  @words Map.new(
           ~w(input weight matmul rms_norm layer_norm rope softmax add mul silu gelu get_rows set_rows reshape transpose concat)a ++
             ~w(attention lora none reuse stream)a ++ TensorRef.dtypes(),
           &{Atom.to_string(&1), &1}
         )

  defp word(text), do: Map.get(@words, text, text)

  # A member unknown here stays as the library wrote it.
  defp node_map(node) do
    %{
      name: node["name"],
      op: word(node["op"]),
      inputs: node["inputs"] || [],
      dtype: word(node["dtype"]),
      shape: node["shape"]
    }
    |> Map.merge(
      for key <- @attributes -- [:dtype, :shape],
          {:ok, value} <- [Map.fetch(node, "#{key}")],
          into: %{},
          do: {key, if(key == :cache, do: word(value), else: value)}
    )
  end

  defimpl Inspect do
    import Inspect.Algebra

    def inspect(graph, opts) do
      concat([
        "#Tmesh.Graph<",
        to_doc(graph.name, opts),
        ", #{count(graph.node_count, "node")}, #{count(graph.output_count, "output")}>"
      ])
    end

    defp count(1, what), do: "1 #{what}"
    defp count(count, what), do: "#{count} #{what}s"
  end
end
