# SPDX-License-Identifier: MIT
defmodule Tmesh.ZeroCopy do
  @moduledoc """
  Tensors in memory that other processes and languages use in place.

      {:ok, ref} = Tmesh.ZeroCopy.from_binary(pixels, [224, 224, 3], :uint8)
      {:ok, json} = Tmesh.ZeroCopy.TensorRef.to_json(ref)
      # Python: tmesh.open(json).numpy(), the same bytes, not a copy of them

  and the other way round:

      {:ok, ref} = Tmesh.ZeroCopy.TensorRef.from_json(json)
      {:ok, ref} = Tmesh.ZeroCopy.open(ref)
      {:ok, table} = Tmesh.ZeroCopy.to_binary(ref)
      row = binary_part(table, 42 * 384 * 4, 384 * 4)

  All sizes and offsets are in bytes, strides in elements. A shape is a list or, as Nx has it, a tuple;
  a dtype is one of `t:Tmesh.ZeroCopy.TensorRef.dtype/0` or a type of Nx such as `{:f, 32}`. Every function returns `{:error, error}`
  with a `Tmesh.Error`, or raises it in its bang variant; an error changes nothing.

  ## What is copied

  A binary points into a region only when the region is **sealed** and pinned by the binary: then
  nobody, here or in another process, can change it, shrink it or take it away, and the binary
  lives as long as it likes, also after `release/1`. A sub-binary (`binary_part/3`, a match) keeps
  the whole region. A binary of anything else is a copy made when `to_binary/2` is called; a peer
  that writes, revokes or dies meanwhile can spoil its contents but not harm the VM. Copies are
  counted in `Tmesh.stats/0`, and `to_binary(ref, copy: false)` refuses to make one.

  ## Sealing

  `from_binary/4` seals by default: what was data in Elixir stays as immutable as data. The memory
  of a tensor that was sealed or handed out goes back to the system in the end. With `seal: false`,
  and never handed out, it is reused by the pool, which is several times faster to fill.
  """

  import Tmesh.Bang

  alias Tmesh.{Arena, Context, DLPack, Error, Janitor, Native, Options, Registry, Telemetry}
  alias Tmesh.DLPack.GPUTensorRef
  alias Tmesh.ZeroCopy.{Layout, TensorRef}

  @region_options [label: "", huge: false, mode: 0, device: :cpu, arena: nil]

  @typedoc """
  Options of a new tensor:

    * `label` - a name for people, at most 63 bytes
    * `huge` - pages of 2 MiB: `true` (or fail), `:try` or `false`
    * `mode` - who may open the token, as permission bits (0o600, 0o640, ...); on memfd only 0o600
    * `device` - `:cpu`; see `allocate/3` for GPUs; `:mps` gives `:mps_not_supported`
    * `arena` - a `Tmesh.Arena` for it to lie in, which has said `label`, `huge` and `mode`
  """
  @type region_option ::
          {:label, String.t()}
          | {:huge, boolean() | :try}
          | {:mode, non_neg_integer()}
          | {:device, TensorRef.device()}
          | {:arena, Arena.t()}

  @typedoc """
  Options of a new tensor on a GPU:

    * `device` - `{:cuda, n}`
    * `alone` - in a block of the driver's memory of its own, so that who opens its ref can reach
      nothing else (false)
    * `or_host` - when the GPU has no memory left, a tensor in host memory instead: a
      `Tmesh.ZeroCopy.TensorRef` with the device `:cpu`, a warning in the log, and the event
      `[:tmesh, :gpu, :fallback]` (false)
  """
  @type gpu_option ::
          {:device, {:cuda, non_neg_integer()}} | {:alone, boolean()} | {:or_host, boolean()}

  @doc """
  A new writable tensor of zeros, contiguous, in a region of its own unless `arena` is given.

  With `device: {:cuda, n}` one on that GPU, which is not initialized: a
  `Tmesh.DLPack.GPUTensorRef`.

  Errors: `:invalid`, `:limit_exceeded`, `:no_memory`, `:too_many_files`, `:unsupported`,
  `:no_device`.

      iex> {:ok, ref} = Tmesh.ZeroCopy.allocate([2], :uint8)
      iex> Tmesh.ZeroCopy.to_binary(ref)
      {:ok, <<0, 0>>}
  """
  @spec allocate(
          TensorRef.shape() | tuple(),
          TensorRef.dtype() | TensorRef.nx_type(),
          [region_option()] | [gpu_option()]
        ) :: {:ok, TensorRef.t() | GPUTensorRef.t()} | {:error, Error.t()}
  def allocate(shape, dtype, opts \\ []) do
    {shape, dtype} = {Layout.shape(shape), Layout.dtype(dtype)}

    if Keyword.keyword?(opts) and match?({:cuda, _n}, opts[:device]) do
      DLPack.allocate(shape, dtype, opts)
    else
      with {:ok, region, _opts} <- region_options(opts, []),
           {:ok, context} <- Context.limited() do
        fn -> Native.create(context, shape, dtype, region) end |> Janitor.retry() |> created()
      end
    end
  end

  @doc """
  A new tensor with the bytes of `binary`, contiguous in C order, native byte order, exactly as many
  as `shape` and `dtype` make. They are copied once.

  Sealed unless `seal: false` or an `arena` is given; see the module's text. A bitstring that does not start on a
  byte boundary of its binary is aligned by the emulator first, which costs a second copy.

  Errors: as `allocate/3`.

      iex> {:ok, ref} = Tmesh.ZeroCopy.from_binary("abcd", [2, 2], :uint8)
      iex> ref.byte_size
      4
  """
  @spec from_binary(
          binary(),
          TensorRef.shape() | tuple(),
          TensorRef.dtype() | TensorRef.nx_type(),
          [region_option() | {:seal, boolean()}]
        ) :: {:ok, TensorRef.t()} | {:error, Error.t()}
  def from_binary(binary, shape, dtype, opts \\ []) do
    {shape, dtype} = {Layout.shape(shape), Layout.dtype(dtype)}

    with {:ok, region, opts} <- region_options(opts, seal: true),
         {:ok, context} <- Context.limited() do
      put = fn -> Native.put(context, binary, shape, dtype, region, opts[:seal]) end
      bytes = if is_binary(binary), do: byte_size(binary), else: 0

      Telemetry.span([:tmesh, :tensor, :put], %{bytes: bytes}, %{dtype: dtype, shape: shape}, fn ->
        put |> Janitor.retry() |> created()
      end)
    end
  end

  @doc """
  Open the tensor that a ref describes. The result has a handle of its own, and hands on a token of
  its own, for reading unless `grant/2` says otherwise; the given ref, which may have a handle too, is
  left as it is.

  Options: `writable: true` asks for the right to write, which the token must carry (`grant/2`).

  Errors: `:not_found` (also when the peer that held it has ended), `:access`, `:protocol`,
  `:timeout`, `:too_many_files`, `:unsupported` (a token of another backend).
  """
  @spec open(TensorRef.t(), writable: boolean()) :: {:ok, TensorRef.t()} | {:error, Error.t()}
  def open(ref, opts \\ [])

  def open(%TensorRef{token: nil, handle: nil}, _opts),
    do: {:error, Error.new(:protocol, "the ref has no token: it describes a tensor and opens none")}

  def open(%TensorRef{} = ref, opts) do
    with {:ok, opts} <- Options.validate(opts, writable: false),
         {:ok, rights} <- rights(opts[:writable]),
         {:ok, ref} <- TensorRef.named(ref),
         {:ok, native} <- TensorRef.to_native(ref) do
      span(:open, ref, fn ->
        with {:ok, handle} <- open_native(native, rights, deadline()),
             # Handed on, it is named by its own handle and rights, not by the token that it came with.
             do: {:ok, %TensorRef{ref | handle: handle, token: nil}}
      end)
    end
  end

  defp span(what, ref, fun) do
    metadata = %{dtype: ref.dtype, shape: ref.shape}
    Telemetry.span([:tmesh, :tensor, what], %{bytes: ref.byte_size}, metadata, fun)
  end

  @doc """
  The tensor's elements as a binary, in C order.

  Without a copy where that is safe: for a sealed, contiguous tensor; the binary then points into
  the region. Otherwise a copy, or with `copy: false` the error `:unsupported`. A copy is bounded by
  `max_shared_memory_mb`. A ref that is not open is opened for the call.

  Errors: `:closed`, `:stale`, `:limit_exceeded`, `:no_memory`, `:unsupported`, and those of
  `open/2`.
  """
  @spec to_binary(TensorRef.t(), copy: boolean()) :: {:ok, binary()} | {:error, Error.t()}
  def to_binary(ref, opts \\ [])

  def to_binary(%TensorRef{handle: nil} = ref, opts) do
    with {:ok, ref} <- open(ref) do
      binary = to_binary(ref, opts)
      :ok = Native.release(ref.handle)
      binary
    end
  end

  def to_binary(%TensorRef{} = ref, opts) do
    with {:ok, opts} <- Options.validate(opts, copy: true),
         {:ok, _context} <- Context.limited() do
      if opts[:copy] == true and Telemetry.listened?(),
        do: told_binary(ref),
        else: binary(ref, opts[:copy])
    end
  end

  defp binary(%TensorRef{handle: handle}, may_copy),
    do: fn -> Native.to_binary(handle, may_copy) end |> Janitor.retry() |> result()

  # Whether it is a copy is known when none may be made.
  defp told_binary(ref) do
    with {:error, %Error{type: :unsupported}} <- binary(ref, false),
         do: span(:copy, ref, fn -> binary(ref, true) end)
  end

  @doc """
  Write `binary` at byte `offset` of a contiguous tensor that this VM may write.

  Errors: `:invalid` (beyond the end), `:access`, `:sealed`, `:closed`, `:stale`, `:unsupported`.

      iex> {:ok, ref} = Tmesh.ZeroCopy.allocate([4], :uint8)
      iex> :ok = Tmesh.ZeroCopy.write(ref, 1, "bc")
      iex> Tmesh.ZeroCopy.to_binary(ref)
      {:ok, <<0, ?b, ?c, 0>>}
  """
  @spec write(TensorRef.t(), non_neg_integer(), binary()) :: :ok | {:error, Error.t()}
  def write(%TensorRef{handle: handle}, offset, binary) do
    fn -> Native.write(handle, offset, binary) end |> Janitor.retry() |> result()
  end

  @doc """
  Make the tensor's region immutable for everybody and for ever.

  Errors: `:busy` (somebody has it mapped for writing; nothing has changed), `:access` (only whoever
  created a region may seal it), `:closed`, `:stale`.
  """
  @spec seal(TensorRef.t()) :: :ok | {:error, Error.t()}
  def seal(%TensorRef{handle: handle}),
    do: fn -> Native.seal(handle) end |> Janitor.retry() |> result()

  @doc """
  The same ref with a token for these rights. Refs that are handed out otherwise carry the `:read`
  one; with the `:write` one a peer may write until the region is sealed.

  Errors: `:access` (this handle cannot write), `:closed`, `:stale`.
  """
  @spec grant(TensorRef.t(), :read | :write) :: {:ok, TensorRef.t()} | {:error, Error.t()}
  def grant(%TensorRef{} = ref, rights), do: TensorRef.named(ref, rights)

  @doc """
  Hold the tensor until `owner` ends or `release/1`, whether or not any process still has the ref.

  For a ref that is handed out and whose maker ends, such as a request's: keep it for the process
  whose life it should share. One owner at a time; the last call decides.

  Errors: `:closed` (no handle), `:not_started`.
  """
  @spec keep(TensorRef.t() | GPUTensorRef.t(), pid()) :: :ok | {:error, Error.t()}
  def keep(%kind{handle: handle}, owner \\ self())
      when kind in [TensorRef, GPUTensorRef] and is_pid(owner) do
    cond do
      not is_reference(handle) ->
        {:error, Error.new(:closed, "nothing to keep: the ref is only a description")}

      Process.whereis(Registry) == nil ->
        {:error, Error.new(:not_started, "the :tmesh application is not started")}

      true ->
        with :ok <- mark(kind, handle), do: Registry.keep(handle, owner)
    end
  end

  # So that releasing what nobody keeps costs no message.
  defp mark(TensorRef, handle), do: handle |> Native.keep() |> result()
  defp mark(GPUTensorRef, _handle), do: :ok

  @doc """
  What the region is, as `t:Tmesh.region/0` has it, and of this handle `rights`, `lease_ns`,
  `lease_left_ns` and `lapsed`. On memfd `handles` and `pinning_handles` are 0 here: only
  `Tmesh.regions/0` looks at every process.

  Errors: `:closed`.
  """
  @spec info(TensorRef.t()) :: {:ok, map()} | {:error, Error.t()}
  def info(%TensorRef{handle: handle}), do: handle |> Native.info() |> result()

  @doc """
  Let go of the tensor, here and for all processes of this VM that share this handle. Binaries made
  of it stay good. Releasing again is fine.

  The memory is freed, and tokens of a tensor made here die, when nobody holds the region any more:
  no handle, no binary, no peer.

  Errors: `:closed` (a ref that never had a handle holds nothing).
  """
  @spec release(TensorRef.t() | GPUTensorRef.t()) :: :ok | {:error, Error.t()}
  def release(%TensorRef{handle: handle}) do
    with :kept <- handle |> Native.release() |> result(), do: Registry.forget(handle)
  end

  def release(%GPUTensorRef{handle: handle}) do
    with :ok <- handle |> Native.gpu_release() |> result(), do: Registry.forget(handle)
  end

  bang allocate(
         shape :: TensorRef.shape() | tuple(),
         dtype :: TensorRef.dtype() | TensorRef.nx_type(),
         opts :: [region_option()] | [gpu_option()] \\ []
       ) :: TensorRef.t() | GPUTensorRef.t()

  bang from_binary(
         binary :: binary(),
         shape :: TensorRef.shape() | tuple(),
         dtype :: TensorRef.dtype() | TensorRef.nx_type(),
         opts :: [region_option() | {:seal, boolean()}] \\ []
       ) :: TensorRef.t()

  bang open(ref :: TensorRef.t(), opts :: [writable: boolean()] \\ []) :: TensorRef.t()
  bang to_binary(ref :: TensorRef.t(), opts :: [copy: boolean()] \\ []) :: binary()
  bang write(ref :: TensorRef.t(), offset :: non_neg_integer(), binary :: binary()) :: :ok
  bang seal(ref :: TensorRef.t()) :: :ok
  bang grant(ref :: TensorRef.t(), rights :: :read | :write) :: TensorRef.t()
  bang keep(ref :: TensorRef.t() | GPUTensorRef.t(), owner :: pid() \\ self()) :: :ok
  bang info(ref :: TensorRef.t()) :: map()
  bang release(ref :: TensorRef.t() | GPUTensorRef.t()) :: :ok

  defp created({:ok, {handle, native}}), do: {:ok, TensorRef.unnamed(handle, native)}
  defp created({:error, reason}), do: {:error, Error.from_native(reason)}

  defp result({:error, reason}), do: {:error, Error.from_native(reason)}
  defp result(success), do: success

  # eagain: enough opens wait for slow peers already, on schedulers that the VM's files need too.
  # This one waits in its own process instead.
  defp open_native(native, rights, deadline) do
    case Janitor.retry(fn -> Native.open(Context.get(), native, rights) end) do
      {:error, {:eagain, _message}} = busy ->
        if System.monotonic_time(:millisecond) < deadline do
          Process.sleep(:rand.uniform(5))
          open_native(native, rights, deadline)
        else
          result(busy)
        end

      other ->
        result(other)
    end
  end

  @open_timeout_ms 60_000
  defp deadline, do: System.monotonic_time(:millisecond) + @open_timeout_ms

  defp rights(true), do: {:ok, :write}
  defp rights(false), do: {:ok, :read}
  defp rights(_other), do: {:error, Error.new(:invalid, "writable must be true or false")}

  defp region_options(opts, more) do
    with {:ok, all} <- Options.validate(opts, @region_options ++ more) do
      case all[:device] do
        :cpu -> place(all[:arena], all, opts)
        :mps -> {:error, Error.new(:mps_not_supported, "Apple's GPUs are not supported")}
        other -> {:error, Error.new(:unsupported, "nothing is put on #{inspect(other)} here")}
      end
    end
  end

  defp place(nil, all, _given), do: {:ok, {all[:label], all[:huge], all[:mode]}, all}

  defp place(%Arena{native: native}, all, given) do
    if Keyword.keys(given) -- [:arena, :device, :seal] == [] and given[:seal] in [nil, false] do
      {:ok, native, Keyword.put(all, :seal, false)}
    else
      {:error,
       Error.new(
         :invalid,
         "a tensor in an arena has what the arena was made with, and is not sealed by itself: " <>
           "give no label, huge, mode or seal: true beside it"
       )}
    end
  end

  defp place(_other, _all, _given),
    do: {:error, Error.new(:invalid, "arena must be a Tmesh.Arena")}
end
