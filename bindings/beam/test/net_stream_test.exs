# SPDX-License-Identifier: MIT
defmodule Tmesh.NetStreamTest do
  # The end of the offers of a stream that another node reads, with a stand-in for the net that reports its messages.
  use Tmesh.Case, backend: :any
  alias Tmesh.Net.LocalSecret

  @hex String.duplicate("0", 32)

  setup do
    me = self()

    net =
      spawn_link(fn ->
        Process.register(self(), Tmesh.Net)
        secret = LocalSecret.start()
        send(me, :began)
        net(me, secret, 1)
      end)

    assert_receive :began, 60_000

    on_exit(fn -> kill(net) end)

    {:ok, stream} = Tmesh.Stream.start_link()
    reader = spawn(fn -> relay(me) end)
    {:ok, sender} = GenServer.call(stream, {:attach_far, reader}, :infinity)
    ref = ZeroCopy.from_binary!("abcd", [4], :uint8)
    %{stream: stream, reader: reader, sender: sender, ref: ref}
  end

  # It does not offer refs with the token "none".
  defp net(test, secret, next) do
    receive do
      {:"$gen_call", from, {:local, ^secret, {:offer, "none"}}} ->
        GenServer.reply(from, {:error, Error.new(:gone, "the fetcher ended")})
        net(test, secret, next)

      {:"$gen_call", from, {:local, ^secret, {:offer, _token}}} ->
        offer = %{"home" => "a@b", "offer" => "#{next}", "checksum" => @hex, "region_bytes" => 4}
        GenServer.reply(from, {:ok, offer})
        send(test, {:offered, "#{next}"})
        net(test, secret, next + 1)

      {:"$gen_cast", {:local, ^secret, {:withdraw, id}}} ->
        send(test, {:withdrawn, id})
        net(test, secret, next)
    end
  end

  defp relay(to) do
    receive(do: (message -> send(to, message)))
    relay(to)
  end

  defp tell(sender, message), do: send(sender, {:tmesh_stream, 1, message})

  defp sent(stream, sender, value, number) do
    :ok = Tmesh.Stream.push_outfeed(stream, value)
    tell(sender, {:more, 1})
    assert_receive {:tmesh_stream, 1, {:value, ^number, packed}}, 60_000
    packed
  end

  test "when a reader has opened what it was offered", %{stream: stream, sender: sender, ref: ref} do
    assert {:ok, {_one, _two}} = sent(stream, sender, {ref, ref}, 1)
    tell(sender, {:opened, 1})
    for id <- ["1", "2"], do: assert_receive({:withdrawn, ^id}, 600_000)
    # And not once more.
    tell(sender, {:popped, 1})
    assert {:ok, _one} = sent(stream, sender, ref, 2)
    refute_received {:withdrawn, _any}
    ZeroCopy.release!(ref)
  end

  test "when a consumer has it, whatever its reader says of that", context do
    %{stream: stream, sender: sender, ref: ref} = context
    for number <- 1..2, do: sent(stream, sender, ref, number)
    tell(sender, {:popped, 1})
    assert_receive {:withdrawn, "1"}, 60_000
    refute_received {:withdrawn, "2"}
    tell(sender, {:popped, 2})
    assert_receive {:withdrawn, "2"}, 60_000
    ZeroCopy.release!(ref)
  end

  test "when the reader is gone, whose values are in the stream again", context do
    %{stream: stream, sender: sender, reader: reader, ref: ref} = context
    for number <- 1..2, do: sent(stream, sender, ref, number)
    Process.exit(reader, :kill)
    for _number <- 1..2, do: assert({:ok, ^ref} = Tmesh.Stream.pop_outfeed(stream, 600_000))
    for id <- ["1", "2"], do: assert_receive({:withdrawn, ^id}, 600_000)
    ZeroCopy.release!(ref)
  end

  test "when another part of its value cannot be offered", context do
    %{stream: stream, sender: sender, ref: ref} = context
    none = %TensorRef{ref | handle: nil, token: "none"}
    assert {:error, %Error{type: :gone}} = sent(stream, sender, [ref, none], 1)
    assert_receive {:withdrawn, "1"}, 60_000
    # The sender goes on.
    assert {:ok, _packed} = sent(stream, sender, ref, 2)
    refute_received {:withdrawn, "2"}
    ZeroCopy.release!(ref)
  end
end
