# SPDX-License-Identifier: MIT
defmodule Tmesh.XLATest do
  use Tmesh.Case, backend: :any
  alias Tmesh.{Channel, XLA}

  test "names are bound, found and given up" do
    {:ok, inbox} = Channel.create(:recv)
    {:ok, outbox} = Channel.create(:send)
    assert XLA.bind("out", inbox.token, :send) == :ok
    assert XLA.bind("in", outbox.token, :recv) == :ok
    assert XLA.flush("out", 1_000) == :ok
    assert XLA.flush("out") == :ok
    assert {:error, %Error{type: :closed}} = XLA.flush("in", 0)
    assert XLA.cancel("in") == :ok
    assert XLA.limit(1_000) == :ok
    assert XLA.limit(0) == :ok
    assert XLA.unbind!("in") == :ok
    assert XLA.unbind("out") == :ok

    for call <- [&XLA.unbind/1, &XLA.cancel/1, &XLA.flush/1],
        do: assert({:error, %Error{type: :not_found}} = call.("out"))

    :ok = Channel.close(inbox)
    :ok = Channel.close(outbox)
  end

  test "what is wrong is refused" do
    {:ok, inbox} = Channel.create(:recv)

    for {name, token, role, type} <- [
          {"", inbox.token, :send, :invalid},
          {String.duplicate("x", 128), inbox.token, :send, :invalid},
          {"a\nb", inbox.token, :send, :invalid},
          {"a\0b", inbox.token, :send, :invalid},
          {:atom, inbox.token, :send, :invalid},
          {"a", inbox.token, :both, :invalid},
          {"a", inbox.token, "send", :invalid},
          {"a", "nonsense", :send, :protocol},
          {"a", :token, :send, :protocol}
        ] do
      assert {:error, %Error{type: ^type}} = XLA.bind(name, token, role)
    end

    for bad <- [-1, 1.5, :much, 2 ** 64],
        do: assert({:error, %Error{type: :invalid}} = XLA.limit(bad))

    assert {:error, %Error{type: :not_found} = error} = XLA.register()
    assert error.message =~ "libxla_extension.so is not loaded"
    assert {:error, %Error{type: :unsupported}} = XLA.register("libc.so.6")
    assert {:error, %Error{type: :invalid}} = XLA.register(5)
    :ok = Channel.close(inbox)
  end
end
