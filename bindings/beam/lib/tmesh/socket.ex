# SPDX-License-Identifier: MIT
defmodule Tmesh.Socket do
  @moduledoc false
  # Sockets as their owners have them, by which regions are handed over.

  alias Tmesh.{Error, ZeroCopy}

  @doc "The number of its descriptor."
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
  Wait until something is there, which is only looked at: it is the library's to take, with what comes
  beside the bytes. A socket of another kind has the library wait.
  """
  @spec readable(ZeroCopy.socket(), timeout()) :: :ok | {:error, Error.t()}
  def readable(_socket, timeout)
      when timeout != :infinity and (not is_integer(timeout) or timeout < 0),
      do: {:error, Error.new(:invalid, "timeout must be milliseconds or :infinity")}

  def readable({:"$socket", _reference} = socket, timeout) do
    case :socket.recv(socket, 1, [:peek], timeout) do
      {:ok, _byte} -> :ok
      {:error, :timeout} -> {:error, Error.new(:timeout, "nothing came by the socket in time")}
      {:error, {:timeout, _data}} -> :ok
      {:error, :closed} -> {:error, Error.new(:gone, "the other end of the socket is closed")}
      {:error, why} -> no_socket(why)
    end
  end

  def readable(_socket, _timeout), do: :ok
end
