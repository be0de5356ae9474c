# SPDX-License-Identifier: MIT
defmodule Tmesh.Net.Own do
  @moduledoc false
  # What a net's casts of this node's processes carry, and nobody else knows: a cast says not who has sent it, and a call
  # says it as its sender likes, also from another node.

  @table __MODULE__

  @doc "The calling process's, and gone with it."
  @spec start() :: binary()
  def start do
    @table = :ets.new(@table, [:named_table, :protected, read_concurrency: true])
    secret = :crypto.strong_rand_bytes(16)
    :ets.insert(@table, {:secret, secret})
    secret
  end

  @doc "A cast to this node's net; to none where none runs."
  @spec cast(tuple()) :: :ok
  def cast(request) do
    case secret() do
      nil -> :ok
      secret -> GenServer.cast(Tmesh.Net, {:own, secret, request})
    end
  end

  @doc "A call, as it is to be sent to this node's net, which may be about to begin."
  @spec call(term()) :: term()
  def call(request), do: {:own, secret() || awaited(), request}

  # Without a net the call itself says so.
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
