# SPDX-License-Identifier: MIT
defmodule Tmesh do
  @moduledoc """
  Memory that this VM shares with other processes, languages and devices on the machine.

  `Tmesh.ZeroCopy` makes, opens and reads tensors. This module reports on the machine, and keeps memory under names.

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
        region_pool_mb: 256,
        timeout_ms: 2_000,
        backend: :auto

  Read at run time, at each use:

    * `enabled` - with `false`, only explicit calls put data into shared memory. `Tmesh.ZeroCopy.AutoDetect` refuses
      everything, and `Tmesh.Worker` copies instead, with a warning for each call
    * `threshold_bytes` - data with more bytes travels through shared memory
    * `gpu_enabled` - with `false`, tensors on GPUs are neither made, opened nor handed on (`:unsupported`)
    * `arrow_enabled` - with `false`, `Tmesh.Arrow` refuses to work (`:unsupported`)
    * `cleanup_interval_ms` - how often the janitor, when nothing wakes it, looks for released memory and for lines
      of the library's log; 0 for never. A new value applies after its next look
    * `idle_gc_mb` - if this many MiB of regions are in use, the janitor collects the garbage of idle processes that
      made or used a tensor; 0 for never. The emulator collects garbage only when a process allocates, and does not
      see the size of forgotten tensors. An idle process is collected once. One that is a little active is collected
      again after growing pauses. A process that got a ref in a message and never used it is not known. A
      hibernating process has no garbage
    * `max_shared_memory_mb` - MiB of regions that this VM may have created at once; 0 for no limit. A new region
      above the limit gives `:limit_exceeded`, after the garbage that counted was collected. It is also the most
      that one `Tmesh.ZeroCopy.to_binary/2` may copy from memory that is not sealed

  Read when the application starts:

    * `region_pool_mb` - MiB of released regions to keep for reuse, for 10 s, if no other process had them; 0 for none.
      Default: `TMESH_REGION_POOL`, else 256, or a 64th of the memory if that is less
    * `timeout_ms` - the longest wait for a peer
    * `backend` - `:kernel` (the module), `:memfd`, or `:auto`: the module if /dev/tmesh can be opened, else memfd.
      The environment variable `TMESH_BACKEND` replaces `:auto`
  """

  use Tmesh.Bang,
      ~w(keep/3 open_kept/2 keep_folder/3 kept_path/2 kept_files/1 kept/0 drop/1 flush/1
         regions/0 holders/1 backend/0 caps/0 stats/0 trim/0)

  import Tmesh.Options, only: [is_timeout: 1, no_timeout: 0]

  alias Tmesh.{Bundle, Context, Error, Janitor, Model, Native, Options, ZeroCopy}
  alias Tmesh.ZeroCopy.TensorRef

  @typedoc """
  A promise of the running backend. The kernel enforces `:enforced` against every process. `:cooperative` holds
  among well-behaved processes of the same user. `:no` is none. `reason` explains the level.
  """
  @type cap :: %{name: String.t(), level: :no | :cooperative | :enforced, reason: String.t()}

  @doc """
  Return the backend in use: `{:ok, :kernel}` or `{:ok, :memfd}`.

      iex> {:ok, backend} = Tmesh.backend()
      iex> backend in [:kernel, :memfd]
      true
  """
  @spec backend() :: {:ok, :kernel | :memfd} | {:error, Error.t()}
  def backend, do: Context.get() |> Native.context_backend() |> result()

  @doc """
  List the promises of the backend on this machine, each with a reason.

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
  Return counters since the application started:

    * `bytes_copied` and `copies` - tensor bytes that tmesh itself copied, in or out
    * `regions_created`, `regions_opened`, `regions_live`, `bytes_live`
    * `region_pool_hits`, `region_pool_misses`, `region_pool_bytes`, `tokens_served`, `opens_without_wake`
    * `sent_alone` - regions that channels sent and that only this VM has until they are received
    * `huge_bytes` - bytes in pages of 2 MiB
    * `huge_given_up` - regions with some small pages, because no pages of 2 MiB were free
  """
  @spec stats() :: {:ok, %{atom() => non_neg_integer()}} | {:error, Error.t()}
  def stats, do: Context.get() |> Native.context_stats() |> result()

  @doc """
  Free the memory that tmesh keeps ready for new tensors (`region_pool_bytes` of `stats/0`), and return its number of
  bytes. Memory that was not reused for 10 s is freed without this call.

      iex> {:ok, bytes} = Tmesh.trim()
      iex> is_integer(bytes)
      true
  """
  @spec trim() :: {:ok, non_neg_integer()} | {:error, Error.t()}
  def trim, do: Context.get() |> Native.context_trim() |> result()

  @doc """
  Wait until other processes have what this VM holds for them, at most `timeout` ms. It holds memory by the option
  `hold` of `Tmesh.ZeroCopy.TensorRef.to_json/2` and the like until it is opened or its time is over. It holds sent
  messages of channels until they are received, or until no receiver is left.

  Errors: `:timeout`. Its `details` count what was neither opened nor received: `held`, `held_bytes` and `messages`.

      iex> Tmesh.flush(60_000)
      :ok
  """
  @spec flush(timeout()) :: :ok | {:error, Error.t()}
  def flush(timeout \\ :infinity)
  def flush(:infinity), do: flush_until(nil)

  def flush(timeout) when is_timeout(timeout),
    do: flush_until(System.monotonic_time(:millisecond) + timeout)

  def flush(_timeout), do: no_timeout()

  # Look again after this time: the last open sends no message, and no scheduler waits for it.
  @look_ms 5

  defp flush_until(deadline) do
    with {:ok, {held, bytes, messages}} <- Context.get() |> Native.context_flush() |> result() do
      cond do
        held == 0 and messages == 0 ->
          :ok

        deadline != nil and System.monotonic_time(:millisecond) >= deadline ->
          why =
            "flush: #{held} tokens hold #{bytes} bytes and were not opened, and #{messages} " <>
              "messages of channels were not received"

          left = %{held: held, held_bytes: bytes, messages: messages}
          {:error, %Error{Error.new(:timeout, why) | details: left}}

        true ->
          Process.sleep(@look_ms)
          flush_until(deadline)
      end
    end
  end

  @typedoc """
  A region, with the members of `tmeshctl ls --json`:

    * `id`, `backend` (`:kernel`, `:memfd`), `label`
    * `backing` - where the memory comes from: `:memfd`, `:pages`, `:user`, `:dmabuf`, `:descriptor`,
      `:view`
    * `description` - its contents, as its maker described them; `tensor` - the same as a map of `dtype`, `shape`,
      `strides`, `offset` and `byte_size`, or `nil` if it is no tensor
    * `bytes` (as requested), `alloc_bytes` (in whole pages), `huge_bytes` (of these, in huge pages)
    * `sealed`, `revoked`, `poisoned`, `kept`, `uid`, `gid`, `mode`, `node` (of NUMA; `nil`: any)
    * `handles`, `pinning_handles`, `exports`, `attachments`, `views` - counts over all visible processes
    * `hold_ms`, `created_ns` (CLOCK_MONOTONIC), `pinned_bytes`, `fence_value`, `fence` (`:idle`,
      `:producer`, `:dead`), `cgroup_id`
  """
  @type region :: %{atom() => term()}

  @typedoc """
  A holder of a region, with the members of `tmeshctl holders --json`:

    * `kind` - `:handle`, `:pinning`, `:export`, `:mapping`, `:view` or `:device`
    * `pid` (or `nil`), `command`, `uid`, `rights`, `mappings`, `attachments`
    * `offset` and `bytes` - the part held
    * `device`, `mapped`, `view`, `lease_ns`, `lease_left_ns`, `lapsed`, `producer`, `since_ns` (or `nil`)
  """
  @type holder :: %{atom() => term()}

  @doc """
  List the regions that this process may see. With the module these are all that it may open, on memfd those that
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
  List the holders of a region, given by a ref, its id (16 hex digits) or a token.

  Errors: `:not_found` (no such region), `:access` (another user's), `:protocol` (no ref, id or
  token), and those of `Tmesh.ZeroCopy.open/2` for a token.
  """
  @spec holders(TensorRef.t() | String.t()) :: {:ok, [holder()]} | {:error, Error.t()}
  def holders(of) do
    with {:ok, id} <- id(of), do: Context.get() |> Native.holders(id) |> result()
  end

  defp id(%TensorRef{id: id} = ref) do
    if Native.local(ref.handle) == :ok,
      do: with({:ok, info} <- ZeroCopy.info(ref), do: id(info.id)),
      else: id(id)
  end

  defp id("tm1" <> _rest = token), do: asked(&Native.token_id(&1, token))

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
  A kept name, with the members of `tmeshctl kept --json`:

    * `name`, `id` (of this keeping), `backend`, `bytes`
    * `regions` - how many; `held` - how many of them a process holds now
    * `kept_ns`, `used_ns`, `expires_ns` (CLOCK_MONOTONIC, or `nil`)
    * `uid`, `gid`, `mode`, `handles`, `cgroup_id`
  """
  @type kept :: %{atom() => term()}

  @typedoc """
    * `replace` - replace the present contents of a taken name in the same step (false)
    * `lifetime` - ms, after which it is dropped (`:infinity`)
    * `mode`, `gid` - which users may open it by its name (0o600; on memfd no other)
  """
  @type keep_option ::
          {:replace, boolean()}
          | {:lifetime, timeout()}
          | {:mode, non_neg_integer()}
          | {:gid, non_neg_integer() | nil}

  @doc """
  Keep sealed memory under a name, and return the kept object. It stays when every process that held it is gone. It
  ends when it is dropped, when its time is over, or when no process holds it and other memory needs the room.

      {:ok, _bundle} = Tmesh.keep(%{"w" => {weights, {768, 768}, {:f, 32}}}, "weights")
      # later, in another VM, or in Python: tmesh.open_kept("weights")
      {:ok, bundle} = Tmesh.open_kept("weights")
      :ok = Tmesh.drop("weights")

  `what` is a ref of a whole region, a `Tmesh.Bundle`, a `Tmesh.Model`, or a map for `Tmesh.Bundle.put/2`, which
  makes a bundle of it. With the module the kernel keeps it. On memfd `tmesh-keeper` does, a small process of this
  user. It comes with tmeshctl and is started when needed. `docs/reference/keeping.md` lists the promises of each.

  Errors:

    * `:exists` - the name is taken
    * `:invalid` - the name is malformed, or the memory is not sealed or a part of a region
    * `:busy` - it is kept under another name
    * `:limit_exceeded` - the limit is reached, and everything kept is held
    * `:not_found` - no keeper runs, and none can be started
    * `:access`, `:unsupported`, `:closed`
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
      with :ok <- keep |> Janitor.patiently() |> result(), do: {:ok, what}
    end
  end

  defp keepable(%TensorRef{} = ref) do
    with {:ok, ref} <- ZeroCopy.here(ref), do: {:ok, ref, ref.handle}
  end

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
  Open the memory kept under a name, for reading. The result is a `Tmesh.Bundle` or a ref. Other programs may keep
  several regions that are no bundle: then it is a list of refs.

  Options: `uid` - another user who admits this one (not on memfd).

  Errors: `:not_found`, `:invalid` (the name), `:unsupported`, `:too_many_files`, `:gone` (the keeper ended meanwhile).
  """
  @spec open_kept(String.t(), uid: non_neg_integer()) ::
          {:ok, Bundle.t() | TensorRef.t() | [TensorRef.t()]} | {:error, Error.t()}
  def open_kept(name, opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, uid: nil) do
      open = fn -> Native.open_kept(Context.get(), name, opts[:uid]) end

      case Janitor.patiently(open) do
        {:ok, [{handle, ref}]} -> {:ok, TensorRef.unnamed(handle, ref)}
        {:ok, several} when is_list(several) -> {:ok, Enum.map(several, &unnamed/1)}
        bundle_or_error -> Bundle.made(bundle_or_error)
      end
    end
  end

  defp unnamed({handle, ref}), do: TensorRef.unnamed(handle, ref)

  @doc """
  Keep a file or all files of a folder, such as a model of the Hugging Face hub, under a name. They are read once,
  sealed, and in huge pages if there are any. Every program opens them by `kept_path/2`.

      :ok = Tmesh.keep_folder("models/llama", "llama")
      path = Tmesh.kept_path!("llama", "model.gguf")

  Links to files are followed. Options are those of `keep/3`. `mode` decides who may read the files by their
  paths (0o600, 0o640, 0o644). `progress` - a process that receives `{:tmesh_model, path,
  progress}` as from `Tmesh.Model.load/2`.

  Errors, beside those of `keep/3`; then nothing is kept:

    * `:invalid` - a socket, device or pipe, a link to a folder, or no file at all
    * `:stale` - a file was changed meanwhile
    * `:limit_exceeded` - too many files
    * `:not_found`, `:access`
  """
  @spec keep_folder(Path.t(), String.t(), [keep_option() | {:progress, pid() | nil}]) ::
          :ok | {:error, Error.t()}
  def keep_folder(path, name, opts \\ []) do
    known = [replace: false, lifetime: :infinity, mode: 0, gid: nil, progress: nil]

    with {:ok, opts} <- Options.validate(opts, known),
         {:ok, ns} <- lifetime(opts[:lifetime]) do
      given = {opts[:replace], ns, opts[:mode], opts[:gid]}
      path = IO.chardata_to_string(path)
      keep = fn -> Native.keep_folder(Context.get(), path, name, given, opts[:progress]) end
      keep |> in_turn() |> result()
    end
  end

  # Reading holds a dirty scheduler, so few calls read at once.
  defp in_turn(keep) do
    case Janitor.retry(keep) do
      {:error, {:eagain, _why}} ->
        Process.sleep(10)
        in_turn(keep)

      result ->
        result
    end
  end

  @doc """
  Return the path by which any program opens the files kept under a name, or one of these files.

  Errors: `:not_found`. The message gives the reason: nothing is kept there, it was kept without files, or no
  mount shows its files. `:timeout`: the mount does not answer.
  """
  @spec kept_path(String.t(), Path.t() | nil) :: {:ok, String.t()} | {:error, Error.t()}
  def kept_path(name, path \\ nil) do
    path = path && IO.chardata_to_string(path)
    asked(&Native.kept_path(&1, name, path))
  end

  @typedoc "A kept file: `path`, `bytes`, `mtime_ns`."
  @type kept_file :: %{atom() => term()}

  @doc """
  List the files kept under a name of this user, sorted with slashes first.

  Errors: `:not_found`, `:invalid` (the name).
  """
  @spec kept_files(String.t()) :: {:ok, [kept_file()]} | {:error, Error.t()}
  def kept_files(name), do: asked(&Native.kept_files(&1, name))

  @doc """
  List the names that this process may open, in the order of keeping. Without a keeper the list is empty.
  """
  @spec kept() :: {:ok, [kept()]} | {:error, Error.t()}
  def kept, do: asked(&Native.list_kept/1)

  @doc """
  Drop a name of this user. Memory without a holder is freed; a holder keeps it.

  Errors: `:not_found`, `:invalid` (the name).
  """
  @spec drop(String.t()) :: :ok | {:error, Error.t()}
  def drop(name), do: asked(&Native.drop_kept(&1, name))

  # Ask another process.
  defp asked(ask), do: fn -> ask.(Context.get()) end |> Janitor.patiently() |> result()

  defp result(:ok), do: :ok
  defp result({:ok, value}), do: {:ok, value}
  defp result({:error, reason}), do: {:error, Error.from_native(reason)}
end
