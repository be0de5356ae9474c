# SPDX-License-Identifier: MIT
defmodule Tmesh.CloseTest do
  # A VM of one scheduler with a preload (support/close.c), in which the janitor takes long to close a channel's region.
  use Tmesh.Case, backend: :any

  @close System.get_env("TMESH_TEST_CLOSE_LIBRARY", "")
  @moduletag skip:
               if(not File.exists?(@close), do: "there is no close.so: make beam-check builds it")

  @code """
  {:ok, _apps} = Application.ensure_all_started(:tmesh)
  alias Tmesh.{Channel, Native, ZeroCopy}
  bytes = 1237 * 4096
  {:ok, out} = Channel.create(:send)
  {:ok, into} = Channel.open(out.token, :recv)
  ref = ZeroCopy.from_binary!(<<7::bytes*8>>, [bytes], :uint8)
  :ok = Channel.send(out, ref)
  {:ok, got} = Channel.recv(into)
  File.write!("hold", "")
  for one <- [got, ref], do: ZeroCopy.release!(one)
  spawn(&Native.sweep/0)
  held = fn held -> File.exists?("held") or Process.sleep(1) != :ok or held.(held) end
  held.(held)

  calls = [
    fn -> Native.channel_send(out.native, nil, "") end,
    fn -> Native.channel_recv(out.native, nil) end,
    fn -> Native.channel_call(out.native, into.native, nil, "") end,
    fn -> Native.channel_wait(out.native, make_ref()) end,
    fn -> Native.channel_watch(out.native, :readable) end,
    fn -> Native.channel_cancel(out.native) end
  ]

  monitors = for call <- calls, do: elem(:erlang.spawn_opt(call, [:monitor, priority: :high]), 1)
  :erlang.yield()
  File.rm!("hold")
  for monitor <- monitors, do: receive(do: ({:DOWN, ^monitor, _, _, :normal} -> :ok))
  IO.puts(if File.exists?("late"), do: "the scheduler waited", else: "other processes ran")
  System.halt(0)
  """

  test "calls on a channel that the janitor trims hold no scheduler" do
    folder = Path.join(System.tmp_dir!(), "close-#{System.pid()}-#{System.unique_integer()}")
    on_exit(fn -> File.rm_rf!(folder) end)
    File.mkdir_p!(folder)
    ebin = :tmesh |> :code.lib_dir() |> Path.join("ebin")
    options = ["--erl", "+S 1:1 -logger level warning", "-pa", ebin, "-e", @code]
    vm = [env: [{"LD_PRELOAD", @close}], cd: folder]
    assert System.cmd("elixir", options, vm) == {"other processes ran\n", 0}
  end
end
