# SPDX-License-Identifier: MIT
defmodule Tmesh.Context do
  @moduledoc false
  # The VM's one library context, opened when the application starts, with the limits of
  # `config :tmesh, :zero_copy` as they are then. It needs no process of its own.

  alias Tmesh.{Error, Native}

  @key __MODULE__
  @mib 1_048_576

  @spec child_spec(term()) :: Supervisor.child_spec()
  def child_spec(_arg), do: %{id: __MODULE__, start: {__MODULE__, :open, []}}

  @doc false
  @spec open() :: :ignore | {:error, Error.t()}
  def open do
    with nil <- :persistent_term.get(@key, nil),
         {:ok, opts} <- options(Application.get_env(:tmesh, :zero_copy, [])),
         {:ok, context} <- native_open(opts) do
      :persistent_term.put(@key, context)
      # What the library had to say while it chose its backend.
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

  defp native_open(opts) do
    with {:error, reason} <- Native.context_open(opts), do: {:error, Error.from_native(reason)}
  end

  defp options(config) do
    with {:ok, backend} <- backend(Keyword.get(config, :backend, :auto)),
         {:ok, max_mb} <- amount(config, :max_shared_memory_mb, 4096),
         {:ok, pool_mb} <- amount(config, :pool_mb, 128),
         {:ok, timeout_ms} <- amount(config, :timeout_ms, 2000) do
      # Half of the dirty I/O schedulers stay free for the VM's files.
      max_opening = max(1, div(:erlang.system_info(:dirty_io_schedulers), 2))
      {:ok, {backend, max_mb * @mib, pool_mb * @mib, timeout_ms * 1_000_000, max_opening}}
    end
  end

  defp backend(backend) when backend in [:auto, :kernel, :memfd], do: {:ok, backend}
  defp backend(other), do: refuse(:backend, other, ":auto, :kernel or :memfd")

  # Up to 2^40: no product with a unit overflows 64 bits.
  defp amount(config, key, default) do
    case Keyword.get(config, key, default) do
      n when is_integer(n) and n >= 0 and n <= 0xFF_FFFF_FFFF -> {:ok, n}
      other -> refuse(key, other, "an integer of at least 0")
    end
  end

  defp refuse(key, value, wanted) do
    {:error,
     Error.new(:invalid, "config :tmesh, :zero_copy, #{key}: #{inspect(value)} is not #{wanted}")}
  end
end
