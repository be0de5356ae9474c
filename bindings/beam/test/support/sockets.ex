# SPDX-License-Identifier: MIT
defmodule Tmesh.Sockets do
  @moduledoc false
  # Connected Unix sockets.

  @doc "Two ends, as `:socket` has them."
  def open(type \\ :stream) do
    path = Path.join(System.tmp_dir!(), "tmesh-#{System.pid()}-#{System.unique_integer()}")
    {:ok, listening} = :socket.open(:local, type)
    :ok = :socket.bind(listening, %{family: :local, path: path})
    :ok = :socket.listen(listening)
    {:ok, one} = :socket.open(:local, type)
    :ok = :socket.connect(one, %{family: :local, path: path})
    {:ok, other} = :socket.accept(listening)
    :ok = :socket.close(listening)
    File.rm!(path)
    {one, other}
  end

  @doc "The descriptors of two ends, for the rest of this process's life."
  def pair do
    {one, other} = open()
    Process.put({__MODULE__, make_ref()}, {one, other})
    {:ok, fd} = :socket.getopt(one, :otp, :fd)
    {:ok, other_fd} = :socket.getopt(other, :otp, :fd)
    {fd, other_fd}
  end

  @doc "The descriptor of an end whose other one is closed, for the rest of this process's life."
  def alone do
    {one, other} = open()
    :ok = :socket.close(other)
    Process.put({__MODULE__, make_ref()}, one)
    {:ok, fd} = :socket.getopt(one, :otp, :fd)
    fd
  end
end
