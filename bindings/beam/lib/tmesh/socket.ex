# SPDX-License-Identifier: MIT
defmodule Tmesh.Socket do
  @moduledoc false
  # Sockets in their owners' forms, by which regions are handed over.

  import Tmesh.Options, only: [is_timeout: 1, no_timeout: 0]

  alias Tmesh.{Error, ZeroCopy}

  @doc "Return the number of its descriptor."
  @spec fd(ZeroCopy.socket()) :: {:ok, non_neg_integer()} | {:error, Error.t()}
  def fd(fd) when is_integer(fd), do: {:ok, fd}

  def fd(port) when is_port(port) do
    with {:error, why} <- :inet.getfd(port), do: no_socket(why)
  end

  def fd({:"$socket", _reference} = socket) do
    with {:error, why} <- :socket.getopt(socket, :otp, :fd), do: no_socket(why)
  end

  def fd(other), do: no_socket(other)

  defp no_socket(what),
    do: {:error, Error.new(:closed, "not an open socket: #{inspect(what, limit: 5)}")}

  @doc """
  Wait until there is something to read, and leave it in the socket. The library takes it, with the descriptors beside
  the bytes. For a socket of another kind the library itself waits.
  """
  @spec readable(ZeroCopy.socket(), timeout()) :: :ok | {:error, Error.t()}
  def readable(_socket, timeout) when not is_timeout(timeout), do: no_timeout()

  def readable({:"$socket", _reference} = socket, timeout) do
    case :socket.recv(socket, 1, [:peek], timeout) do
      {:ok, _byte} ->
        :ok

      {:error, :timeout} ->
        {:error, Error.new(:timeout, "receive timed out: no message came by the socket")}

      {:error, {:timeout, _data}} ->
        :ok

      {:error, :closed} ->
        {:error, Error.new(:gone, "the other end of the socket is closed")}

      {:error, why} ->
        no_socket(why)
    end
  end

  def readable(_socket, _timeout), do: :ok
end
