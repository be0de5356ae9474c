# SPDX-License-Identifier: MIT
defmodule Tmesh.Context do
  @moduledoc false
  # The VM's one library context. It is opened when the application starts, with the values of `config :tmesh,
  # :zero_copy` at that time. Only max_shared_memory_mb follows later changes. It needs no process of its own.

  alias Tmesh.{Config, Error, Native}

  @key __MODULE__
  @mib 1_048_576

  @spec child_spec(term()) :: Supervisor.child_spec()
  def child_spec(_arg), do: %{id: __MODULE__, start: {__MODULE__, :open, []}}

  @doc false
  @spec open() :: :ignore | {:error, Error.t()}
  def open do
    with nil <- :persistent_term.get(@key, nil),
         {:ok, opts} <- options(),
         {:ok, context} <- native_open(opts) do
      :persistent_term.put(@key, context)
      # Fetch the log lines of the library's choice of a backend.
      send(Tmesh.Janitor, :sweep)
      :ignore
    else
      {:error, error} -> {:error, error}
      _context -> :ignore
    end
  end

  @spec close() :: :ok
  def close do
    :persistent_term.erase(@key)
    :ok
  end

  @doc false
  @spec get() :: Native.context() | nil
  def get, do: :persistent_term.get(@key, nil)

  # For calls that count against max_shared_memory_mb.
  @doc false
  @spec limited() :: {:ok, Native.context() | nil} | {:error, Error.t()}
  def limited do
    with {:ok, max_mb} <- Config.get(:max_shared_memory_mb) do
      context = get()
      # Without a context, the call that needs it reports that.
      _ok = Native.context_limit(context, max_mb * @mib)
      {:ok, context}
    end
  end

  defp native_open(opts) do
    with {:error, reason} <- Native.context_open(opts), do: {:error, Error.from_native(reason)}
  end

  defp options do
    with {:ok, backend} <- Config.get(:backend),
         {:ok, max_mb} <- Config.get(:max_shared_memory_mb),
         {:ok, region_pool_mb} <- Config.get(:region_pool_mb),
         {:ok, timeout_ms} <- Config.get(:timeout_ms) do
      # Half of the dirty I/O schedulers stay free for the VM's files.
      max_opening = max(1, div(:erlang.system_info(:dirty_io_schedulers), 2))

      {:ok,
       {backend, max_mb * @mib, region_pool_bytes(region_pool_mb), timeout_ms * 1_000_000,
        max_opening}}
    end
  end

  # In libtmesh's form: 0 for its default, TMESH_NO_REGION_POOL for none.
  defp region_pool_bytes(nil), do: 0
  defp region_pool_bytes(0), do: 0xFFFF_FFFF_FFFF_FFFF
  defp region_pool_bytes(mib), do: mib * @mib
end
