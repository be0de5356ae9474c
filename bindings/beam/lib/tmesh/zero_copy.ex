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

  defguardp is_timeout(ms) when ms == :infinity or (is_integer(ms) and ms >= 0)

  # What a region over other memory has of its own.
  @over Options.of_region([:label, :mode, :gid, :linger_ms])

  @typedoc """
  Options of a new tensor:

    * `label` - a name for people, at most 63 bytes
    * `huge` - pages of 2 MiB: `true` (or fail), `:try` or `false`
    * `mode` - who may open the token, as permission bits (0o600, 0o640, ...); on memfd only 0o600, the default
    * `gid` - the group of the region, by its number (nil: the process's)
    * `node` - the NUMA node whose memory it is, and no other's (nil: any)
    * `linger_ms` - how long it outlives its last holder, at most 1000; on memfd only 0, the default
    * `pin` - whether pinning handles may be made (true); with `false` every binary of it is a copy, and it can
      always be taken back
    * `device` - `:cpu`; see `allocate/3` for GPUs; `:mps` gives `:mps_not_supported`
    * `arena` - a `Tmesh.Arena` for it to lie in, which has said all of these but `device`
  """
  @type own_region_option ::
          {:label, String.t()}
          | {:huge, boolean() | :try}
          | {:mode, non_neg_integer()}
          | {:node, non_neg_integer() | nil}
          | {:gid, non_neg_integer() | nil}
          | {:linger_ms, 0..1000}
          | {:pin, boolean()}

  @typedoc "See `t:own_region_option/0`."
  @type region_option ::
          own_region_option()
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
  Open the tensor that a ref describes, or its description as a map or JSON. The result has a handle of its own, and hands on a token of
  its own, for reading unless `grant/2` says otherwise; the given ref, which may have a handle too, is
  left as it is.

  Options: `writable: true` asks for the right to write, which the token must carry (`grant/2`).

  Errors: `:not_found` (also when the peer that held it has ended), `:access`, `:sealed` (`writable: true`, and it is
  sealed by now), `:protocol`, `:timeout`, `:too_many_files`, `:unsupported` (a token of another backend).
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
        # eagain: enough opens wait for slow peers already.
        open = fn -> Native.open(Context.get(), native, rights) end

        with {:ok, handle} <- open |> Janitor.patiently() |> result(),
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
    fn -> Native.write(handle, offset, binary) end
    |> Janitor.retry()
    |> result()
    |> advise_writer()
  end

  # What to do is a matter of this language's functions.
  defp advise_writer({:error, %Error{type: :sealed} = error}),
    do: advise(error, "seal: false, or allocate/3, makes a tensor that can be written")

  defp advise_writer({:error, %Error{type: :access} = error}),
    do: advise(error, "open it with writable: true, by a ref that grant(ref, :write) gave")

  defp advise_writer(other), do: other

  defp advise(error, what), do: {:error, %Error{error | message: "#{error.message}: #{what}"}}

  @doc """
  Make the tensor's region immutable for everybody and for ever.

  Errors: `:busy` (somebody has it mapped for writing; nothing has changed), `:access` (only whoever
  created a region may seal it), `:invalid` (a tensor in an arena: its neighbours would be sealed too),
  `:closed`, `:stale`.
  """
  @spec seal(TensorRef.t()) :: :ok | {:error, Error.t()}
  def seal(%TensorRef{handle: handle}),
    do: fn -> Native.seal(handle) end |> Janitor.retry() |> result()

  @doc """
  The same ref with a token for these rights. Refs that are handed out otherwise carry the `:read`
  one; with the `:write` one a peer may write until the region is sealed. With `hold` the memory is held until
  somebody has opened it by this token, as `t:Tmesh.ZeroCopy.TensorRef.hold_option/0` says.

  Errors: `:sealed` (`:write`, and nobody can write any more), `:access` (this handle cannot write), `:closed`, `:stale`,
  `:invalid`, `:limit_exceeded` (too much is held).
  """
  @spec grant(TensorRef.t(), :read | :write, [TensorRef.hold_option()]) ::
          {:ok, TensorRef.t()} | {:error, Error.t()}
  def grant(%TensorRef{} = ref, rights, opts \\ []) do
    with {:ok, hold} <- Options.hold(opts), do: TensorRef.named(ref, rights, hold)
  end

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

  The memory is freed when nobody holds the region any more: no handle, no binary, no peer. Tokens of a tensor
  made here are good while this VM holds it: by a handle, a binary that points into it, or a ref that was made
  with `hold`.

  Errors: `:closed` (a ref that never had a handle holds nothing).
  """
  @spec release(TensorRef.t() | GPUTensorRef.t()) :: :ok | {:error, Error.t()}
  def release(%TensorRef{handle: handle}) do
    with :kept <- handle |> Native.release() |> result(), do: Registry.forget(handle)
  end

  def release(%GPUTensorRef{handle: handle}) do
    with :ok <- handle |> Native.gpu_release() |> result(), do: Registry.forget(handle)
  end

  @doc """
  Take the region back from all who hold it, here and elsewhere: what they do with it gives `:stale`
  from then on, and their mappings are gone.

  Errors: `:busy` (pinned: binaries made of it, here or in another VM, hold it), `:access` (only whoever
  created a region may), `:unsupported` (on memfd, where nothing can be taken away), `:closed`.
  """
  @spec revoke(TensorRef.t()) :: :ok | {:error, Error.t()}
  def revoke(%TensorRef{handle: handle}), do: handle |> Native.revoke() |> result()

  @doc """
  As `revoke/1`, and wait until the memory is really free, which devices may delay; also of a region
  that was taken back before. At most `timeout` ms, then it is `:timeout`, with `pinned_bytes`,
  `exports` and `attachments` in the error's `details`; the region is taken back then.

  Errors: `:timeout`, and those of `revoke/1`.
  """
  @spec reclaim(TensorRef.t(), timeout()) :: :ok | {:error, Error.t()}
  def reclaim(%TensorRef{handle: handle}, timeout \\ :infinity) when is_timeout(timeout) do
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

  @doc """
  Put a lease of `ms` milliseconds (10 ms to an hour) on this handle, for good: it lapses when
  `touch/1` is not called for so long. What is done through the handle then gives `:stale`, and
  with the module what was made through it is taken away too. A leased handle can be sent and not
  named, so hand it over with `send/3`; no binary can point into its memory, `to_binary/2` copies.

  Options: `process` - the number of a process of the system, with whose end it ends too; `ms` may be
  0 then, for a lease that needs no touch.

  On memfd a lease is cooperative: it is this handle's alone, and takes no memory away.

  Errors: `:invalid`, `:busy` (it has one), `:not_found` (there is no such process), `:unsupported`,
  `:closed`.
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
  Use a lease, so that it does not lapse. Costs no system call, and nothing where there is no lease.

  Errors: `:stale` (it has lapsed, or the region was taken back), `:closed`.
  """
  @spec touch(TensorRef.t()) :: :ok | {:error, Error.t()}
  def touch(%TensorRef{handle: handle}), do: handle |> Native.touch() |> result()

  @doc """
  Say that the producer has come to `value`, a number that only grows. Who signals first is the
  region's producer, until it releases its ref.

  Errors: `:invalid` (not greater than the last), `:busy` (another producer lives), `:access`,
  `:stale`, `:unsupported` (on memfd), `:closed`.
  """
  @spec signal(TensorRef.t(), non_neg_integer()) :: :ok | {:error, Error.t()}
  def signal(%TensorRef{handle: handle}, value),
    do: handle |> Native.fence_signal(value) |> result()

  @doc """
  Wait until the producer has come to `value`, at most `timeout` ms; gives how far it is. The process
  that waits can be killed, and few waits hold a dirty scheduler, each for 10 ms at most.

  Errors: `:timeout`, `:gone` (the producer is, and will not come there), `:stale`, `:unsupported` (on
  memfd), `:closed`.
  """
  @spec wait(TensorRef.t(), non_neg_integer(), timeout()) ::
          {:ok, non_neg_integer()} | {:error, Error.t()}
  def wait(%TensorRef{handle: handle}, value, timeout \\ :infinity) when is_timeout(timeout) do
    in_slices(timeout, fn ns ->
      case Native.fence_wait(handle, value, ns) do
        {:error, {code, _why} = reason} when code in [:etimedout, :eintr] ->
          {:again, %Error{Error.from_native(reason) | type: :timeout}}

        other ->
          other
      end
    end)
  end

  @doc """
  Parts of regions, one behind the other, as one tensor, which shows them and copies nothing: with the
  module alone. A part is a ref, for its whole region, or `{ref, offset, bytes}` of the ref's region;
  all in whole pages. It is revoked with any of them, and not sealed.

  Options: `shape` and `dtype` (the bytes as `:uint8`), `writable` (false), `label`, `mode`, `gid`, `linger_ms`.

  Errors: `:invalid`, `:access`, `:unsupported` (on memfd, or a part that is no memory of the module's
  own), `:closed`, and those of `allocate/3`.
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

  defp parts(parts) when length(parts) >= 0 do
    parts
    |> Enum.reduce_while({:ok, []}, fn part, {:ok, done} ->
      case part(part) do
        {:ok, native} -> {:cont, {:ok, [native | done]}}
        {:error, reason} -> {:halt, result({:error, reason})}
      end
    end)
    |> case do
      {:ok, done} -> {:ok, Enum.reverse(done)}
      error -> error
    end
  end

  defp parts(_other), do: {:error, Error.new(:invalid, "parts must be a proper list")}

  defp part(%TensorRef{handle: handle}) do
    with {:ok, info} <- Native.info(handle), do: {:ok, {handle, 0, info.alloc_bytes}}
  end

  defp part({%TensorRef{handle: handle}, offset, bytes}), do: {:ok, {handle, offset, bytes}}
  defp part(other), do: {:error, {:einval, "#{inspect(other, limit: 5)} is no part of a region"}}

  @doc """
  A dma-buf of the tensor's region, for drivers: a `Tmesh.Descriptor`.

  Options: `offset` and `bytes`, in whole pages (all of the region), `writable` (false).

  Errors: `:invalid`, `:access`, `:unsupported` (on memfd, where /dev/udmabuf makes them: writable only,
  and never of a sealed region), `:stale`, `:closed`, `:too_many_files`.
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
  A tensor over another exporter's dma-buf, given as a `Tmesh.Descriptor` or its number in this VM,
  which stays the caller's. With the module alone.

  Options: `label`, `mode`, `gid`, `linger_ms`.

  Errors: `:invalid` (no dma-buf, or one of tmesh's own: open its ref), `:access`, `:closed` (no
  descriptor), `:unsupported`, and those of `allocate/3`.
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
  A connected Unix socket: of `:socket`, of `:gen_tcp` (passive), or the number of its descriptor in
  this VM. It must stay open during the call.
  """
  @type socket :: :socket.socket() | port() | non_neg_integer()

  @doc """
  Hand the tensor's region over by a connected Unix socket, to a process in any of tmesh's languages
  that takes it with `recv/2` or the like: one message, with a handle of its own. No token is needed,
  and the receiver holds the region from the moment it is sent. Of a tensor in an arena it is the
  whole region.

      {:ok, socket} = :socket.open(:local, :stream)
      :ok = :socket.connect(socket, %{family: :local, path: "/run/user/1000/consumer"})
      :ok = Tmesh.ZeroCopy.send(ref, socket)

  Options: `writable` - whether the receiver may write (false).

  Errors: `:gone` (nobody is there), `:timeout` (the receiver does not read), `:access`, `:sealed`
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
  Take over the region that comes next by a connected Unix socket, as `send/3` sends it. The tensor
  is as its maker described it, unless `shape` and `dtype` are given.

  Options:

    * `shape`, `dtype`, `offset` - of the tensor in the region, contiguous
    * `timeout` - ms; with a socket of `:socket` there is no limit by default, and waiting holds no
      scheduler; with others it is the one of the configuration (`timeout_ms`)

  Errors: `:gone` (nobody is left at the other end), `:timeout`, `:protocol` (something else came, or the
  layout does not fit), `:unsupported` (another backend's), `:too_many_files`.
  """
  @spec recv(socket(), keyword()) :: {:ok, TensorRef.t()} | {:error, Error.t()}
  def recv(socket, opts \\ []) do
    known = [shape: nil, dtype: nil, offset: 0, timeout: :infinity]

    with {:ok, opts} <- Options.validate(opts, known),
         {:ok, shape, dtype} <- layout(opts),
         {:ok, fd} <- Socket.fd(socket),
         :ok <- Socket.readable(socket, opts[:timeout]),
         {:ok, context} <- Context.limited() do
      fn -> Native.take_over(context, fd, shape, dtype, opts[:offset]) end
      |> Janitor.patiently()
      |> created()
    end
  end

  # `try` may wait so many nanoseconds: few of them at a time, for it holds a dirty scheduler then.
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

  bang revoke(ref :: TensorRef.t()) :: :ok
  bang reclaim(ref :: TensorRef.t(), timeout :: timeout() \\ :infinity) :: :ok

  bang lease(
         ref :: TensorRef.t(),
         ms :: non_neg_integer(),
         opts :: [process: pos_integer()] \\ []
       ) :: :ok

  bang touch(ref :: TensorRef.t()) :: :ok
  bang signal(ref :: TensorRef.t(), value :: non_neg_integer()) :: :ok

  bang wait(
         ref :: TensorRef.t(),
         value :: non_neg_integer(),
         timeout :: timeout() \\ :infinity
       ) :: non_neg_integer()

  bang gather(
         parts :: [TensorRef.t() | {TensorRef.t(), non_neg_integer(), pos_integer()}],
         opts :: keyword() \\ []
       ) :: TensorRef.t()

  bang export_dmabuf(ref :: TensorRef.t(), opts :: keyword() \\ []) :: Descriptor.t()

  bang from_dmabuf(
         descriptor :: Descriptor.t() | non_neg_integer(),
         shape :: TensorRef.shape() | tuple(),
         dtype :: TensorRef.dtype() | TensorRef.nx_type(),
         opts :: keyword() \\ []
       ) :: TensorRef.t()

  bang send(ref :: TensorRef.t(), socket :: socket(), opts :: [writable: boolean()] \\ []) :: :ok
  bang recv(socket :: socket(), opts :: keyword() \\ []) :: TensorRef.t()

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

  bang open(ref :: TensorRef.t() | map() | String.t(), opts :: [writable: boolean()] \\ []) ::
         TensorRef.t()

  bang to_binary(ref :: TensorRef.t(), opts :: [copy: boolean()] \\ []) :: binary()
  bang write(ref :: TensorRef.t(), offset :: non_neg_integer(), binary :: binary()) :: :ok
  bang seal(ref :: TensorRef.t()) :: :ok

  bang grant(
         ref :: TensorRef.t(),
         rights :: :read | :write,
         opts :: [TensorRef.hold_option()] \\ []
       ) :: TensorRef.t()

  bang keep(ref :: TensorRef.t() | GPUTensorRef.t(), owner :: pid() \\ self()) :: :ok
  bang info(ref :: TensorRef.t()) :: map()
  bang release(ref :: TensorRef.t() | GPUTensorRef.t()) :: :ok

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
