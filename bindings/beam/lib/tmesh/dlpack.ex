# SPDX-License-Identifier: MIT
defmodule Tmesh.DLPack do
  @moduledoc """
  Tensors in GPU memory, handed from process to process without a copy.

      {:ok, a} = Tmesh.ZeroCopy.allocate([1024, 1024], :float32, device: {:cuda, 1})
      {:ok, b} = Tmesh.Worker.execute("my_operations.step", [a])
      {:ok, map} = Tmesh.DLPack.export_gpu_tensor(b)
      # Python: torch.from_dlpack(tmesh.cuda.open(map)), the same memory, on the same GPU

  In a call of `Tmesh.Worker` a `Tmesh.DLPack.GPUTensorRef` is an array of `tmesh.cuda` on the other
  side, which PyTorch, CuPy and JAX take by DLPack, and such arrays are `GPUTensorRef`s here. This
  module is for other ways, and for what Elixir itself wants to know.

  A tensor stays on its GPU. Numbers are this process's, and others may count otherwise
  (`CUDA_VISIBLE_DEVICES`): what travels is the GPU's UUID. What a process does to a tensor after it
  opened it comes after what its producer did before it shared it (docs/cuda.md).

  This needs libtmesh-cuda and NVIDIA's driver. Both are loaded by the first call, and are no part of
  this application otherwise; the VM has a CUDA context from then on. `TMESH_CUDA_LIBRARY` in the
  environment names another libtmesh-cuda than the installed one. With `config :tmesh, :zero_copy,
  gpu_enabled: false` all of this is `:unsupported`.

  The memory is the GPU's: Elixir holds it and hands it on, and reads nothing of it. It does not
  count against `max_shared_memory_mb`.

  The tests run on a stand-in for the driver; none of this was ever seen on a GPU.
  """

  import Tmesh.Bang
  require Logger

  alias Tmesh.{Config, Error, Janitor, Native, Options, Telemetry, ZeroCopy}
  alias Tmesh.DLPack.GPUTensorRef
  alias Tmesh.ZeroCopy.TensorRef

  @doc """
  Open the GPU tensor that a ref describes: a map as `export_gpu_tensor/1`, `tmesh.cuda.share()` in
  Python or any other of tmesh's languages makes it, or its JSON. Anything may be handed to it.

  A ref of host memory is registered with the driver, for kernels to use it in place.

  Options:

    * `writable` - whether kernels may write through what is opened (false)
    * `device` - the GPU that kernels run on, as `{:cuda, n}`, when it is not the one that has the
      memory (for host memory: not the first)

  Errors: `:not_found` (it was given back, or its process has ended), `:no_device` (a GPU that is not
  here), `:stale` (taken back), `:access`, `:protocol`, `:unsupported` (no libtmesh-cuda, or no way
  from one GPU to the other), `:system` with `details.errno`.
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
      fn -> Native.gpu_open(json, device, opts[:writable]) end |> Janitor.retry() |> made()
    end
  end

  @doc """
  The ref, as a map for any encoder: what opens it may be in another process or language. It holds
  nothing, so hold the tensor until it was opened.

  Its member `"cuda"` says how the memory goes: `%{"kind" => "vmm"}`, or `"ipc"` for memory that tmesh
  did not allocate, such as that of PyTorch's own allocator; its producer must keep that until
  everybody is done with it. `"waited" => true` belongs to what was sent on, which needs nothing of
  its first producer any more.

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
  What the memory is:

    * `kind` - `:own` (allocated here), `:imported`, `:ipc` (as above), `:host` (host memory that a
      GPU uses), `:staged` (a copy of such memory on the GPU), `:external` (another API's), `:unknown` (of a libtmesh-cuda
      that has more of them)
    * `device` - the GPU that it is mapped for; `resident` - the one that has it, or `:cpu`
    * `writable` - whether kernels may write through it
    * `taken` - its owner has taken it back: the pointer leads to nothing
    * `pointer` - the device pointer of the first element, for native code in this VM

  Errors: `:closed` (released).
  """
  @spec info(GPUTensorRef.t()) :: {:ok, map()} | {:error, Error.t()}
  def info(%GPUTensorRef{handle: handle}), do: handle |> Native.gpu_info() |> result()

  bang import_gpu_tensor(
         ref :: map() | String.t(),
         opts :: [writable: boolean(), device: {:cuda, non_neg_integer()}] \\ []
       ) :: GPUTensorRef.t()

  bang export_gpu_tensor(ref :: GPUTensorRef.t()) :: map()
  bang info(ref :: GPUTensorRef.t()) :: map()

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

  # What a ref of a tensor cannot say is a member of its own, by which the library knows cuIpc.
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
