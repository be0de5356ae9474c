# SPDX-License-Identifier: MIT
defmodule Tmesh.Peer do
  @moduledoc false
  # Another process that uses tmesh: it answers each line of input with one line.

  alias Tmesh.ZeroCopy.TensorRef

  @line_bytes 65_536

  @doc "The C peer (peer.c)."
  def start, do: open(System.fetch_env!("TMESH_TEST_PEER"), [])

  @doc "Any program of the kind."
  def open(program, args) do
    Port.open({:spawn_executable, program}, [:binary, line: @line_bytes, args: args])
  end

  @doc "What it answers to a line."
  def call(port, line) do
    Port.command(port, line <> "\n")

    receive do
      {^port, {:data, {:eol, answer}}} -> answer
    after
      60_000 -> raise "the peer did not answer to #{line}"
    end
  end

  @doc "Have it make a tensor of `bytes` bytes; its ref here, not opened."
  def put(port, bytes, how) do
    {:ok, ref} = port |> call("#{how} #{bytes}") |> TensorRef.from_json()
    ref
  end

  @doc "What the peer puts: bytes that count up to 250 and start again."
  def pattern(bytes), do: for(i <- 0..(bytes - 1)//1, into: <<>>, do: <<rem(i, 251)>>)

  @doc "Send it a signal such as \"KILL\"."
  def signal(port, name) do
    {:os_pid, pid} = Port.info(port, :os_pid)
    {_output, 0} = System.cmd("kill", ["-#{name}", "#{pid}"])
    :ok
  end

  @doc "Kill it, and see it gone."
  def kill(port) do
    {:os_pid, pid} = Port.info(port, :os_pid)
    :ok = signal(port, "KILL")
    Tmesh.Case.eventually(fn -> not File.exists?("/proc/#{pid}/fd/0") end)
  end
end
