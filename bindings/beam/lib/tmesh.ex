# SPDX-License-Identifier: MIT
defmodule Tmesh do
  @moduledoc """
  Memory that this VM shares with other processes, languages and devices on the machine.

  `Tmesh.ZeroCopy` makes, opens and reads tensors; this module says what the machine offers.

  ## Configuration

  With the defaults:

      config :tmesh, :zero_copy,
        enabled: true,
        threshold_bytes: 1_000_000,
        gpu_enabled: true,
        arrow_enabled: true,
        cleanup_interval_ms: 5_000,
        idle_gc_mb: 128,
        max_shared_memory_mb: 4096,
        pool_mb: 256,
        timeout_ms: 2_000,
        backend: :auto

  Read at run time, whenever they matter:

    * `enabled` - with `false`, nothing is put into shared memory unless it is asked for by name:
      `Tmesh.ZeroCopy.AutoDetect` says no to everything, and `Tmesh.Worker` copies instead, with a
      warning for each call
    * `threshold_bytes` - what has more bytes goes by shared memory
    * `gpu_enabled` - with `false`, tensors on GPUs are neither made, opened nor handed on
      (`:unsupported`)
    * `arrow_enabled` - with `false`, `Tmesh.Arrow` refuses to work (`:unsupported`)
    * `cleanup_interval_ms` - how often the janitor looks for what was left behind and for the
      library's log lines, beside when it is told; 0 for never. A new value counts from its next
      look on
    * `idle_gc_mb` - from so many MiB of regions in use on, the janitor has the garbage of processes collected that
      made or used a tensor and do nothing: the emulator does that only when a process allocates, and does not see
      how large what it has forgotten is. Once for each until it does much again, and after growing pauses where it
      does a little; 0 for never. A process that
      got a ref in a message and never used it is not known, and a hibernating one has no garbage
    * `max_shared_memory_mb` - MiB of regions this VM may have created at once, and the most that
      one `Tmesh.ZeroCopy.to_binary/2` may copy out of memory that is not sealed; 0 for no limit.
      Passing it gives `:limit_exceeded`, after garbage was collected that counted.

  Read when the application starts:

    * `pool_mb` - MiB kept of released regions that nobody else has had, for reuse by later ones, for 10 s; 0
      for none. By default `TMESH_POOL`, else 256, or a 64th of the memory if that is less.
    * `timeout_ms` - the longest wait for a peer.
    * `backend` - `:kernel` (the module), `:memfd`, or `:auto`: the module where /dev/tmesh can be
      opened, else memfd. The environment variable `TMESH_BACKEND` decides for `:auto`.
  """

  import Tmesh.Bang

  alias Tmesh.{Bundle, Context, Error, Janitor, Model, Native, Options}
  alias Tmesh.ZeroCopy.TensorRef

  @typedoc """
  A promise of the running backend: `:enforced` by the kernel against everybody, `:cooperative`
  among well-behaved processes of the same user, or `:no`. `reason` says why.
  """
  @type cap :: %{name: String.t(), level: :no | :cooperative | :enforced, reason: String.t()}

  @doc """
  The backend in use: `{:ok, :kernel}` or `{:ok, :memfd}`.

      iex> {:ok, backend} = Tmesh.backend()
      iex> backend in [:kernel, :memfd]
      true
  """
  @spec backend() :: {:ok, :kernel | :memfd} | {:error, Error.t()}
  def backend, do: Context.get() |> Native.context_backend() |> result()

  @doc """
  What the backend promises on this machine, with a reason for each.

      iex> {:ok, caps} = Tmesh.caps()
      iex> Enum.find(caps, & &1.name == "zero-copy").level
      :enforced
  """
  @spec caps() :: {:ok, [cap()]} | {:error, Error.t()}
  def caps do
    with {:ok, caps} <- Context.get() |> Native.context_caps() |> result() do
      {:ok, for({name, level, reason} <- caps, do: %{name: name, level: level, reason: reason})}
    end
  end

  @doc """
  Counters since the application started: `bytes_copied` and `copies` (tensor bytes that tmesh
  itself copied, in or out), `regions_created`, `regions_opened`, `regions_live`, `bytes_live`,
  `pool_hits`, `pool_misses`, `pool_bytes`, `tokens_served`, `opens_without_wake`,
  `sent_alone` (regions that channels sent and that only this VM has until they are received).
  """
  @spec stats() :: {:ok, %{atom() => non_neg_integer()}} | {:error, Error.t()}
  def stats, do: Context.get() |> Native.context_stats() |> result()

  @doc """
  Give back at once the memory that tmesh keeps ready for new tensors (`pool_bytes` of `stats/0`), and tell how many
  bytes that was. What nobody has asked for in 30 s goes by itself.

      iex> {:ok, bytes} = Tmesh.trim()
      iex> is_integer(bytes)
      true
  """
  @spec trim() :: {:ok, non_neg_integer()} | {:error, Error.t()}
  def trim, do: Context.get() |> Native.context_trim() |> result()

  @doc """
  Wait until everything that this VM holds for others, by the option `hold` of `Tmesh.ZeroCopy.TensorRef.to_json/2`
  and the like, was opened or its time is over, and what it sent by channels was received, or nobody is left to
  receive it; at most `timeout` ms.

  Errors: `:timeout`, with the numbers of what nobody has opened or received, `held`, `held_bytes` and `messages`, in
  `details`.

      iex> Tmesh.flush(60_000)
      :ok
  """
  @spec flush(timeout()) :: :ok | {:error, Error.t()}
  def flush(timeout \\ :infinity)
      when timeout == :infinity or (is_integer(timeout) and timeout >= 0),
      do: flush_until(if(timeout != :infinity, do: System.monotonic_time(:millisecond) + timeout))

  # Nobody tells of the last that was opened, and no scheduler waits for it.
  @look_ms 5

  defp flush_until(deadline) do
    with {:ok, {held, bytes, messages}} <- Context.get() |> Native.context_flush() |> result() do
      cond do
        held == 0 and messages == 0 ->
          :ok

        deadline != nil and System.monotonic_time(:millisecond) >= deadline ->
          why =
            "nobody has opened #{held} refs with #{bytes} bytes that are held, or received " <>
              "#{messages} messages of channels"

          left = %{held: held, held_bytes: bytes, messages: messages}
          {:error, %Error{Error.new(:timeout, why) | details: left}}

        true ->
          Process.sleep(@look_ms)
          flush_until(deadline)
      end
    end
  end

  @typedoc """
  A region, as `tmeshctl ls --json` tells it:

    * `id`, `backend` (`:kernel`, `:memfd`), `label`
    * `backing` - where the memory comes from: `:memfd`, `:pages`, `:user`, `:dmabuf`, `:descriptor`,
      `:view`
    * `description` - what it holds, as its maker wrote it; `tensor` - the same as a map of `dtype`,
      `shape`, `strides`, `offset` and `byte_size`, or `nil` where it is none
    * `bytes` (as asked), `alloc_bytes` (in whole pages), `huge_bytes` (of them in huge pages)
    * `sealed`, `revoked`, `poisoned`, `kept`, `uid`, `gid`, `mode`, `node` (of NUMA; `nil`: any)
    * `handles`, `pinning_handles`, `exports`, `attachments`, `views` - how many of all processes, as
      far as they can be seen
    * `linger_ms`, `created_ns` (CLOCK_MONOTONIC), `pinned_bytes`, `fence_value`, `fence` (`:idle`,
      `:producer`, `:dead`), `cgroup_id`
  """
  @type region :: %{atom() => term()}

  @typedoc """
  Who holds a region, as `tmeshctl holders --json` tells it: `kind` (`:handle`, `:pinning`,
  `:export`, `:mapping`, `:view`, `:device`), `pid` (or `nil`), `command`, `uid`, `rights`,
  `mappings`, `attachments`, `offset` and `bytes` (the part held), `device`, `mapped`, `view`,
  `lease_ns`, `lease_left_ns`, `lapsed`, `producer`, `since_ns` (or `nil`).
  """
  @type holder :: %{atom() => term()}

  @doc """
  The regions that this process may see: with the module all that it may open, on memfd those that
  processes of this user hold.

      iex> ref = Tmesh.ZeroCopy.allocate!([2, 3], :float32, label: "seen")
      iex> {:ok, regions} = Tmesh.regions()
      iex> seen = Enum.find(regions, & &1.label == "seen")
      iex> {seen.tensor.shape, seen.sealed, Tmesh.ZeroCopy.release(ref)}
      {[2, 3], false, :ok}
  """
  @spec regions() :: {:ok, [region()]} | {:error, Error.t()}
  def regions, do: Context.get() |> Native.regions() |> result()

  @doc """
  Who holds a region: of a ref, or by its id (16 hex digits) or token.

  Errors: `:not_found` (no such region), `:access` (another user's), `:protocol` (no ref, id or
  token), and those of `Tmesh.ZeroCopy.open/2` for a token.
  """
  @spec holders(TensorRef.t() | String.t()) :: {:ok, [holder()]} | {:error, Error.t()}
  def holders(of) do
    with {:ok, id} <- id(of), do: Context.get() |> Native.holders(id) |> result()
  end

  defp id(%TensorRef{handle: handle}) when is_reference(handle) do
    with {:ok, info} <- handle |> Native.info() |> result(), do: id(info.id)
  end

  defp id(%TensorRef{id: id}), do: id(id)

  defp id(nil) do
    {:error,
     Error.new(
       :protocol,
       "nil is no id: a new tensor has none until it is handed over (to_map/1, to_json/1, grant/2). " <>
         "Give the ref itself"
     )}
  end

  defp id("tm1" <> _rest = token), do: Context.get() |> Native.token_id(token) |> result()

  defp id(<<_::binary-size(16)>> = id) do
    case Base.decode16(id, case: :mixed) do
      {:ok, <<number::64>>} -> {:ok, number}
      :error -> no_id(id)
    end
  end

  defp id(other), do: no_id(other)

  defp no_id(other),
    do: {:error, Error.new(:protocol, "#{inspect(other, limit: 5)} is no ref, id or token")}

  @typedoc """
  What is kept under a name, as `tmeshctl kept --json` tells it: `name`, `id` (of this keeping), `backend`,
  `regions` (how many), `held` (how many of them somebody holds now), `bytes`, `kept_ns`, `used_ns`, `expires_ns`
  (CLOCK_MONOTONIC, or `nil`), `uid`, `gid`, `mode`, `handles`, `cgroup_id`.
  """
  @type kept :: %{atom() => term()}

  @typedoc """
    * `replace` - the name may be taken; what it keeps is replaced in the same step (false)
    * `lifetime` - ms, after which it is dropped (`:infinity`)
    * `mode`, `gid` - who may open it by its name (0o600; on memfd no other)
  """
  @type keep_option ::
          {:replace, boolean()}
          | {:lifetime, timeout()}
          | {:mode, non_neg_integer()}
          | {:gid, non_neg_integer() | nil}

  @doc """
  Keep sealed memory under a name: it stays when every process that held it is gone, until it is dropped,
  its time is over, or room is needed that nobody holds. Gives back what is kept.

      {:ok, _bundle} = Tmesh.keep(%{"w" => {weights, {768, 768}, {:f, 32}}}, "weights")
      # later, in another VM, or in Python: tmesh.open_kept("weights")
      {:ok, bundle} = Tmesh.open_kept("weights")
      :ok = Tmesh.drop("weights")

  `what` is a ref of a whole region, a `Tmesh.Bundle`, a `Tmesh.Model`, or what `Tmesh.Bundle.put/2` takes, of which a
  bundle is made. With the module the kernel keeps it. On memfd a small process of this user does, `tmesh-keeper`,
  which comes with tmeshctl and is started; `docs/keeping.md` says what each promises.

  Errors: `:exists` (the name is taken), `:invalid` (the name; what is not sealed; a part of a region),
  `:busy` (kept under another name), `:limit_exceeded` (the limit, and all that is kept is held), `:access`,
  `:not_found` (no keeper runs and none can be started), `:unsupported`, `:closed`.
  """
  @spec keep(
          TensorRef.t() | Bundle.t() | Model.t() | %{String.t() => Bundle.value()},
          String.t(),
          [keep_option()]
        ) :: {:ok, TensorRef.t() | Bundle.t()} | {:error, Error.t()}
  def keep(what, name, opts \\ []) do
    known = [replace: false, lifetime: :infinity, mode: 0, gid: nil]

    with {:ok, opts} <- Options.validate(opts, known),
         {:ok, ns} <- lifetime(opts[:lifetime]),
         {:ok, what, native} <- keepable(what) do
      given = {opts[:replace], ns, opts[:mode], opts[:gid]}
      keep = fn -> Native.keep_region(Context.get(), native, name, given) end
      with :ok <- keep |> Janitor.retry() |> result(), do: {:ok, what}
    end
  end

  defp keepable(%TensorRef{handle: handle} = ref), do: {:ok, ref, handle}
  defp keepable(%Bundle{native: native} = bundle), do: {:ok, bundle, native}

  defp keepable(tensors) do
    with {:ok, bundle} <- Bundle.of(tensors), do: keepable(bundle)
  end

  @longest_ms div(0xFFFF_FFFF_FFFF_FFFF, 1_000_000)

  defp lifetime(:infinity), do: {:ok, 0}
  defp lifetime(ms) when is_integer(ms) and ms in 1..@longest_ms, do: {:ok, ms * 1_000_000}

  defp lifetime(_other),
    do: {:error, Error.new(:invalid, "lifetime must be milliseconds, more than 0, or :infinity")}

  @doc """
  Open what is kept under a name, for reading: a `Tmesh.Bundle`, a ref, or of several regions that are no bundle,
  as other programs may keep them, a list of refs.

  Options: `uid` - of another user who admits this one (not on memfd).

  Errors: `:not_found`, `:invalid` (the name), `:unsupported`, `:too_many_files`, `:gone` (the keeper ended meanwhile).
  """
  @spec open_kept(String.t(), uid: non_neg_integer()) ::
          {:ok, Bundle.t() | TensorRef.t() | [TensorRef.t()]} | {:error, Error.t()}
  def open_kept(name, opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, uid: nil) do
      open = fn -> Native.open_kept(Context.get(), name, opts[:uid]) end

      case Janitor.retry(open) do
        {:ok, [{handle, ref}]} -> {:ok, TensorRef.unnamed(handle, ref)}
        {:ok, several} when is_list(several) -> {:ok, Enum.map(several, &unnamed/1)}
        bundle_or_error -> Bundle.made(bundle_or_error)
      end
    end
  end

  defp unnamed({handle, ref}), do: TensorRef.unnamed(handle, ref)

  @doc """
  What is kept under names that this process may open, in the order in which it was kept. Without a keeper nothing
  is.
  """
  @spec kept() :: {:ok, [kept()]} | {:error, Error.t()}
  def kept, do: Context.get() |> Native.list_kept() |> result()

  @doc """
  Give up a name of one's own. Memory that nobody holds is gone then; who holds it keeps it.

  Errors: `:not_found`, `:invalid` (the name).
  """
  @spec drop(String.t()) :: :ok | {:error, Error.t()}
  def drop(name), do: Context.get() |> Native.drop_kept(name) |> result()

  bang keep(
         what :: TensorRef.t() | Bundle.t() | Model.t() | %{String.t() => Bundle.value()},
         name :: String.t(),
         opts :: [keep_option()] \\ []
       ) :: TensorRef.t() | Bundle.t()

  bang open_kept(name :: String.t(), opts :: [uid: non_neg_integer()] \\ []) ::
         Bundle.t() | TensorRef.t() | [TensorRef.t()]

  bang kept() :: [kept()]
  bang drop(name :: String.t()) :: :ok

  bang flush(timeout :: timeout() \\ :infinity) :: :ok
  bang regions() :: [region()]
  bang holders(of :: TensorRef.t() | String.t()) :: [holder()]
  bang backend() :: :kernel | :memfd
  bang caps() :: [cap()]
  bang stats() :: %{atom() => non_neg_integer()}
  bang trim() :: non_neg_integer()

  defp result(:ok), do: :ok
  defp result({:ok, value}), do: {:ok, value}
  defp result({:error, reason}), do: {:error, Error.from_native(reason)}
end
