# SPDX-License-Identifier: MIT
defmodule Tmesh.Net.LocalSecret do
  @moduledoc false
  # The secret in casts from this node's processes to its net. A cast does not name its sender, and a call from
  # another node may name any. Only processes of this node can read the secret.

  @table __MODULE__

  @doc "Make the secret. The calling process owns it, and it ends with that process."
  @spec start() :: binary()
  def start do
    @table = :ets.new(@table, [:named_table, :protected, read_concurrency: true])
    secret = :crypto.strong_rand_bytes(16)
    :ets.insert(@table, {:secret, secret})
    secret
  end

  @doc "Cast to this node's net. Without a net nothing happens."
  @spec cast(tuple()) :: :ok
  def cast(request) do
    case secret() do
      nil -> :ok
      secret -> GenServer.cast(Tmesh.Net, {:local, secret, request})
    end
  end

  @doc "Return the request of a call to this node's net, which may be about to begin."
  @spec call(term()) :: term()
  def call(request), do: {:local, secret() || awaited(), request}

  # Without a net the call itself fails.
  defp awaited do
    :ok = GenServer.call(Tmesh.Net, :began, :infinity)
    secret()
  catch
    :exit, _reason -> nil
  end

  # A net that is just beginning has the table, and no secret yet.
  defp secret do
    :ets.lookup(@table, :secret)[:secret]
  rescue
    # No net runs here.
    ArgumentError -> nil
  end
end
