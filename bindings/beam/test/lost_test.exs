# SPDX-License-Identifier: MIT
defmodule Tmesh.LostTest do
  # A VM that ends at once after it has sent: what it sent waits for who comes, and what is lost is said.
  use Tmesh.Case, backend: :any
  alias Tmesh.Channel

  @send """
  {:ok, _apps} = Application.ensure_all_started(:tmesh)
  alias Tmesh.{Channel, ZeroCopy}
  out = Channel.create!(:send)
  for n <- 1..10, do: :ok = Channel.send(out, ZeroCopy.from_binary!(<<n>>, [1], :uint8))
  IO.puts(out.token)
  """

  # What Logger is given is told to the one who closes, who then has nothing more to do. The janitor looks for
  # nothing by itself.
  @close """
  Application.put_env(:tmesh, :zero_copy, cleanup_interval_ms: 0)
  #{@send}
  tell = fn event, pid -> send(pid, {event.level, event.msg}) && :ignore end
  :ok = :logger.add_primary_filter(:told, {tell, self()})
  :ok = Channel.close(out)

  receive do
    {:warning, {:string, text}} -> IO.puts(["Logger: ", text])
  after
    60_000 -> IO.puts("Logger was told nothing")
  end
  """

  test "by System.stop/1, whose processes close their ends first" do
    {vm, token} = start(@send <> "System.stop(0)\nProcess.sleep(:infinity)", "600")
    # It would have ended meanwhile.
    refute_receive {^vm, {:exit_status, _status}}, 3_000
    into = Channel.open!(token, :recv)
    assert for(_n <- 1..10, do: received(into)) == Enum.to_list(1..10)
    assert {:error, %Error{type: :gone}} = Channel.recv(into)
    assert rest(vm) == {"", 0}
  end

  # By the library at the very end, or by what has closed the end before that; a VM that stops slowly hands what was
  # said meanwhile to a Logger that it does not wait for, so the wait is longer than that.
  test "what nobody comes for is said when the VM ends" do
    for how <- ["", "System.halt(0)", "System.stop(0)\nProcess.sleep(:infinity)"] do
      {vm, _token} = start(@send <> how, "1")
      assert {said, 0} = rest(vm)
      assert said =~ ~r/^tmesh: process \d+.* 1 s .*: 10 messages (are|may be) lost\n$/
    end
  end

  test "what nobody comes for is given to Logger when its channel was closed" do
    {vm, _token} = start(@close, "0.05")
    assert {"Logger: tmesh: a channel was closed" <> said, 0} = rest(vm)
    assert said =~ ~r/^.* within 0.05 s .*: 10 messages are lost\n$/
  end

  # A VM that runs `code`, and what it says first.
  defp start(code, linger) do
    ebin = :tmesh |> :code.lib_dir() |> Path.join("ebin")
    args = ["--erl", "-logger level warning", "-pa", ebin, "-e", code]
    env = [{~c"TMESH_LINGER", String.to_charlist(linger)}]
    elixir = System.find_executable("elixir")
    options = [:binary, :exit_status, :stderr_to_stdout, line: 1000, args: args, env: env]
    vm = Port.open({:spawn_executable, elixir}, options)
    assert_receive {^vm, {:data, {:eol, token}}}
    {vm, token}
  end

  # What it says then, and how it ends.
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
