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

  All sizes and offsets are in bytes, strides in elements. A shape is a list or, as in Nx, a tuple. A dtype is one
  of `t:Tmesh.ZeroCopy.TensorRef.dtype/0` or a type of Nx such as `{:f, 32}`. Every function returns `{:error,
  error}` with a `Tmesh.Error`; its bang variant raises it. An error changes nothing.

  ## What is copied

  A binary points into a region only if the region is **sealed** and the binary pins it. Then no process here or
  elsewhere can change it, shrink it or take it away. The binary may live as long as you like, also after
  `release/1`. A sub-binary (`binary_part/3`, a match) keeps the whole region.

  In all other cases `to_binary/2` makes a copy at once. A peer that writes, revokes or dies meanwhile can spoil its
  contents but not harm the VM. `Tmesh.stats/0` counts copies, and `to_binary(ref, copy: false)` refuses to make
  one.

  ## Other nodes

  A ref that was sent to another node of this machine is not open there. A ref from `grant/2` opens itself for each
  use of its tensor (`to_binary/2`, `write/3`, `info/1`, `Tmesh.Channel.send/3`, `Tmesh.Bundle.put/2`,
  `Tmesh.keep/3`, engines). `open/2` opens it once. Its sender has to hold the tensor meanwhile. Between machines,
  `Tmesh.Net` carries it.

  ## Sealing

  `from_binary/4` seals by default: data that was immutable in Elixir stays immutable. The memory of a tensor that
  was sealed or handed out returns to the system in the end. The pool reuses memory made with `seal: false` and
  never handed out, which is several times faster to fill.
  """

  use Tmesh.Bang,
      ~w(revoke/1 reclaim/2 lease/3 touch/1 signal/2 wait/3 gather/2 export_dmabuf/2
         from_dmabuf/4 send/3 recv/2 allocate/3 from_binary/4 open/2 to_binary/2 write/3 seal/1
         grant/3 tie/2 info/1 release/1)

  import Tmesh.Options, only: [is_timeout: 1, no_timeout: 0]

  alias Tmesh.{
    Arena,
    Context,
    Descriptor,
    DLPack,
    Error,
    Janitor,
    Native,
    Net,
    Options,
    Registry,
    Socket,
    Telemetry
  }

  alias Tmesh.DLPack.GPUTensorRef
  alias Tmesh.ZeroCopy.{Layout, TensorRef}

  # Options that apply to a region over other memory.
  @over Options.of_region([:label, :mode, :gid, :hold_ms])

  @typedoc """
  Options of a new tensor:

    * `label` - a name for people, at most 63 bytes
    * `huge` - pages of 2 MiB: `true` (or fail), `:try` or `false`
    * `mode` - which users may open the token, as permission bits (0o600, 0o640, ...); on memfd only 0o600, the default
    * `gid` - the number of the region's group (nil: the process's)
    * `node` - the only NUMA node of its memory (nil: any)
    * `hold_ms` - how long it outlives its last holder, at most 1000; on memfd only 0, the default
    * `pin` - whether pinning handles may be made (true). With `false` every binary of it is a copy, and it can
      always be taken back
    * `device` - `:cpu`; see `allocate/3` for GPUs; `:mps` gives `:mps_not_supported`
    * `arena` - a `Tmesh.Arena` to place it in. The arena determines all of these options but `device`
  """
  @type own_region_option ::
          {:label, String.t()}
          | {:huge, boolean() | :try}
          | {:mode, non_neg_integer()}
          | {:node, non_neg_integer() | nil}
          | {:gid, non_neg_integer() | nil}
          | {:hold_ms, 0..1000}
          | {:pin, boolean()}

  @typedoc "See `t:own_region_option/0`."
  @type region_option ::
          own_region_option()
          | {:device, TensorRef.device()}
          | {:arena, Arena.t()}

  @typedoc """
  Options of a new tensor on a GPU:

    * `device` - `{:cuda, n}`
    * `alone` - in a block of the driver's memory of its own. A process that opens its ref can reach nothing else
      (false)
    * `or_host` - if the GPU has no memory left, make a tensor in host memory instead (false). This gives a
      `Tmesh.ZeroCopy.TensorRef` with the device `:cpu`, a warning in the log, and the event
      `[:tmesh, :gpu, :fallback]`
  """
  @type gpu_option ::
          {:device, {:cuda, non_neg_integer()}} | {:alone, boolean()} | {:or_host, boolean()}

  @doc """
  Make a writable tensor of zeros, contiguous, in a region of its own unless `arena` is given.

  With `device: {:cuda, n}`, make a `Tmesh.DLPack.GPUTensorRef` on that GPU, which is not initialized.

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
  Make a tensor with the bytes of `binary`, contiguous in C order and native byte order. The binary has exactly as
  many bytes as `shape` and `dtype` need. They are copied once.

  It is sealed unless `seal: false` or an `arena` is given; see the module's text. The emulator first aligns a
  bitstring that does not start on a byte boundary of its binary, which costs a second copy.

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
  Open the tensor that a ref describes, or its description as a map or JSON. The result has its own handle, and its
  own token for others. That token allows reading unless `grant/2` makes another. The given ref, which may have a
  handle too, does not change.

  Options: `writable: true` asks for the right to write, which the token must carry (`grant/2`).

  Errors:

    * `:not_found` - also when the peer that held it has ended
    * `:sealed` - `writable: true`, and it is sealed by now
    * `:unsupported` - a token of another backend
    * `:access`, `:protocol`, `:timeout`, `:too_many_files`
  """
  @spec open(TensorRef.t() | map() | String.t(), writable: boolean()) ::
          {:ok, TensorRef.t()} | {:error, Error.t()}
  def open(ref, opts \\ [])

  def open(json, opts) when is_binary(json) do
    with {:ok, ref} <- TensorRef.from_json(json), do: open(ref, opts)
  end

  def open(map, opts) when is_map(map) and not is_struct(map) do
    with {:ok, ref} <- TensorRef.from_map(map), do: ref |> open(opts) |> Net.name_home(map)
  end

  def open(%TensorRef{token: nil, handle: nil}, _opts),
    do: {:error, Error.new(:protocol, "the ref has no token: it describes a tensor and opens none")}

  def open(%TensorRef{} = ref, opts) do
    with {:ok, opts} <- Options.validate(opts, writable: false),
         {:ok, rights} <- Options.rights(opts[:writable]),
         {:ok, ref} <- TensorRef.named(ref),
         {:ok, native} <- TensorRef.to_native(ref) do
      span(:open, ref, fn ->
        # eagain: too many opens wait for slow peers already.
        open = fn -> Native.open(Context.get(), native, rights) end

        with {:ok, handle} <- open |> Janitor.patiently() |> result(),
             # When it is handed on, its own handle and rights name it, not the token that it came with.
             do: {:ok, %TensorRef{ref | handle: handle, token: nil}}
      end)
    end
  end

  defp span(what, ref, fun) do
    metadata = %{dtype: ref.dtype, shape: ref.shape}
    Telemetry.span([:tmesh, :tensor, what], %{bytes: ref.byte_size}, metadata, fun)
  end

  @doc """
  Return the tensor's elements as a binary, in C order.

  The binary of a sealed, contiguous tensor points into the region, without a copy. Other tensors are copied, or
  with `copy: false` give the error `:unsupported`. `max_shared_memory_mb` limits a copy. A ref that is not open
  here is opened for the call: a description, or a ref that another node of this machine has granted (`grant/2`).

  Errors: `:closed`, `:stale`, `:limit_exceeded`, `:no_memory`, `:unsupported`, and those of
  `open/2`.
  """
  @spec to_binary(TensorRef.t(), copy: boolean()) :: {:ok, binary()} | {:error, Error.t()}
  def to_binary(ref, opts \\ [])

  def to_binary(%TensorRef{} = ref, opts) do
    with {:ok, opts} <- Options.validate(opts, copy: true),
         {:ok, _context} <- Context.limited() do
      using(ref, fn ref ->
        if opts[:copy] == true and Telemetry.listened?(),
          do: told_binary(ref),
          else: binary(ref, opts[:copy])
      end)
    end
  end

  # Call `fun` with the ref if it is open here. Otherwise, if it is a description or from another node, open its
  # token for the call.
  @doc false
  @spec using(TensorRef.t(), (TensorRef.t() -> result), writable: boolean()) ::
          result | {:error, Error.t()}
        when result: term()
  def using(%TensorRef{} = ref, fun, opts \\ []) do
    case here(ref, opts) do
      {:ok, ^ref} ->
        fun.(ref)

      {:ok, opened} ->
        result = fun.(opened)
        :ok = Native.release(opened.handle)
        result

      {:error, error} ->
        {:error, error}
    end
  end

  # Return the ref itself if it is open here, or else open its token.
  @doc false
  @spec here(TensorRef.t(), writable: boolean()) :: {:ok, TensorRef.t()} | {:error, Error.t()}
  def here(%TensorRef{handle: handle, token: token} = ref, opts \\ []) do
    case Native.local(handle) do
      :ok -> {:ok, ref}
      {:error, _reason} when token != nil -> open(ref, opts)
      {:error, reason} -> {:error, Error.from_native(reason)}
    end
  end

  defp binary(%TensorRef{handle: handle}, may_copy),
    do: fn -> Native.to_binary(handle, may_copy) end |> Janitor.retry() |> result()

  # Emit the event of a copy. Only a failed try without a copy shows that one is needed.
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
  def write(%TensorRef{} = ref, offset, binary) do
    ref
    |> using(
      fn %TensorRef{handle: handle} ->
        fn -> Native.write(handle, offset, binary) end |> Janitor.retry() |> result()
      end,
      writable: true
    )
    |> advise_writer()
  end

  # Advise the caller, since the remedy depends on this language's functions.
  defp advise_writer({:error, %Error{type: :sealed} = error}),
    do: advise(error, "seal: false, or allocate/3, makes a tensor that can be written")

  defp advise_writer({:error, %Error{type: :access} = error}),
    do: advise(error, "open it with writable: true, by a ref that grant(ref, :write) gave")

  defp advise_writer(other), do: other

  defp advise(error, what), do: {:error, %{error | message: "#{error.message}: #{what}"}}

  @doc """
  Make the tensor's region immutable for every process and for ever.

  Errors:

    * `:busy` - a process has mapped it for writing; nothing has changed
    * `:access` - only the creator of a region may seal it
    * `:invalid` - the tensor is in an arena, whose other tensors would be sealed too
    * `:closed`, `:stale`
  """
  @spec seal(TensorRef.t()) :: :ok | {:error, Error.t()}
  def seal(%TensorRef{handle: handle}),
    do: fn -> Native.seal(handle) end |> Janitor.retry() |> result()

  @doc """
  Return the same ref with a token for these rights. A ref handed out without `grant/2` has a token to read. With a
  `:write` token a peer may write until the region is sealed. With `hold` the memory is held until a process has
  opened it by this token, as in `t:Tmesh.ZeroCopy.TensorRef.hold_option/0`.

  Errors: `:sealed` (`:write`, and no process can write any more), `:access` (this handle cannot write), `:closed`,
  `:stale`, `:invalid`, `:limit_exceeded` (too much is held).
  """
  @spec grant(TensorRef.t(), :read | :write, [TensorRef.hold_option()]) ::
          {:ok, TensorRef.t()} | {:error, Error.t()}
  def grant(%TensorRef{} = ref, rights, opts \\ []) do
    with {:ok, hold} <- Options.hold(opts), do: TensorRef.named(ref, rights, hold)
  end

  @doc """
  Hold the tensor until `owner` ends or until `release/1`, whether or not any process still has the ref.

  Use it for a ref that outlives its maker, such as the process of a request: tie it to the process whose life it
  should share. A tensor has one owner at a time; the last call decides.

  Errors: `:closed` (no handle), `:not_started`.
  """
  @spec tie(TensorRef.t() | GPUTensorRef.t(), pid()) :: :ok | {:error, Error.t()}
  def tie(%kind{handle: handle}, owner \\ self())
      when kind in [TensorRef, GPUTensorRef] and is_pid(owner) do
    if Process.whereis(Registry) == nil,
      do: {:error, Error.new(:not_started, "the :tmesh application is not started")},
      else: with(:ok <- mark(kind, handle), do: Registry.tie(handle, owner))
  end

  # Mark the handle, so that releasing a tensor without an owner costs no message.
  defp mark(TensorRef, handle), do: handle |> Native.tie() |> result()
  defp mark(GPUTensorRef, _handle), do: :ok

  @doc """
  Return the region's members, as `t:Tmesh.region/0` lists them, and `rights`, `lease_ns`, `lease_left_ns` and
  `lapsed` of this handle. On memfd `handles` and `pinning_handles` are 0 here: only `Tmesh.regions/0` looks at
  every process.

  Errors: `:closed`.
  """
  @spec info(TensorRef.t()) :: {:ok, map()} | {:error, Error.t()}
  def info(%TensorRef{} = ref),
    do: using(ref, fn %TensorRef{handle: handle} -> handle |> Native.info() |> result() end)

  @doc """
  Release the tensor, here and for all processes of this VM that share this handle. Binaries made of it stay valid.
  You may release it again.

  The memory is freed when no handle, binary or peer holds the region any more. Tokens of a tensor made here are
  valid while this VM holds it. A handle, a binary that points into it, or a ref that was made with `hold` do so.

  Errors: `:closed` (a ref that never had a handle holds nothing).
  """
  @spec release(TensorRef.t() | GPUTensorRef.t()) :: :ok | {:error, Error.t()}
  def release(%TensorRef{handle: handle}) do
    with :tied <- handle |> Native.release() |> result(), do: Registry.forget(handle)
  end

  def release(%GPUTensorRef{handle: handle}) do
    with :ok <- handle |> Native.gpu_release() |> result(), do: Registry.forget(handle)
  end

  @doc """
  Take the region back from all holders, here and elsewhere. From then on their operations on it give `:stale`, and
  their mappings are gone.

  Errors:

    * `:busy` - pinned: binaries made of it, here or in another VM, hold it
    * `:access` - only the creator of a region may revoke it
    * `:unsupported` - on memfd nothing can be taken away
    * `:closed`
  """
  @spec revoke(TensorRef.t()) :: :ok | {:error, Error.t()}
  def revoke(%TensorRef{handle: handle}), do: handle |> Native.revoke() |> result()

  @doc """
  Do as `revoke/1`, and wait until the memory is free, which devices may delay. You may also call it for a region
  that was taken back before. After `timeout` ms the error is `:timeout`, with `pinned_bytes`, `exports` and
  `attachments` in its `details`; the region is taken back nevertheless.

  Errors: `:timeout`, and those of `revoke/1`.
  """
  @spec reclaim(TensorRef.t(), timeout()) :: :ok | {:error, Error.t()}
  def reclaim(ref, timeout \\ :infinity)

  def reclaim(%TensorRef{handle: handle}, timeout) when is_timeout(timeout) do
    in_slices(timeout, fn ns ->
      case Native.reclaim(handle, ns) do
        {:used, {pinned_bytes, exports, attachments}, why} ->
          details = %{pinned_bytes: pinned_bytes, exports: exports, attachments: attachments}
          {:again, %Error{type: :timeout, message: why, details: details}}

        other ->
          other
      end
    end)
  end

  def reclaim(%TensorRef{}, _timeout), do: no_timeout()

  @doc """
  Put a lease of `ms` milliseconds (10 ms to an hour) on this handle, for good. It lapses when `touch/1` is not
  called for that long. Then operations through the handle give `:stale`, and with the module mappings and exports
  made through it are taken away. A leased handle has no token, so hand it over with `send/3`. No binary can point
  into its memory: `to_binary/2` copies.

  Options: `process` - the number of a process of the system: the lease also ends when that process ends. Then `ms`
  may be 0, for a lease that needs no touch.

  On memfd a lease is cooperative: it concerns this handle alone, and takes no memory away.

  Errors: `:invalid`, `:busy` (it has a lease), `:not_found` (there is no such process), `:unsupported`, `:closed`.
  """
  @spec lease(TensorRef.t(), non_neg_integer(), process: pos_integer()) ::
          :ok | {:error, Error.t()}
  def lease(%TensorRef{handle: handle}, ms, opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, process: nil) do
      if is_integer(ms) and ms in 0..0xFFFF_FFFF and (ms > 0 or opts[:process]),
        do: handle |> Native.lease(ms * 1_000_000, opts[:process] || 0) |> result(),
        else: {:error, Error.new(:invalid, "a lease is of milliseconds, at least 1")}
    end
  end

  @doc """
  Renew a lease, so that it does not lapse. It costs no system call, and does nothing without a lease.

  Errors: `:stale` (it has lapsed, or the region was taken back), `:closed`.
  """
  @spec touch(TensorRef.t()) :: :ok | {:error, Error.t()}
  def touch(%TensorRef{handle: handle}), do: handle |> Native.touch() |> result()

  @doc """
  Report that the producer has reached `value`, a number that only grows. The first process that signals is the
  region's producer until it releases its ref.

  Errors: `:invalid` (not greater than the last), `:busy` (another producer lives), `:access`,
  `:stale`, `:unsupported` (on memfd), `:closed`.
  """
  @spec signal(TensorRef.t(), non_neg_integer()) :: :ok | {:error, Error.t()}
  def signal(%TensorRef{handle: handle}, value),
    do: handle |> Native.fence_signal(value) |> result()

  @doc """
  Wait until the producer has reached `value`, at most `timeout` ms, and return the number that it has reached. The
  waiting process can be killed. Few waits hold a dirty scheduler, each for at most 10 ms.

  Errors: `:timeout`, `:gone` (the producer ended before it reached `value`), `:stale`, `:unsupported` (on memfd),
  `:closed`.
  """
  @spec wait(TensorRef.t(), non_neg_integer(), timeout()) ::
          {:ok, non_neg_integer()} | {:error, Error.t()}
  def wait(ref, value, timeout \\ :infinity)

  def wait(%TensorRef{handle: handle}, value, timeout) when is_timeout(timeout) do
    in_slices(timeout, fn ns ->
      case Native.fence_wait(handle, value, ns) do
        {:error, {code, _why} = reason} when code in [:etimedout, :eintr] ->
          {:again, %Error{Error.from_native(reason) | type: :timeout}}

        other ->
          other
      end
    end)
  end

  def wait(%TensorRef{}, _value, _timeout), do: no_timeout()

  @doc """
  Join consecutive parts of regions as one tensor, which shows them and copies nothing. It needs the module. A part
  is a ref, for its whole region, or `{ref, offset, bytes}` of the ref's region, in whole pages. The tensor is
  revoked with any of them, and is not sealed.

  Options: `shape` and `dtype` (the bytes as `:uint8`), `writable` (false), `label`, `mode`, `gid`, `hold_ms`.

  Errors: `:invalid`, `:access`, `:unsupported` (on memfd, or a part that is not the module's own memory),
  `:closed`, and those of `allocate/3`.
  """
  @spec gather([TensorRef.t() | {TensorRef.t(), non_neg_integer(), pos_integer()}], keyword()) ::
          {:ok, TensorRef.t()} | {:error, Error.t()}
  def gather(parts, opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, [shape: nil, dtype: nil, writable: false] ++ @over),
         {:ok, rights} <- Options.rights(opts[:writable]),
         {:ok, parts} <- parts(parts),
         {:ok, shape, dtype} <- layout(opts),
         {:ok, context} <- Context.limited() do
      region = Options.region(opts)

      fn -> Native.gather(context, parts, rights, shape, dtype, region) end
      |> Janitor.retry()
      |> created()
    end
  end

  defp parts(parts) when length(parts) >= 0, do: parts |> Options.map_ok(&part/1) |> result()

  defp parts(_other), do: {:error, Error.new(:invalid, "parts must be a proper list")}

  defp part(%TensorRef{handle: handle}) do
    with {:ok, info} <- Native.info(handle), do: {:ok, {handle, 0, info.alloc_bytes}}
  end

  defp part({%TensorRef{handle: handle}, offset, bytes}), do: {:ok, {handle, offset, bytes}}
  defp part(other), do: {:error, {:einval, "#{inspect(other, limit: 5)} is no part of a region"}}

  @doc """
  Export a dma-buf of the tensor's region, for drivers: a `Tmesh.Descriptor`.

  Options: `offset` and `bytes`, in whole pages (all of the region), `writable` (false).

  Errors: `:invalid`, `:access`, `:stale`, `:closed`, `:too_many_files`, and `:unsupported`: on memfd /dev/udmabuf
  makes only writable dma-bufs, and none of a sealed region.
  """
  @spec export_dmabuf(TensorRef.t(),
          offset: non_neg_integer(),
          bytes: non_neg_integer(),
          writable: boolean()
        ) :: {:ok, Descriptor.t()} | {:error, Error.t()}
  def export_dmabuf(%TensorRef{handle: handle}, opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, offset: 0, bytes: 0, writable: false),
         {:ok, rights} <- Options.rights(opts[:writable]),
         export = fn -> Native.export_dmabuf(handle, opts[:offset], opts[:bytes], rights) end,
         {:ok, {native, fd}} <- export |> Janitor.retry() |> result() do
      {:ok, %Descriptor{native: native, fd: fd}}
    end
  end

  @doc """
  Make a tensor over another exporter's dma-buf, given as a `Tmesh.Descriptor` or its number in this VM. The
  descriptor stays the caller's. It needs the module.

  Options: `label`, `mode`, `gid`, `hold_ms`.

  Errors: `:invalid` (no dma-buf, or one of tmesh's own: open its ref), `:access`, `:closed` (no descriptor),
  `:unsupported`, and those of `allocate/3`.
  """
  @spec from_dmabuf(
          Descriptor.t() | non_neg_integer(),
          TensorRef.shape() | tuple(),
          TensorRef.dtype() | TensorRef.nx_type(),
          keyword()
        ) :: {:ok, TensorRef.t()} | {:error, Error.t()}
  def from_dmabuf(descriptor, shape, dtype, opts \\ []) do
    {shape, dtype} = {Layout.shape(shape), Layout.dtype(dtype)}
    fd = with %Descriptor{native: native} <- descriptor, do: native

    with {:ok, opts} <- Options.validate(opts, @over),
         {:ok, context} <- Context.limited() do
      region = Options.region(opts)

      fn -> Native.from_dmabuf(context, fd, shape, dtype, region) end
      |> Janitor.retry()
      |> created()
    end
  end

  @typedoc """
  A connected Unix socket: from `:socket`, from `:gen_tcp` (passive), or the number of its descriptor in this VM. It
  must stay open during the call.
  """
  @type socket :: :socket.socket() | port() | non_neg_integer()

  @doc """
  Send the tensor's region through a connected Unix socket, in one message with a handle of its own. The receiver,
  in any of tmesh's languages, takes it with `recv/2` or its equivalent. No token is needed, and the receiver holds
  the region from the moment of sending. For a tensor in an arena, the whole region is sent.

      {:ok, socket} = :socket.open(:local, :stream)
      :ok = :socket.connect(socket, %{family: :local, path: "/run/user/1000/consumer"})
      :ok = Tmesh.ZeroCopy.send(ref, socket)

  Options: `writable` - whether the receiver may write (false).

  Errors: `:gone` (the other end is closed), `:timeout` (the receiver does not read), `:access`, `:sealed`
  (`writable: true`, and it is sealed), `:stale`, `:closed`.
  """
  @spec send(TensorRef.t(), socket(), writable: boolean()) :: :ok | {:error, Error.t()}
  def send(%TensorRef{handle: handle}, socket, opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, writable: false),
         {:ok, rights} <- Options.rights(opts[:writable]),
         {:ok, fd} <- Socket.fd(socket) do
      fn -> Native.hand_over(handle, fd, rights) end |> Janitor.patiently() |> result()
    end
  end

  @doc """
  Receive the next region from a connected Unix socket, sent by `send/3`. The tensor is as its maker described it,
  unless `shape` and `dtype` are given.

  Options:

    * `shape`, `dtype`, `offset` - of a contiguous tensor in the region
    * `timeout` - ms. A socket of `:socket` has no limit by default, and its wait holds no scheduler. For other
      sockets the default is the configuration's `timeout_ms`

  Errors: `:gone` (the other end is closed), `:timeout`, `:protocol` (something else came, or the layout does not
  fit), `:unsupported` (another backend's), `:too_many_files`.
  """
  @spec recv(socket(), keyword()) :: {:ok, TensorRef.t()} | {:error, Error.t()}
  def recv(socket, opts \\ []) do
    known = [shape: nil, dtype: nil, offset: 0, timeout: :infinity]

    with {:ok, opts} <- Options.validate(opts, known),
         {:ok, shape, dtype} <- layout(opts),
         {:ok, fd} <- Socket.fd(socket),
         :ok <- Socket.readable(socket, opts[:timeout]),
         {:ok, context} <- Context.limited() do
      fn -> Native.tensor_recv(context, fd, shape, dtype, opts[:offset]) end
      |> Janitor.patiently()
      |> created()
    end
  end

  # `try` may wait for this many nanoseconds. Few processes do so at once, since a wait holds a dirty scheduler.
  @slice_ns 10_000_000
  defp in_slices(timeout, try) do
    deadline = if timeout != :infinity, do: System.monotonic_time(:nanosecond) + timeout * 1_000_000
    slice(deadline, try)
  end

  defp slice(deadline, try) do
    left = if deadline, do: max(0, deadline - System.monotonic_time(:nanosecond)), else: @slice_ns

    case try.(min(left, @slice_ns)) do
      {:again, late} when left == 0 ->
        {:error, late}

      {:again, _late} ->
        slice(deadline, try)

      {:error, {:eagain, _why}} ->
        Process.sleep(:rand.uniform(3))
        slice(deadline, try)

      other ->
        result(other)
    end
  end

  defp layout(opts) do
    case {Layout.shape(opts[:shape]), Layout.dtype(opts[:dtype])} do
      {nil, nil} -> {:ok, nil, nil}
      {nil, _dtype} -> {:error, Error.new(:invalid, "give a shape with the dtype")}
      {shape, nil} -> {:ok, shape, :uint8}
      {shape, dtype} -> {:ok, shape, dtype}
    end
  end

  defp created({:ok, {handle, native}}), do: {:ok, TensorRef.unnamed(handle, native)}
  defp created({:error, reason}), do: {:error, Error.from_native(reason)}

  defp result({:error, reason}), do: {:error, Error.from_native(reason)}
  defp result(success), do: success

  defp region_options(opts, more) do
    with {:ok, all} <-
           Options.validate(opts, Options.of_region() ++ [device: :cpu, arena: nil] ++ more) do
      case all[:device] do
        :cpu -> place(all[:arena], all, opts)
        :mps -> {:error, Error.new(:mps_not_supported, "Apple's GPUs are not supported")}
        other -> {:error, Error.new(:unsupported, "nothing is put on #{inspect(other)} here")}
      end
    end
  end

  defp place(nil, all, _given), do: {:ok, Options.region(all), all}

  defp place(%Arena{native: native}, all, given) do
    if Keyword.keys(given) -- [:arena, :device, :seal] == [] and given[:seal] in [nil, false] do
      {:ok, native, Keyword.put(all, :seal, false)}
    else
      {:error,
       Error.new(
         :invalid,
         "a tensor in an arena has what the arena was made with, and is not sealed by itself: " <>
           "give no #{Options.of_region() |> Keyword.keys() |> Enum.join(", ")} or seal: true beside it"
       )}
    end
  end

  defp place(_other, _all, _given),
    do: {:error, Error.new(:invalid, "arena must be a Tmesh.Arena")}
end
