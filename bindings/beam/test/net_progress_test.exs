# SPDX-License-Identifier: MIT
defmodule Tmesh.NetProgressTest do
  # The progress messages of an open, with a stand-in for the fetcher that breaks off half way.
  # tests/net/test_beside.py has whole fetches.
  use Tmesh.Case, backend: :any
  alias Tmesh.Net

  @fetcher ~S"""
  import json, os, struct, sys

  def say(message):
      text = json.dumps({"v": 1, **message}).encode()
      try:
          sys.stdout.buffer.write(struct.pack(">I", len(text)) + text)
          sys.stdout.buffer.flush()
      except BrokenPipeError:
          os._exit(0)

  say({"type": "hello", "runtime_dir": sys.argv[0] + ".dir"})
  while head := sys.stdin.buffer.read(4):
      asked = json.loads(sys.stdin.buffer.read(struct.unpack(">I", head)[0]))
      number = {"id": asked["id"]}
      if asked["type"] == "offer":
          say({"type": "offered", "offer": "1" * 32, "checksum": "2" * 32, "bytes": 1000000, **number})
      elif asked["type"] == "grant":
          say({"type": "granted", "key": "3" * 16, "address": "ofi+tcp;ofi_rxm://192.0.2.1:1", **number})
      elif asked["type"] == "fetch":
          for told in 100, 500000:
              say({"type": "progress", "bytes": told, **number})
          say({"type": "error", "errno": "EPIPE", "message": "half of it", **number})
      elif asked["type"] == "find":
          say({"type": "error", "errno": "ENOENT", "message": "nothing is kept", **number})
      else:
          say({"type": "done", **number})
  """

  setup do
    # Any Python works: it needs no package.
    program = Tmesh.Fetcher.program("#!#{System.find_executable("python3")}\n" <> @fetcher)
    net = start_supervised!({Net, address: "127.0.0.1", program: program})
    ref = ZeroCopy.from_binary!("abcd", [4], :uint8)
    offer = Net.offer!(ref)
    ZeroCopy.release!(ref)
    {:ok, offer: offer, net: net}
  end

  test "all waiting processes that asked for it get the progress of a fetch", %{offer: offer} do
    assert {:error, %Error{type: :gone, message: "half of it"}} =
             Net.open(offer, progress: self(), timeout: 600_000)

    checksum = offer["checksum"]

    for bytes <- [100, 500_000],
        do:
          assert_received(
            {:tmesh_progress, %{checksum: ^checksum, bytes: ^bytes, region_bytes: 1_000_000}}
          )

    refute_received {:tmesh_progress, _more}
  end

  test "a process that did not ask gets no progress", %{offer: offer} do
    assert {:error, %Error{type: :gone}} = Net.open(offer, timeout: 600_000)
    refute_received {:tmesh_progress, _any}
  end
end
