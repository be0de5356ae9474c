# SPDX-License-Identifier: MIT
defmodule Tmesh.LostTest do
  # A VM that ends at once after it has sent. Its messages wait for a receiver, and lost ones are reported.
  use Tmesh.Case, backend: :any
  alias Tmesh.Channel

  @send """
  {:ok, _apps} = Application.ensure_all_started(:tmesh)
  alias Tmesh.{Channel, ZeroCopy}
  out = Channel.create!(:send)
  for n <- 1..10, do: :ok = Channel.send(out, ZeroCopy.from_binary!(<<n>>, [1], :uint8))
  IO.puts(out.token)
  """

  # A filter of Logger sends each event to the process that closes, which does nothing else. The janitor does not look
  # without a message.
  @close """
  Application.put_env(:tmesh, :zero_copy, cleanup_interval_ms: 0)
  #{@send}
  tell = fn event, pid -> send(pid, {event.level, event.msg}) && :ignore end
  :ok = :logger.add_primary_filter(:told, {tell, self()})
  :ok = Channel.close(out)

  receive do
    {:warning, {:string, text}} -> IO.puts(["Logger: ", text])
  after
    60_000 -> IO.puts("Logger got nothing")
  end
  """

  test "by System.stop/1, whose processes close their ends first" do
    {vm, token} = start(@send <> "System.stop(0)\nProcess.sleep(:infinity)", "600")
    # Without the wait it would have ended meanwhile.
    refute_receive {^vm, {:exit_status, _status}}, 3_000
    into = Channel.open!(token, :recv)
    assert for(_n <- 1..10, do: received(into)) == Enum.to_list(1..10)
    assert {:error, %Error{type: :gone}} = Channel.recv(into)
    assert rest(vm) == {"", 0}
  end

  # The library reports it at the very end, or when the end is closed before. A VM that stops slowly passes the report
  # to a Logger that it does not wait for. So the wait is longer than that.
  test "the VM's end reports memory that no process opened" do
    for how <- ["", "System.halt(0)", "System.stop(0)\nProcess.sleep(:infinity)"] do
      {vm, _token} = start(@send <> how, "1")
      assert {said, 0} = rest(vm)
      assert said =~ ~r/^tmesh: process \d+.* 1 s .*: 10 messages (are|may be) lost\n$/
    end
  end

  test "the VM's end waits only if it was asked to" do
    for how <- ["", "System.stop(0)\nProcess.sleep(:infinity)"] do
      {vm, _token} = start(@send <> how, "")
      assert {said, 0} = rest(vm)
      assert said =~ ~r/^tmesh: process \d+.* the 0 s that it waited .*: 10 messages may be lost\n$/
    end
  end

  test "messages without a receiver are reported to Logger when their channel was closed" do
    {vm, _token} = start(@close, "0.05")
    assert {"Logger: tmesh: a channel was closed" <> said, 0} = rest(vm)
    assert said =~ ~r/^.* within 0.05 s .*: 10 messages are lost\n$/
  end

  # Start a VM that runs `code`, and return its first output.
  defp start(code, exit_wait) do
    ebin = :tmesh |> :code.lib_dir() |> Path.join("ebin")
    args = ["--erl", "-logger level warning", "-pa", ebin, "-e", code]
    env = [{~c"TMESH_EXIT_WAIT", String.to_charlist(exit_wait)}]
    elixir = System.find_executable("elixir")
    options = [:binary, :exit_status, :stderr_to_stdout, line: 1000, args: args, env: env]
    vm = Port.open({:spawn_executable, elixir}, options)
    assert_receive {^vm, {:data, {:eol, token}}}
    {vm, token}
  end

  # Return its later output, and its exit status.
  defp rest(vm, said \\ "") do
    receive do
      {^vm, {:data, {:eol, line}}} -> rest(vm, said <> line <> "\n")
      {^vm, {:exit_status, status}} -> {said, status}
    end
  end

  defp received(into) do
    {:ok, ref} = Channel.recv(into, 60_000)
    <<n>> = ZeroCopy.to_binary!(ref)
    n
  end
end
