# SPDX-License-Identifier: MIT
defmodule Tmesh.Engine do
  @moduledoc """
  Graphs run on shared tensors, by an engine in a process of its own. No engine ever runs in the BEAM.

      children = [{Tmesh.Engine.Server, name: "decode", models: ["models"]}]    # in a supervisor: starts tmesh-engine

      {:ok, engine} = Tmesh.Engine.connect("decode")
      {:ok, graph} = Tmesh.Engine.graph(engine, "models/add.onnx")
      {:ok, out} = Tmesh.ZeroCopy.allocate([2, 4], :float32)
      :ok = Tmesh.Engine.dispatch(graph, %{"a" => a, "b" => b}, %{"sum" => out})

  Inputs and outputs are tensors of `Tmesh.ZeroCopy` or device tensors (`Tmesh.Engine.Tensor`), in any mixture. The
  engine gets their tokens, never their elements. It writes outputs in place; `dispatch/4` makes memory for outputs
  that are `:host` or `:engine`. If an engine crashes, the call that it was running fails with `:gone`, and its
  outputs may be half written. The next call goes to the restarted process. Graphs and bindings stay valid.

  The engine "ggml" runs tmesh's own graphs, which `Tmesh.Graph` builds.

  Bind a graph once if it runs often: `bind/3`, then `dispatch/1`; `rebind/2` replaces inputs. Calls of one engine
  go one after another. Connect once more for a process that must not wait for others. `docs/reference/engines.md`
  lists the promises.
  """

  use Tmesh.Bang,
      ~w(devices/1 connect/2 graph/3 bind/4 lifeline/2 rebind/2 cancellable/0 dispatch/2
         dispatch/4)

  alias Tmesh.{Context, Error, Janitor, Native, Options, ZeroCopy}
  alias Tmesh.Engine.Tensor
  alias Tmesh.ZeroCopy.TensorRef

  defmodule Graph do
    @moduledoc """
    A graph that an engine has opened, made by `Tmesh.Engine.graph/3`. `inputs` and `outputs` are lists of `{name,
    dtype, shape}`. A dimension is a number, a name (the same number at every place), or `nil`.
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
    @moduledoc "The checked inputs and outputs of a graph, whose memory it keeps: made by `Tmesh.Engine.bind/4`."
    @enforce_keys [:native, :engine]
    @derive {Inspect, only: []}
    defstruct @enforce_keys

    @type t :: %__MODULE__{native: Native.engine(), engine: Native.engine()}
  end

  defmodule Cancellable do
    @moduledoc "An argument of dispatches, for `Tmesh.Engine.cancel/1`: made by `Tmesh.Engine.cancellable/0`."
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
  The destination of an output: a tensor, or new memory. `:host` gives a binary of the elements, `:engine` a
  `Tmesh.Engine.Tensor`.
  """
  @type places :: %{String.t() => TensorRef.t() | Tensor.t() | :host | :engine}

  @doc """
  Connect to the engine that a process of this user serves as `name`: a `Tmesh.Engine.Server`, or `tmesh-engine`.

  Options: `timeout` - the longest time of a call in milliseconds (`:infinity`: as long as the engine allows).

  Errors: `:not_found` (no process serves it), `:busy` (it has the most clients that it takes), `:invalid`,
  `:timeout`.
  """
  @spec connect(String.t(), timeout: timeout()) :: {:ok, t()} | {:error, Error.t()}
  def connect(name, opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, timeout: :infinity),
         {:ok, ns} <- timeout_ns(opts[:timeout]),
         {:ok, native} <- await(fn tag -> Native.engine_connect(tag, Context.get(), name, ns) end),
         do: {:ok, %__MODULE__{native: native, name: name}}
  end

  defp timeout_ns(:infinity), do: {:ok, 0}

  defp timeout_ns(ms) when is_integer(ms) and ms > 0 and ms < 1_000_000_000_000,
    do: {:ok, ms * 1_000_000}

  defp timeout_ns(_other),
    do: {:error, Error.new(:invalid, "timeout is milliseconds, at least 1, or :infinity")}

  @doc """
  List this machine's `devices`, which are the processors of each NUMA node with their memory, and GPUs. List also
  the `engines` that were found, with the operators that each runs, or the `reason` why it cannot be used.
  `never_seen` lists kinds of devices on which an engine was never run, and for a device those engines. The program
  `tmeshctl-devices` looks for them: nothing is loaded into the emulator. An unknown member is `nil`.

  Options: `program` - the path of that program (`TMESH_DEVICES_PROGRAM`, then PATH).

  Errors: `:unsupported` (there is no such program, or it failed), `:protocol` (it printed something else), `:invalid`.
  """
  @spec devices(program: Path.t()) ::
          {:ok, %{devices: [map()], engines: [map()]}} | {:error, Error.t()}
  def devices(opts \\ []), do: Tmesh.Engine.Devices.find(opts)

  @doc """
  Return the engine's kind, the version of its library, and the process that runs the graphs. After a crash this is
  another process.
  """
  @spec info(t()) :: %{backend: String.t(), version: String.t(), pid: pos_integer()}
  def info(%__MODULE__{native: native}) do
    {:ok, {backend, version, pid}} = Native.engine_info(native)
    %{backend: backend, version: version, pid: pid}
  end

  @doc """
  Open the graph of a file on the engine.

  Options:

    * `weights` - sealed tensors by name that replace the file's, and are used in place
    * `prepack` - whether the engine may copy weights into an order of its own, for faster runs and more memory
      (`false`)

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
           await(fn tag -> Native.engine_graph(tag, engine, path, weights, opts[:prepack]) end),
         {:ok, {inputs, outputs}} <- call(fn -> Native.engine_operands(native) end),
         do: {:ok, %Graph{native: native, engine: engine, inputs: inputs, outputs: outputs}}
  end

  defp handles(weights) do
    case Enum.find(weights, fn {_name, ref} -> not is_struct(ref, TensorRef) end) do
      nil -> open_here(weights)
      {name, _other} -> {:error, Error.new(:invalid, "weight \"#{name}\" is no TensorRef")}
    end
  end

  # Return handles by name. A ref may be of another node.
  @doc false
  @spec open_here(tensors(), writable: boolean()) ::
          {:ok, [{String.t(), Native.handle()}]} | {:error, Error.t()}
  def open_here(tensors, opts \\ []) do
    Options.map_ok(tensors, fn {name, ref} ->
      with {:ok, ref} <- ZeroCopy.here(ref, opts), do: {:ok, {name, ref.handle}}
    end)
  end

  @doc """
  Check inputs and outputs once, to run often. The binding keeps the tensors' memory. Outputs need memory of their
  own: `:host` and `:engine` are for `dispatch/4`.

  Options: `in_place` - the input for each output that shares an input's memory: `%{"present" => "past"}`. The
  caller promises that the graph allows it.

  Errors:

    * `:not_found` - no such input or output
    * `:invalid` - a wrong dtype or shape, an overlap, or a missing tensor
    * `:sealed` - an output cannot be written
    * `:access`, `:gone`, `:timeout`
  """
  @spec bind(Graph.t(), values(), values(), in_place: %{String.t() => String.t()}) ::
          {:ok, Binding.t()} | {:error, Error.t()}
  def bind(%Graph{} = graph, inputs, outputs, opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, in_place: %{}),
         :ok <- known(opts[:in_place], outputs),
         {:ok, ins} <- natives(inputs),
         {:ok, outs} <- natives(outputs, writable: true) do
      outs = for {name, native} <- outs, do: {name, native, opts[:in_place][name]}

      with {:ok, native} <-
             await(fn tag -> Native.engine_bind(tag, graph.engine, graph.native, ins, outs) end),
           do: {:ok, %Binding{native: native, engine: graph.engine}}
    end
  end

  defp natives(values, opts \\ []) do
    Options.map_ok(values, fn {name, value} ->
      case native(value, opts) do
        nil -> {:error, Error.new(:invalid, not_a_value(name, value))}
        {:error, error} -> {:error, error}
        native -> {:ok, {name, native}}
      end
    end)
  end

  defp native(%TensorRef{} = ref, opts) do
    with {:ok, ref} <- ZeroCopy.here(ref, opts), do: ref.handle
  end

  defp native(value, _opts) when is_struct(value, Tensor), do: value.native
  defp native(_other, _opts), do: nil

  defp not_a_value(name, place) when place in [:host, :engine],
    do:
      "\"#{name}\" is #{inspect(place)}, which is for outputs of dispatch/4: bind a tensor with memory of its own"

  defp not_a_value(name, _other),
    do: "\"#{name}\" is a Tmesh.ZeroCopy.TensorRef or a Tmesh.Engine.Tensor"

  @doc """
  Replace inputs of a binding, for example to swap a LoRA adapter. After an error none is replaced. The next
  `dispatch/2` reads the new inputs. Nothing is opened or built anew. A run of this binding in another process ends
  before.

  Errors: those of `bind/4`; `:unsupported` (the engine cannot move this input). The engine "ggml" cannot move an
  input that a `reshape`, `transpose`, `set_rows` or `attention` reads first.
  """
  @spec rebind(Binding.t(), values()) :: :ok | {:error, Error.t()}
  def rebind(%Binding{} = binding, inputs) do
    with {:ok, inputs} <- natives(inputs),
         do: await(fn tag -> Native.engine_rebind(tag, binding.engine, binding.native, inputs) end)
  end

  @doc """
  Call this before graphs write to pages of a pool (`Tmesh.Pages.slab/3`). If this VM dies, others get the pages of
  that part only after the engine has stopped writing there.

  Errors: `:limit_exceeded` (8 parts of pools are kept for one connection), `:gone`, `:timeout`, `:closed`.
  """
  @spec lifeline(t(), Tmesh.Pages.t()) :: :ok | {:error, Error.t()}
  def lifeline(%__MODULE__{native: native}, %Tmesh.Pages{} = pages),
    do: await(fn tag -> Native.engine_keep(tag, native, pages.native) end)

  defp known(in_place, outputs) do
    case Map.keys(in_place) -- Map.keys(outputs) do
      [] -> :ok
      [name | _more] -> {:error, Error.new(:not_found, "in_place names no output: #{name}")}
    end
  end

  @doc """
  Make an argument for `cancel/1`. Pass it as `cancellable` to any number of dispatches.
  """
  @spec cancellable() :: {:ok, Cancellable.t()} | {:error, Error.t()}
  def cancellable do
    with {:ok, native} <- call(fn -> Native.engine_cancellable(Context.get()) end),
         do: {:ok, %Cancellable{native: native}}
  end

  @doc """
  Call off all dispatches that have this cancellable, present and future ones: they end with `:cancelled`. Any
  process of this node may call it. It does not wait for the dispatches.
  """
  @spec cancel(Cancellable.t()) :: :ok
  def cancel(%Cancellable{native: native}), do: Native.engine_cancel(native)

  @doc """
  Run a binding, and return after the run. If the calling process is killed meanwhile, the engine ends the call, and
  others have their turns.

  Options: `cancellable` - of `cancellable/0`, for `cancel/1`. If a process dies in a dispatch, other dispatches
  with the same cancellable go on.

  Errors:

    * `:gone` - the engine died in this call
    * `:timeout` - the call did not end in time, and was ended
    * `:cancelled` - outputs may be half written
    * `:system` - an error of the engine itself
    * `:sealed`, `:access`
  """
  @spec dispatch(Binding.t(), cancellable: Cancellable.t() | nil) :: :ok | {:error, Error.t()}
  def dispatch(%Binding{} = binding, opts \\ []), do: run(binding.native, opts)

  # Run a binding to one engine or to several.
  @doc false
  @spec run(Native.engine(), keyword()) :: :ok | {:error, Error.t()}
  def run(binding, opts) do
    with {:ok, opts} <- Options.validate(opts, cancellable: nil),
         {:ok, cancellable} <- cancellable_of(opts[:cancellable]),
         do: await(fn tag -> Native.engine_dispatch(tag, binding, cancellable) end)
  end

  defp cancellable_of(nil), do: {:ok, nil}
  defp cancellable_of(%Cancellable{native: native}), do: {:ok, native}

  defp cancellable_of(_other),
    do: {:error, Error.new(:invalid, "cancellable is what Tmesh.Engine.cancellable() gives")}

  @doc """
  Bind and run once. Options and errors are those of `bind/4` and `dispatch/2`.

  Outputs may be `:host` or `:engine`: a region is made for each. The result is `{:ok, results}`. For `:host` it has
  a binary of the elements (a copy, which is counted), for `:engine` a device tensor that can be read and written. Its
  shape has to follow from the inputs' shapes, else the error is `:unsupported`. If every output is a tensor, the result
  is `:ok`.
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

  # Make a device tensor for each output that needs new memory.
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

  # Run the call in a thread outside the VM, which holds no scheduler while it waits for the engine.
  @doc false
  @spec await((reference() -> Native.started())) :: term()
  def await(start) do
    call(fn ->
      tag = make_ref()

      with :ok <- start.(tag) do
        receive do
          {^tag, result} -> result
        end
      end
    end)
  end

  # Try again later if too many calls wait at once.
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
