# SPDX-License-Identifier: MIT
# A machine's node: does what the lines of its input say, and answers each with a line. Terms are
# in base64. It ends with its input.
#
#   elixir --name NODE -pa EBIN machine.exs ADDRESS

defmodule Machine do
  alias Tmesh.ZeroCopy

  def main([address]) do
    {:ok, _} = Application.ensure_all_started(:tmesh)
    net = {Tmesh.Net, address: address, lease_ms: 3_000}
    {:ok, _} = Supervisor.start_link([net], strategy: :one_for_one, max_restarts: 100)
    say("ready")
    loop([])
  end

  defp loop(held) do
    case IO.gets("") do
      :eof -> :ok
      line -> line |> String.split() |> act(held) |> loop()
    end
  end

  defp act(["connect", node], held) do
    say("#{Node.connect(String.to_atom(node))}")
    held
  end

  defp act(["offer", bytes, seed], held) do
    bytes = String.to_integer(bytes)
    data = data(bytes, seed)
    ref = ZeroCopy.from_binary!(data, [bytes], :uint8)

    {:ok, offer} = Tmesh.Net.offer(ref)
    say("#{encode(offer)} #{digest(data)}")
    [{ref, offer} | held]
  end

  # A bundle of tensors in regions of their own.
  defp act(["publish", name, count, bytes, seed], held) do
    bytes = String.to_integer(bytes)

    tensors =
      for number <- 1..String.to_integer(count) do
        data = data(bytes + number, "#{seed}#{number}")
        {"tensor#{number}", ZeroCopy.from_binary!(data, [bytes + number], :uint8)}
      end

    bundle = Tmesh.Bundle.put!(tensors, metadata: seed)
    Enum.each(tensors, fn {_name, ref} -> ZeroCopy.release!(ref) end)

    case Tmesh.Net.publish(name, bundle) do
      :ok -> say("ok #{digest(bundle)}")
      {:error, error} -> say("error:#{error.type}")
    end

    [bundle | held]
  end

  # By a process that ends.
  defp act(["publish_briefly", name], held) do
    task =
      Task.async(fn -> Tmesh.Net.publish!(name, ZeroCopy.from_binary!("brief", [5], :uint8)) end)

    say("#{Task.await(task)}")
    held
  end

  defp act(["unpublish", name], held) do
    case Tmesh.Net.unpublish(name) do
      :ok -> say("ok")
      {:error, error} -> say("error:#{error.type}")
    end

    held
  end

  defp act(["names"], held) do
    say(Enum.join(Tmesh.Net.names(), " "))
    held
  end

  defp act(["open_name", name, timeout], held) do
    case Tmesh.Net.open_name(name, timeout: String.to_integer(timeout)) do
      {:ok, %Tmesh.Bundle{} = bundle} ->
        say("#{digest(bundle)} #{bundle.metadata}")
        Tmesh.Bundle.release(bundle)

      {:error, error} ->
        say("error:#{error.type}")
    end

    held
  end

  defp act(["withdraw", offer], held) do
    case Tmesh.Net.withdraw(decode(offer)) do
      :ok -> say("ok")
      {:error, error} -> say("error #{error.type}")
    end

    held
  end

  # So many processes at once; each looks at the bytes.
  defp act(["open", count, timeout, offer], held) do
    offer = decode(offer)
    timeout = String.to_integer(timeout)

    1..String.to_integer(count)
    |> Enum.map(fn _number -> Task.async(fn -> open(offer, timeout) end) end)
    |> Task.await_many(:infinity)
    |> Enum.uniq()
    |> Enum.join(" ")
    |> say()

    held
  end

  # All keys that a home gives to one reader, until they are given back or this node ends.
  defp act(["take_keys", home, offer], held) do
    %{"offer" => id} = decode(offer)
    home = {Tmesh.Net, String.to_existing_atom(home)}
    me = self()

    holder =
      spawn(fn ->
        for _ <- 1..80, do: send(home, {:tmesh_net, 1, {:lease, self(), make_ref(), id}})

        keys =
          for _ <- 1..80,
              {:ok, key, _address} <- [
                receive(do: ({:tmesh_net, 1, {:answer, _h, _n, answer}} -> answer))
              ],
              do: key

        send(me, {:keys, length(keys)})
        renew(home, keys)
      end)

    receive(do: ({:keys, count} -> say("#{count}")))
    [{:holder, holder} | held]
  end

  # Somebody waits already when they are given back.
  defp act(["open_and_give_back", timeout, offer], held) do
    {:holder, holder} = List.keyfind!(held, :holder, 0)
    spawn(fn -> Process.sleep(1_000) && Process.exit(holder, :kill) end)
    say(open(decode(offer), String.to_integer(timeout)))
    List.keydelete(held, :holder, 0)
  end

  # As other programs get it.
  defp act(["json", offer], held) do
    {:ok, %{json: json}} = offer |> decode() |> Tmesh.Worker.Payload.encode()
    say(IO.iodata_to_binary(json))
    held
  end

  # Open, and stay open; and what is there later.
  defp act(["hold", offer], held) do
    ref = Tmesh.Net.open!(decode(offer))
    say(digest(ZeroCopy.to_binary!(ref, copy: false)))
    [{:held, ref} | held]
  end

  defp act(["look"], held) do
    {:held, ref} = List.keyfind!(held, :held, 0)
    say(digest(ZeroCopy.to_binary!(ref, copy: false)))
    held
  end

  # Without a net's help: how long it takes to see the first byte.
  defp act(["plain", offer], held) do
    case ZeroCopy.open(decode(offer)) do
      {:ok, _ref} -> say("ok")
      {:error, error} -> say("#{error.type} #{encode(error.message)}")
    end

    held
  end

  defp act(["stats"], held) do
    case Tmesh.Net.stats() do
      {:ok, stats} -> say(Enum.map_join(stats, " ", fn {name, count} -> "#{name}=#{count}" end))
      {:error, error} -> say("error #{error.type}")
    end

    held
  end

  # A stream by name, and who pushes so many tensors into its outfeed.
  defp act(["feed", name, count, bytes, seed], held) do
    bytes = String.to_integer(bytes)
    {:ok, stream} = Tmesh.Stream.start_link(outfeed_limit: 1)
    :ok = Tmesh.Net.publish(name, stream)
    all = for number <- 1..String.to_integer(count), do: data(bytes, "#{seed}#{number}")

    spawn_link(fn ->
      for data <- all do
        ref = ZeroCopy.from_binary!(data, [bytes], :uint8)
        Tmesh.Stream.push_outfeed(stream, %{"x" => {ref, byte_size(data)}})
      end
    end)

    say(Enum.map_join(all, " ", &digest/1))
    [{:stream, stream} | held]
  end

  defp act(["follow", name, ahead], held) do
    {:ok, stream} = Tmesh.Stream.start_link(from: name, ahead: String.to_integer(ahead))
    say("ok")
    [{:stream, stream} | held]
  end

  defp act(["pop", count], held) do
    {:stream, stream} = List.keyfind!(held, :stream, 0)

    1..String.to_integer(count)
    |> Enum.map_join(" ", fn _number ->
      case Tmesh.Stream.pop_outfeed(stream, 60_000) do
        {:ok, %{"x" => {ref, bytes}}} ->
          ^bytes = ref.byte_size
          sum = digest(ZeroCopy.to_binary!(ref, copy: false))
          ZeroCopy.release!(ref)
          sum

        {:error, error} ->
          "error:#{error.type}"
      end
    end)
    |> say()

    held
  end

  defp act(["unfollow"], held) do
    {:stream, stream} = List.keyfind!(held, :stream, 0)
    say("#{GenServer.stop(stream)}")
    List.keydelete(held, :stream, 0)
  end

  # Nothing is offered, held or kept any more.
  defp act(["clean"], held) do
    for {:held, ref} <- held, do: ZeroCopy.release(ref)
    for {:stream, stream} <- held, do: GenServer.stop(stream)

    for {ref, offer} when ref not in [:held, :holder, :stream] <- held,
        do: {Tmesh.Net.withdraw(offer), ZeroCopy.release(ref)}

    for %Tmesh.Bundle{} = bundle <- held, do: Tmesh.Bundle.release(bundle)
    Enum.each(Tmesh.Net.names(), &Tmesh.Net.unpublish/1)
    for kept <- Tmesh.kept!(), do: Tmesh.drop(kept.name)
    Enum.each(Process.list(), &:erlang.garbage_collect/1)
    say("ok")
    []
  end

  defp act(["kept"], held) do
    say("#{length(Tmesh.kept!())}")
    held
  end

  defp renew(home, keys) do
    for key <- keys, do: send(home, {:tmesh_net, 1, {:renew, self(), key}})
    Process.sleep(500)
    renew(home, keys)
  end

  defp open(offer, timeout) do
    case Tmesh.Net.open(offer, timeout: timeout) do
      {:ok, ref} ->
        sum = digest(ZeroCopy.to_binary!(ref, copy: false))
        ZeroCopy.release!(ref)
        sum

      {:error, error} ->
        "error:#{error.type}"
    end
  end

  defp data(bytes, seed),
    do: binary_part(String.duplicate(:crypto.hash(:sha512, seed), div(bytes, 64) + 1), 0, bytes)

  defp digest(%Tmesh.Bundle{} = bundle) do
    bundle
    |> Enum.map(fn {name, ref} -> [name, ZeroCopy.to_binary!(ref, copy: false)] end)
    |> digest()
  end

  defp digest(data), do: data |> :erlang.md5() |> Base.encode16(case: :lower)
  defp encode(term), do: term |> :erlang.term_to_binary() |> Base.encode64()
  defp decode(text), do: text |> Base.decode64!() |> :erlang.binary_to_term()
  defp say(text), do: IO.puts("> " <> text)
end

Machine.main(System.argv())
