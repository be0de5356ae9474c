# SPDX-License-Identifier: MIT
defmodule Tmesh.DLPack do
  @moduledoc """
  Tensors in GPU memory, handed from process to process without a copy.

      {:ok, a} = Tmesh.ZeroCopy.allocate([1024, 1024], :float32, device: {:cuda, 1})
      {:ok, b} = Tmesh.Worker.execute("my_operations.step", [a])
      {:ok, map} = Tmesh.DLPack.export_gpu_tensor(b)
      # Python: torch.from_dlpack(tmesh.cuda.open(map)), the same memory, on the same GPU

  In a call of `Tmesh.Worker` a `Tmesh.DLPack.GPUTensorRef` becomes an array of `tmesh.cuda` in Python, which
  PyTorch, CuPy and JAX take by DLPack. Such arrays become `GPUTensorRef`s here. This module is for other
  transports, and for Elixir's own questions about the memory.

  A tensor stays on its GPU. The number of a GPU belongs to this process, and other processes may count differently
  (`CUDA_VISIBLE_DEVICES`), so the GPU's UUID travels. Work of a process that opened a tensor comes after the work
  of its producer before the export (docs/reference/cuda.md).

  This needs libtmesh-cuda and NVIDIA's driver. The first call loads both, and the VM has a CUDA context from then
  on. They are no part of this application otherwise. `TMESH_CUDA_LIBRARY` in the environment names another
  libtmesh-cuda than the installed one. With `config :tmesh, :zero_copy, gpu_enabled: false` all of this is
  `:unsupported`.

  Elixir holds the GPU's memory and hands it on, but does not read it. The memory does not count against
  `max_shared_memory_mb`.

  The tests run with a stand-in for the driver. None of this was ever run on a GPU.
  """

  use Tmesh.Bang, ~w(import_gpu_tensor/2 export_gpu_tensor/1 info/1)
  require Logger

  alias Tmesh.{Config, Context, Error, Janitor, Native, Options, Telemetry, ZeroCopy}
  alias Tmesh.DLPack.GPUTensorRef
  alias Tmesh.ZeroCopy.TensorRef

  @doc """
  Open the GPU tensor that a ref describes. The ref is a map of `export_gpu_tensor/1`, of `tmesh.cuda.share()` in
  Python or of any other of tmesh's languages, or its JSON. You may pass it any input.

  A ref of host memory is registered with the driver, for kernels to use it in place.

  Options:

    * `writable` - whether kernels may write through the opened ref (false)
    * `device` - the GPU on which kernels run, as `{:cuda, n}`. Default: the one that has the memory, or the first
      for host memory

  Errors:

    * `:not_found` - it was released, or its process has ended
    * `:no_device` - the GPU is not here
    * `:stale` - it was taken back
    * `:unsupported` - there is no libtmesh-cuda, or no way from one GPU to the other
    * `:system` with `details.errno`
    * `:access`, `:protocol`
  """
  @spec import_gpu_tensor(map() | String.t(),
          writable: boolean(),
          device: {:cuda, non_neg_integer()}
        ) :: {:ok, GPUTensorRef.t()} | {:error, Error.t()}
  def import_gpu_tensor(ref, opts \\ []) do
    with :ok <- enabled(),
         {:ok, opts} <- Options.validate(opts, writable: false, device: nil),
         {:ok, device} <- number(opts[:device]),
         {:ok, json} <- json(ref) do
      open = fn -> Native.gpu_open(Context.get(), json, device, opts[:writable]) end
      open |> Janitor.patiently() |> made()
    end
  end

  @doc """
  Return the ref as a map for any encoder. Another process or language may open it. The map holds nothing, so hold
  the tensor until it was opened.

  Its member `"cuda"` describes the kind of memory: `%{"kind" => "vmm"}`, or `"ipc"` for memory that tmesh did not
  allocate, such as that of PyTorch's own allocator. The producer of the latter must keep it until every process has
  released it. `"waited" => true` marks memory that was sent on, which needs nothing of its first producer any more.

  Errors: `:closed` (released), `:stale` (taken back), `:unsupported`.
  """
  @spec export_gpu_tensor(GPUTensorRef.t()) :: {:ok, map()} | {:error, Error.t()}
  def export_gpu_tensor(%GPUTensorRef{} = ref) do
    with {:ok, json} <- export_json(ref) do
      {:ok, _map} = Native.json_decode(json)
    end
  end

  @doc false
  @spec export_json(GPUTensorRef.t()) :: {:ok, String.t()} | {:error, Error.t()}
  def export_json(%GPUTensorRef{handle: handle}) do
    with :ok <- enabled(), do: handle |> Native.gpu_ref() |> result()
  end

  @doc """
  Describe the memory:

    * `kind` - `:own` (allocated here), `:imported`, or `:ipc` (as above). Host memory that a GPU uses is `:host`,
      and a copy of such memory on the GPU is `:staged`. `:external` is another API's. `:unknown` is a kind of a newer
      libtmesh-cuda
    * `device` - the GPU for which it is mapped; `resident` - the GPU that has it, or `:cpu`
    * `writable` - whether kernels may write through it
    * `taken` - its owner has taken it back: the pointer is invalid
    * `pointer` - the device pointer of the first element, for native code in this VM

  Errors: `:closed` (released).
  """
  @spec info(GPUTensorRef.t()) :: {:ok, map()} | {:error, Error.t()}
  def info(%GPUTensorRef{handle: handle}), do: handle |> Native.gpu_info() |> result()

  # Tmesh.ZeroCopy.allocate/3 with device: {:cuda, n}.
  @doc false
  @spec allocate(TensorRef.shape(), TensorRef.dtype(), keyword()) ::
          {:ok, GPUTensorRef.t() | TensorRef.t()} | {:error, Error.t()}
  def allocate(shape, dtype, opts) do
    with :ok <- enabled(),
         {:ok, opts} <- Options.validate(opts, device: nil, alone: false, or_host: false),
         {:ok, device} <- number(opts[:device]),
         :ok <- switch(opts, :or_host) do
      allocated = Janitor.retry(fn -> Native.gpu_alloc(device, shape, dtype, opts[:alone]) end)

      case {made(allocated), opts[:or_host]} do
        {{:error, %Error{type: :no_memory} = error}, true} ->
          allocate_on_host(shape, dtype, device, error)

        {made_or_not, _or_host} ->
          made_or_not
      end
    end
  end

  defp allocate_on_host(shape, dtype, device, error) do
    with {:ok, ref} <- ZeroCopy.allocate(shape, dtype) do
      Logger.warning(
        "tmesh: #{ref.byte_size} bytes are in host memory and not on GPU #{device}: #{error.message}"
      )

      Telemetry.execute([:tmesh, :gpu, :fallback], %{bytes: ref.byte_size}, %{
        device: {:cuda, device}
      })

      {:ok, ref}
    end
  end

  @doc false
  @spec enabled() :: :ok | {:error, Error.t()}
  def enabled do
    with {:ok, enabled} <- Config.get(:gpu_enabled) do
      if enabled,
        do: :ok,
        else:
          {:error,
           Error.new(
             :unsupported,
             "config :tmesh, :zero_copy, gpu_enabled is false: no GPU tensors"
           )}
    end
  end

  defp made({:ok, {handle, native}}) do
    %TensorRef{} = ref = TensorRef.from_native(native)

    {:ok,
     %GPUTensorRef{
       shape: ref.shape,
       dtype: ref.dtype,
       device: ref.device,
       byte_size: ref.byte_size,
       strides: ref.strides,
       handle: handle
     }}
  end

  defp made(error), do: result(error)

  defp result({:error, reason}), do: {:error, Error.from_native(reason)}
  defp result(success), do: success

  # The library takes a member of its own for cuIpc, which a tensor's ref cannot express.
  defp json(%{"cuda" => cuda} = map) do
    with {:ok, json} <- map |> Map.delete("cuda") |> json() do
      case cuda do
        %{"kind" => kind} when kind in ["vmm", "ipc"] ->
          waited = if cuda["waited"] == true, do: ~s(,"waited":true), else: ""
          member = ~s(,"cuda":{"kind":"#{kind}"#{waited}}})
          {:ok, binary_part(json, 0, byte_size(json) - 1) <> member}

        _other ->
          {:error, Error.new(:protocol, "not a ref: its memory is neither \"vmm\" nor \"ipc\"")}
      end
    end
  end

  defp json(map) when is_map(map) do
    with {:ok, ref} <- TensorRef.from_map(map), do: TensorRef.to_json(ref)
  end

  defp json(json), do: {:ok, json}

  defp number(nil), do: {:ok, nil}
  defp number({:cuda, n}) when is_integer(n) and n >= 0, do: {:ok, n}
  defp number(_other), do: {:error, Error.new(:invalid, "device must be {:cuda, n}")}

  defp switch(opts, name) do
    if is_boolean(opts[name]),
      do: :ok,
      else: {:error, Error.new(:invalid, "#{name} must be true or false")}
  end
end
