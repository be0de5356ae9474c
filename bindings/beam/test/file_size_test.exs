# SPDX-License-Identifier: MIT
defmodule Tmesh.FileSizeTest do
  # A VM in which RLIMIT_FSIZE bounds files, and with them memfds. A write past the limit must not end it.
  use Tmesh.Case, backend: :any

  # The limit comes after the start: the emulator itself begins with larger files.
  @worker """
  {:ok, _apps} = Application.ensure_all_started(:tmesh)
  {"", 0} = System.cmd("prlimit", ["--pid=" <> System.pid(), "--fsize=1048576"])
  name = "tmesh-test-" <> System.pid()
  {:ok, listener} = :socket.open(:local, :seqpacket)
  :ok = :socket.bind(listener, %{family: :local, path: <<0, name::binary>>})
  :ok = :socket.listen(listener)
  {:ok, socket} = Tmesh.Native.worker_connect(name)
  {:error, {errno, _why}} = Tmesh.Native.worker_send(socket, String.duplicate("x", 2_000_000))
  IO.puts(errno)
  """

  test "a message to a worker that is too long for a memfd is an error" do
    assert run(@worker) == {"efbig\n", 0}
  end

  # Run `code` in another VM. The parents of this one may ignore the signal.
  defp run(code) do
    ebin = :tmesh |> :code.lib_dir() |> Path.join("ebin")
    elixir = System.find_executable("elixir")
    options = ["--erl", "-logger level warning", "-pa", ebin, "-e", code]
    System.cmd("env", ["--default-signal=XFSZ", elixir | options])
  end
end
