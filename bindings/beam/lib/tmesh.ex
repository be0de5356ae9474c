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

  alias Tmesh.{Context, Error, Native}

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

  defp result({:ok, value}), do: {:ok, value}
  defp result({:error, reason}), do: {:error, Error.from_native(reason)}
end
