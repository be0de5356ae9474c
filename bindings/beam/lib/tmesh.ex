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
        max_shared_memory_mb: 4096,
        pool_mb: 128,
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
    * `max_shared_memory_mb` - MiB of regions this VM may have created at once, and the most that
      one `Tmesh.ZeroCopy.to_binary/2` may copy out of memory that is not sealed; 0 for no limit.
      Passing it gives `:limit_exceeded`, after garbage was collected that counted.

  Read when the application starts:

    * `pool_mb` - MiB kept of released regions, for reuse by later ones; 0 for none.
    * `timeout_ms` - the longest wait for a peer.
    * `backend` - `:kernel` (the module), `:memfd`, or `:auto`: the module where /dev/tmesh can be
      opened, else memfd. The environment variable `TMESH_BACKEND` decides for `:auto`.
  """

  import Tmesh.Bang

  alias Tmesh.{Context, Error, Native}
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
  `pool_hits`, `pool_misses`, `pool_bytes`, `tokens_served`, `opens_without_wake`.
  """
  @spec stats() :: {:ok, %{atom() => non_neg_integer()}} | {:error, Error.t()}
  def stats, do: Context.get() |> Native.context_stats() |> result()

  @typedoc """
  A region, as `tmeshctl ls --json` tells it:

    * `id`, `backend` (`:kernel`, `:memfd`), `label`
    * `backing` - where the memory comes from: `:memfd`, `:pages`, `:user`, `:dmabuf`, `:descriptor`,
      `:view`
    * `description` - what it holds, as its maker wrote it; `tensor` - the same as a map of `dtype`,
      `shape`, `strides`, `offset` and `byte_size`, or `nil` where it is none
    * `bytes` (as asked), `alloc_bytes` (in whole pages), `huge_bytes` (of them in huge pages)
    * `sealed`, `revoked`, `uid`, `gid`, `mode`, `node` (of NUMA; `nil`: any)
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
    with {:ok, id} <- id(of), do: holders_of(id)
  end

  # Whoever is not permitted has not met a seal.
  defp holders_of(id) do
    case Native.holders(Context.get(), id) do
      {:error, {:eperm, _message} = reason} ->
        {:error, %Error{Error.from_native(reason) | type: :access}}

      other ->
        result(other)
    end
  end

  defp id(%TensorRef{handle: handle}) when is_reference(handle) do
    with {:ok, info} <- handle |> Native.info() |> result(), do: id(info.id)
  end

  defp id(%TensorRef{id: id}), do: id(id)
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

  bang regions() :: [region()]
  bang holders(of :: TensorRef.t() | String.t()) :: [holder()]
  bang backend() :: :kernel | :memfd
  bang caps() :: [cap()]
  bang stats() :: %{atom() => non_neg_integer()}

  defp result({:ok, value}), do: {:ok, value}
  defp result({:error, reason}), do: {:error, Error.from_native(reason)}
end
