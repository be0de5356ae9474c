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

  @doc "Return its answer to a line."
  def call(port, line) do
    Port.command(port, line <> "\n")

    receive do
      {^port, {:data, {:eol, answer}}} -> answer
    after
      600_000 -> raise "the peer did not answer to #{line}"
    end
  end

  @doc "Have it put a tensor of `bytes` bytes, and return the ref, not opened."
  def put(port, bytes) do
    {:ok, ref} = port |> call("put #{bytes}") |> TensorRef.from_json()
    ref
  end

  @doc "Return the bytes that the peer puts: they count up to 250 and start again."
  def pattern(bytes), do: for(i <- 0..(bytes - 1)//1, into: <<>>, do: <<rem(i, 251)>>)

  @doc "Make each open ask the peer, on memfds: processes find it by its socket alone."
  def hide(port, ref) do
    ["tm1m", name, _secret] = String.split(ref.token, "-")
    [link] = Path.wildcard("/proc/#{pid(port)}/fd/*/#{name}.index")
    File.rm!(link)
  end

  @doc "Send it a signal such as \"KILL\"."
  def signal(port, name) do
    {_output, 0} = System.cmd("kill", ["-#{name}", "#{pid(port)}"])
    :ok
  end

  @doc "Stop it, and wait until each of its threads has stopped. It goes on when the test ends."
  def stop(port) do
    pid = pid(port)
    # A stopped process does not see that its input has ended.
    ExUnit.Callbacks.on_exit(fn ->
      System.cmd("kill", ["-CONT", "#{pid}"], stderr_to_stdout: true)
    end)

    :ok = signal(port, "STOP")

    Tmesh.Case.eventually(fn ->
      Enum.all?(Path.wildcard("/proc/#{pid}/task/*/stat"), &stopped?(File.read(&1)))
    end)
  end

  # A peer that has ended meanwhile does nothing, either.
  defp stopped?({:ok, stat}), do: stat =~ ~r/\) T /
  defp stopped?({:error, _gone}), do: true

  @doc "Kill it, and wait for its end."
  def kill(port) do
    pid = pid(port)
    :ok = signal(port, "KILL")
    Tmesh.Case.eventually(fn -> not File.exists?("/proc/#{pid}") end)
  end

  defp pid(port) do
    {:os_pid, pid} = Port.info(port, :os_pid)
    pid
  end
end
