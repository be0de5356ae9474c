# SPDX-License-Identifier: MIT
defmodule Tmesh.Net.Speak do
  @moduledoc false
  # What home and reader have in common: commands to the fetcher, messages to other nets.

  alias Tmesh.Error
  alias Tmesh.Net.Fetcher

  @version 1

  @doc "Of the protocol between nets."
  @spec version() :: pos_integer()
  def version, do: @version

  @doc "A command to the fetcher; `what` is what its answer is for."
  @spec ask(map(), term(), String.t(), keyword(String.t() | integer())) :: map()
  def ask(state, what, type, members) do
    id = state.next_id
    Fetcher.command(state.port, type, id, members)
    %{state | next_id: id + 1, asked: Map.put(state.asked, id, what)}
  end

  # A node that is gone is not connected again by this. One that does not take what is on its way already keeps
  # another process waiting, and not this net.
  @spec tell(pid() | {atom(), node()}, tuple()) :: :ok
  def tell(to, message) do
    message = {:tmesh_net, @version, message}

    _pid =
      if :erlang.send(to, message, [:noconnect, :nosuspend]) == :nosuspend,
        do: spawn(fn -> :erlang.send(to, message, [:noconnect]) end)

    :ok
  end

  @doc "A home's answer to who has asked for a lease."
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
