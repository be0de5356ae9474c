# SPDX-License-Identifier: MIT
defmodule Tmesh.Net.Protocol do
  @moduledoc false
  # Common to home and reader: commands to the fetcher, and messages to other nets.

  alias Tmesh.Error
  alias Tmesh.Net.Fetcher

  @version 1

  @doc "Return the version of the protocol between nets."
  @spec version() :: pos_integer()
  def version, do: @version

  @doc "Send a command to the fetcher. `what` says how to use its answer."
  @spec ask(map(), term(), String.t(), keyword(String.t() | integer())) :: map()
  def ask(state, what, type, members) do
    id = state.next_id
    Fetcher.command(state.port, type, id, members)
    %{state | next_id: id + 1, asked: Map.put(state.asked, id, what)}
  end

  # Do not reconnect a node that is gone. If a node does not take messages that are in transit already, another
  # process waits for it, and not this net.
  @spec tell(pid() | {atom(), node()}, tuple()) :: :ok
  def tell(to, message) do
    message = {:tmesh_net, @version, message}

    _pid =
      if :erlang.send(to, message, [:noconnect, :nosuspend]) == :nosuspend,
        do: spawn(fn -> :erlang.send(to, message, [:noconnect]) end)

    :ok
  end

  @doc "Answer a reader's request for a lease."
  @spec answer(pid(), term(), {:ok, String.t(), String.t()} | {:bytes, binary()} | Error.t()) :: :ok
  def answer(reader, number, answer) do
    said =
      case answer do
        %Error{type: type, message: text} -> {:error, type, text}
        good -> good
      end

    tell(reader, {:answer, self(), number, said})
  end

  @spec now() :: integer()
  def now, do: System.monotonic_time(:millisecond)
end
