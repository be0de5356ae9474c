# SPDX-License-Identifier: MIT
defmodule Tmesh.Engine do
  @moduledoc """
  Graphs run on shared tensors, by an engine in a process of its own. No engine ever runs in the BEAM.

      children = [{Tmesh.Engine.Server, name: "decode", models: ["models"]}]    # in a supervisor: starts tmesh-engine

      {:ok, engine} = Tmesh.Engine.connect("decode")
      {:ok, graph} = Tmesh.Engine.graph(engine, "models/add.onnx")
      {:ok, out} = Tmesh.ZeroCopy.allocate([2, 4], :float32)
      :ok = Tmesh.Engine.dispatch(graph, %{"a" => a, "b" => b}, %{"sum" => out})

  Inputs and outputs are tensors of `Tmesh.ZeroCopy` or device tensors (`Tmesh.Engine.Tensor`), in any mixture. Their elements never
  go to the engine: tokens do. Outputs are written where they lie; `dispatch/4` makes memory for those that are `:host` or `:engine`. An engine that crashes costs the call that it was running (`:gone`), with its outputs perhaps
  half written; the next call goes to the process that was started in its place, and graphs and bindings stay good.

  The engine "ggml" runs graphs of our own, which `Tmesh.Graph` builds.

  What runs often is bound once: `bind/3`, then `dispatch/1`; `rebind/2` replaces inputs. Calls of one engine go one after another; a
  process that is not to wait for others connects by itself. `docs/engines.md` says what is promised.
  """

  import Tmesh.Bang

  alias Tmesh.{Context, Error, Janitor, Native, Options}
  alias Tmesh.Engine.Tensor
  alias Tmesh.ZeroCopy.TensorRef

  defmodule Graph do
    @moduledoc """
    What is run: made by `Tmesh.Engine.graph/3`. `inputs` and `outputs` are lists of `{name, dtype, shape}`; a dimension
    is a number, a name (the same number wherever it stands) or `nil`.
    """
    @enforce_keys [:native, :engine, :inputs, :outputs]
    @derive {Inspect, only: [:inputs, :outputs]}
    defstruct @enforce_keys

    @type operand ::
            {String.t(), Tmesh.ZeroCopy.TensorRef.dtype(), [non_neg_integer() | String.t() | nil]}
    @type t :: %__MODULE__{
            native: Native.engine(),
            engine: Native.engine(),
            inputs: [operand()],
            outputs: [operand()]
          }
  end

  defmodule Binding do
    @moduledoc "Inputs and outputs of a graph, checked, which it keeps: made by `Tmesh.Engine.bind/4`."
    @enforce_keys [:native, :engine]
    @derive {Inspect, only: []}
    defstruct @enforce_keys

    @type t :: %__MODULE__{native: Native.engine(), engine: Native.engine()}
  end

  defmodule Cancellable do
    @moduledoc "Given to dispatches that `Tmesh.Engine.cancel/1` may call off: made by `Tmesh.Engine.cancellable/0`."
    @enforce_keys [:native]
    @derive {Inspect, only: []}
    defstruct @enforce_keys

    @type t :: %__MODULE__{native: Native.engine()}
  end

  @enforce_keys [:native, :name]
  @derive {Inspect, only: [:name]}
  defstruct @enforce_keys

  @type t :: %__MODULE__{native: Native.engine(), name: String.t()}
  @type tensors :: %{String.t() => TensorRef.t()}

  @typedoc "Tensors and device tensors, in any mixture."
  @type values :: %{String.t() => TensorRef.t() | Tensor.t()}

  @typedoc """
  Where outputs go: to a tensor, or to memory that is made for them, `:host` for a binary of the elements, `:engine` for a
  `Tmesh.Engine.Tensor`.
  """
  @type places :: %{String.t() => TensorRef.t() | Tensor.t() | :host | :engine}

  @doc """
  The engine that a process of this user serves as `name`: a `Tmesh.Engine.Server`, or `tmesh-engine`.

  Options: `timeout` - milliseconds that a call may take (`:infinity`: as long as the engine allows).

  Errors: `:not_found` (nobody serves it), `:busy` (it has as many clients as it takes), `:invalid`, `:timeout`.
  """
  @spec connect(String.t(), timeout: timeout()) :: {:ok, t()} | {:error, Error.t()}
  def connect(name, opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, timeout: :infinity),
         {:ok, ns} <- timeout_ns(opts[:timeout]),
         {:ok, native} <- call(fn -> Native.engine_connect(Context.get(), name, ns) end),
         do: {:ok, %__MODULE__{native: native, name: name}}
  end

  defp timeout_ns(:infinity), do: {:ok, 0}

  defp timeout_ns(ms) when is_integer(ms) and ms > 0 and ms < 1_000_000_000_000,
    do: {:ok, ms * 1_000_000}

  defp timeout_ns(_other),
    do: {:error, Error.new(:invalid, "timeout is milliseconds, at least 1, or :infinity")}

  @doc """
  What this machine computes with (`devices`: the processors of each NUMA node with their memory, GPUs) and the `engines` that
  were found, with the operators that each runs, or the `reason` why it cannot be used. `never_seen`: kinds of devices that an
  engine was never run on, and of a device those engines. The program `tmeshctl-devices` looks: nothing is loaded into the emulator. A member that is not known is `nil`.

  Options: `program` - where that is (`TMESH_DEVICES_PROGRAM`, then PATH).

  Errors: `:unsupported` (there is no such program, or it failed), `:protocol` (it printed something else), `:invalid`.
  """
  @spec devices(program: Path.t()) ::
          {:ok, %{devices: [map()], engines: [map()]}} | {:error, Error.t()}
  def devices(opts \\ []), do: Tmesh.Engine.Devices.find(opts)

  @doc """
  Which engine it is, the version of its library, and the process that runs the graphs: another one after a crash.
  """
  @spec info(t()) :: %{backend: String.t(), version: String.t(), pid: pos_integer()}
  def info(%__MODULE__{native: native}) do
    {:ok, {backend, version, pid}} = Native.engine_info(native)
    %{backend: backend, version: version, pid: pid}
  end

  @doc """
  The graph of a file, which the engine opens.

  Options: `weights` - sealed tensors in place of the file's, by name, used where they lie; `prepack` - the engine may copy
  weights into an order of its own, for faster runs and more memory (`false`).

  Errors: `:not_found`, `:access` (not below the engine's folders of models), `:protocol` (no model), `:invalid`
  (weights), `:gone` (it crashed), `:timeout`, `:unsupported`.
  """
  @spec graph(t(), Path.t(), weights: tensors(), prepack: boolean()) ::
          {:ok, Graph.t()} | {:error, Error.t()}
  def graph(%__MODULE__{native: engine}, path, opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, weights: %{}, prepack: false),
         {:ok, weights} <- handles(opts[:weights]),
         path = Path.expand(path),
         {:ok, native} <-
           call(fn -> Native.engine_graph(engine, path, weights, opts[:prepack]) end),
         {:ok, {inputs, outputs}} <- call(fn -> Native.engine_operands(native) end),
         do: {:ok, %Graph{native: native, engine: engine, inputs: inputs, outputs: outputs}}
  end

  defp handles(weights) do
    case Enum.find(weights, fn {_name, ref} -> not is_struct(ref, TensorRef) end) do
      nil -> {:ok, for({name, ref} <- weights, do: {name, ref.handle})}
      {name, _other} -> {:error, Error.new(:invalid, "weight \"#{name}\" is no TensorRef")}
    end
  end

  @doc """
  Check once, to run often. The binding keeps the tensors' memory. Outputs have memory of their own: `:host` and `:engine`
  are for `dispatch/4`.

  Options: `in_place` - of an output that lies on an input's memory, that input: `%{"present" => "past"}`. The caller says by
  it that the graph bears that.

  Errors: `:not_found` (no such input or output), `:invalid` (dtype, shape, overlap, one is missing), `:access`, `:sealed`
  (an output that cannot be written), `:gone`, `:timeout`.
  """
  @spec bind(Graph.t(), values(), values(), in_place: %{String.t() => String.t()}) ::
          {:ok, Binding.t()} | {:error, Error.t()}
  def bind(%Graph{} = graph, inputs, outputs, opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, in_place: %{}),
         :ok <- known(opts[:in_place], outputs),
         {:ok, ins} <- natives(inputs),
         {:ok, outs} <- natives(outputs) do
      outs = for {name, native} <- outs, do: {name, native, opts[:in_place][name]}

      with {:ok, native} <-
             call(fn -> Native.engine_bind(graph.engine, graph.native, ins, outs) end),
           do: {:ok, %Binding{native: native, engine: graph.engine}}
    end
  end

  defp natives(values) do
    with {:ok, list} <-
           Enum.reduce_while(values, {:ok, []}, fn {name, value}, {:ok, list} ->
             case native(value) do
               nil -> {:halt, {:error, Error.new(:invalid, not_a_value(name, value))}}
               native -> {:cont, {:ok, [{name, native} | list]}}
             end
           end),
         do: {:ok, Enum.reverse(list)}
  end

  # A ref that is only a description is refused by what opens it.
  defp native(%TensorRef{handle: nil}), do: :none
  defp native(%TensorRef{handle: handle}), do: handle
  defp native(value) when is_struct(value, Tensor), do: value.native
  defp native(_other), do: nil

  defp not_a_value(name, place) when place in [:host, :engine],
    do:
      "\"#{name}\" is #{inspect(place)}, which is for outputs of dispatch/4: what is bound has memory of its own"

  defp not_a_value(name, _other),
    do: "\"#{name}\" is a Tmesh.ZeroCopy.TensorRef or a Tmesh.Engine.Tensor"

  @doc """
  Other inputs in these ones' place, all of them or, after an error, none; the next `dispatch/2` reads them. Nothing is
  opened or built anew: as for a LoRA adapter that is swapped. A run of this binding in another process ends before.

  Errors: those of `bind/4`; `:unsupported` (the engine cannot move this input; the engine "ggml": what a `reshape`,
  `transpose`, `set_rows` or `attention` reads first).
  """
  @spec rebind(Binding.t(), values()) :: :ok | {:error, Error.t()}
  def rebind(%Binding{} = binding, inputs) do
    with {:ok, inputs} <- natives(inputs),
         do: call(fn -> Native.engine_rebind(binding.engine, binding.native, inputs) end)
  end

  @doc """
  Before graphs write to pages of a pool (`Tmesh.Pages.slab/3`): when this VM dies, the pages of that part go to others once
  the engine has stopped to write there, and not before.

  Errors: `:limit` (8 parts of pools are kept for one connection), `:gone`, `:timeout`, `:closed`.
  """
  @spec keep(t(), Tmesh.Pages.t()) :: :ok | {:error, Error.t()}
  def keep(%__MODULE__{native: native}, %Tmesh.Pages{} = pages),
    do: call(fn -> Native.engine_keep(native, pages.native) end)

  defp known(in_place, outputs) do
    case Map.keys(in_place) -- Map.keys(outputs) do
      [] -> :ok
      [name | _more] -> {:error, Error.new(:not_found, "in_place names no output: #{name}")}
    end
  end

  @doc """
  What `cancel/1` takes: it is given to dispatches as `cancellable`, to any number of them.
  """
  @spec cancellable() :: {:ok, Cancellable.t()} | {:error, Error.t()}
  def cancellable do
    with {:ok, native} <- call(fn -> Native.engine_cancellable(Context.get()) end),
         do: {:ok, %Cancellable{native: native}}
  end

  @doc """
  Call off: all dispatches that have it, those under way and those to come, end with `:cancelled`. From any process of
  this node; it does not wait for them.
  """
  @spec cancel(Cancellable.t()) :: :ok
  def cancel(%Cancellable{native: native}), do: Native.engine_cancel(native)

  @doc """
  Run what was bound, and come back when it has run. A process that is killed meanwhile takes its call along: the engine
  ends it, and others have their turns.

  Options: `cancellable` - of `cancellable/0`, to call it off by `cancel/1`. It is cancelled too when the calling process
  dies in the call.

  Errors: `:gone` (the engine died in this call), `:timeout` (it did not end in time, and was ended), `:cancelled` (outputs
  may be half written), `:system` (the engine's own words), `:sealed`, `:access`.
  """
  @spec dispatch(Binding.t(), cancellable: Cancellable.t() | nil) :: :ok | {:error, Error.t()}
  def dispatch(%Binding{} = binding, opts \\ []), do: run(binding.native, opts)

  # Of bindings to one engine, and of those to several.
  @doc false
  @spec run(Native.engine(), keyword()) :: :ok | {:error, Error.t()}
  def run(binding, opts) do
    with {:ok, opts} <- Options.validate(opts, cancellable: nil),
         {:ok, cancellable} <- cancellable_of(opts[:cancellable]),
         do: call(fn -> Native.engine_dispatch(binding, cancellable.native) end)
  end

  defp cancellable_of(nil), do: cancellable()
  defp cancellable_of(%Cancellable{} = cancellable), do: {:ok, cancellable}

  defp cancellable_of(_other),
    do: {:error, Error.new(:invalid, "cancellable is what Tmesh.Engine.cancellable() gives")}

  @doc """
  Bind and run once. Options and errors: as `bind/4` and `dispatch/2`.

  Outputs may be `:host` or `:engine`: a region is made for each, and `{:ok, results}` has a binary of its elements (a copy, which
  is counted) or a device tensor that can be read and written. Its shape has to follow from the inputs', else `:unsupported`.
  Where every output is a tensor it is `:ok`.
  """
  @spec dispatch(Graph.t(), values(), places(),
          in_place: %{String.t() => String.t()},
          cancellable: Cancellable.t() | nil
        ) ::
          :ok | {:ok, %{String.t() => binary() | Tensor.t()}} | {:error, Error.t()}
  def dispatch(%Graph{} = graph, inputs, outputs, opts \\ []) do
    {cancellable, opts} = Keyword.split(opts, [:cancellable])

    with {:ok, made} <- make_places(graph, inputs, outputs),
         {:ok, binding} <- bind(graph, inputs, Map.merge(outputs, made), opts),
         :ok <- dispatch(binding, cancellable),
         do: results(outputs, made)
  end

  @readable_and_writable 3

  # A device tensor for each output that is to have memory made for it.
  defp make_places(graph, inputs, outputs) do
    sizes =
      for {name, _dtype, dims} <- graph.inputs,
          %{shape: shape} <- [inputs[name]],
          {dim, size} when is_binary(dim) <- Enum.zip(dims, shape),
          into: %{},
          do: {dim, size}

    for({name, place} when place in [:host, :engine] <- outputs, do: name)
    |> Enum.reduce_while({:ok, %{}}, fn name, {:ok, made} ->
      with {:ok, shape, dtype} <- place_of(graph, name, sizes),
           {:ok, tensor} <- Tensor.make(graph.engine, shape, dtype, @readable_and_writable) do
        {:cont, {:ok, Map.put(made, name, tensor)}}
      else
        error -> {:halt, error}
      end
    end)
  end

  defp place_of(graph, name, sizes) do
    with {^name, dtype, dims} <- List.keyfind(graph.outputs, name, 0),
         shape = Enum.map(dims, &Map.get(sizes, &1, &1)),
         true <- Enum.all?(shape, &is_integer/1) do
      {:ok, shape, dtype}
    else
      nil ->
        {:error, Error.new(:not_found, "the graph has no output \"#{name}\"")}

      false ->
        {:error,
         Error.new(
           :unsupported,
           "how large \"#{name}\" will be does not follow from the inputs, and a served engine allocates nothing: give a tensor"
         )}
    end
  end

  defp results(_outputs, made) when map_size(made) == 0, do: :ok

  defp results(outputs, made) do
    Enum.reduce_while(made, {:ok, made}, fn {name, tensor}, {:ok, results} ->
      with :host <- outputs[name],
           {:ok, elements} <- Tensor.read(tensor) do
        Tensor.destroy(tensor)
        {:cont, {:ok, Map.put(results, name, elements)}}
      else
        :engine -> {:cont, {:ok, results}}
        error -> {:halt, error}
      end
    end)
  end

  bang devices(opts :: [program: Path.t()] \\ []) :: %{devices: [map()], engines: [map()]}

  bang connect(name :: String.t(), opts :: [timeout: timeout()] \\ []) :: t()

  bang graph(
         engine :: t(),
         path :: Path.t(),
         opts :: [weights: tensors(), prepack: boolean()] \\ []
       ) :: Graph.t()

  bang bind(
         graph :: Graph.t(),
         inputs :: values(),
         outputs :: values(),
         opts :: [in_place: %{String.t() => String.t()}] \\ []
       ) :: Binding.t()

  bang keep(engine :: t(), pages :: Tmesh.Pages.t()) :: :ok

  bang rebind(binding :: Binding.t(), inputs :: values()) :: :ok

  bang cancellable() :: Cancellable.t()

  bang dispatch(binding :: Binding.t(), opts :: [cancellable: Cancellable.t() | nil] \\ []) ::
         :ok

  bang dispatch(
         graph :: Graph.t(),
         inputs :: values(),
         outputs :: places(),
         opts :: [in_place: %{String.t() => String.t()}, cancellable: Cancellable.t() | nil] \\ []
       ) :: :ok | %{String.t() => binary() | Tensor.t()}

  # As many as may wait for others at once do: this one comes again.
  @doc false
  @spec call((() -> term())) :: term()
  def call(native) do
    case Janitor.retry(native) do
      {:error, {:eagain, _why}} ->
        Process.sleep(:rand.uniform(5))
        call(native)

      {:error, reason} ->
        {:error, Error.from_native(reason)}

      success ->
        success
    end
  end
end
