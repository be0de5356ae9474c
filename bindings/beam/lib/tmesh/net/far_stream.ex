# SPDX-License-Identifier: MIT
defmodule Tmesh.Net.FarStream do
  @moduledoc false
  # A stream's outfeed on another node. A sender beside the stream pops values, offers their memory, and sends them
  # with offers in place of refs. A reader beside the following stream opens these offers. Messages between them,
  # each {:tmesh_stream, 1, message}:
  #
  #   {:value, number, packed}    to the reader, with as many numbers as it has asked for
  #   {:more, count}              to the sender: so many values more
  #   {:opened, number}           its offers may end
  #   {:popped, number}           a consumer has it
  #
  # The sender holds a value until it was popped. So no unpopped value is lost with the reader.

  alias Tmesh.{Bundle, Error, Net}
  alias Tmesh.Net.Answer
  alias Tmesh.ZeroCopy.TensorRef

  @enforce_keys [:offer]
  defstruct @enforce_keys

  # Values that passed through a process are garbage there until it is collected.
  @idle_ms 1_000

  ## Sender

  @doc "Run the sender of `stream`, until the reader or the stream is gone."
  @spec serve(pid(), pid()) :: :ok
  def serve(stream, reader) do
    monitor = Process.monitor(reader)
    pop(%{stream: stream, reader: reader, monitor: monitor, credit: 0, next: 1, pop: nil, sent: []})
  end

  defp pop(%{credit: credit, pop: nil} = state) when credit > 0 do
    serve_next(%{
      state
      | credit: credit - 1,
        pop: :gen_server.send_request(state.stream, {{:pop, :outfeed}, :infinity})
    })
  end

  defp pop(state), do: serve_next(state)

  defp serve_next(%{monitor: monitor} = state, idle_ms \\ @idle_ms) do
    receive do
      {:tmesh_stream, 1, {:more, count}} when is_integer(count) and count > 0 ->
        pop(%{state | credit: state.credit + count})

      {:tmesh_stream, 1, {:opened, number}} ->
        pop(%{state | sent: Enum.map(state.sent, &opened(&1, number))})

      {:tmesh_stream, 1, {:popped, number}} when is_integer(number) ->
        {gone, sent} = Enum.split_with(state.sent, &(elem(&1, 0) <= number))
        Enum.each(gone, &withdraw/1)
        pop(%{state | sent: sent})

      {:DOWN, ^monitor, :process, _pid, _reason} ->
        give_back(state)

      message ->
        message |> popped(state) |> pop()
    after
      idle_ms ->
        :erlang.garbage_collect()
        serve_next(state, :infinity)
    end
  end

  defp popped(_message, %{pop: nil} = state), do: state

  defp popped(message, state) do
    case :gen_server.check_response(message, state.pop) do
      :no_reply -> state
      {:reply, result} -> offer(result, %{state | pop: nil})
      # The stream has ended.
      {:error, _reason} -> exit(:normal)
    end
  end

  defp offer(result, state) do
    {packed, offers} = pack(result)
    tell(state.reader, {:value, state.next, packed})
    sent = state.sent ++ [{state.next, result, offers}]
    %{state | next: state.next + 1, sent: sent}
  end

  defp opened({number, result, _offers} = entry, number) do
    withdraw(entry)
    {number, result, []}
  end

  defp opened(entry, _number), do: entry

  # Withdraw without a wait: the stream must go on even if the fetcher does not answer.
  defp withdraw({_number, _result, offers}), do: Enum.each(offers, &Net.withdraw_later/1)

  # Return the values in their order before newer ones, also a value that was on its way here.
  defp give_back(state) do
    :ok = GenServer.call(state.stream, {:return, []}, :infinity)

    state = last_pop(state)
    Enum.each(state.sent, &withdraw/1)
    :ok = GenServer.call(state.stream, {:return, for({_n, r, _o} <- state.sent, do: r)}, :infinity)
  end

  defp last_pop(%{pop: nil} = state), do: state

  defp last_pop(%{pop: pop} = state) do
    case :gen_server.receive_response(pop, 0) do
      {:reply, result} -> %{state | sent: state.sent ++ [{state.next, result, []}]}
      _none -> state
    end
  end

  ## Reader

  @doc "Run the reader of `stream`: send it the values of the stream `from`, at most `ahead` before they are popped."
  @spec read(pid(), GenServer.server() | String.t(), pos_integer()) :: :ok
  def read(stream, from, ahead) do
    with {:ok, server} <- find(from),
         {:ok, sender} <- attach(server) do
      monitor = Process.monitor(sender)
      tell(sender, {:more, ahead})
      receive_next(%{stream: stream, from: from, sender: sender, monitor: monitor, values: []})
    else
      {:error, error} -> finish(stream, error)
    end
  end

  defp find(name) when is_binary(name) do
    case Net.lookup(name) do
      {:ok, pid} when is_pid(pid) ->
        {:ok, pid}

      {:ok, _offer} ->
        why = "#{inspect(name)} is no stream: Tmesh.Net.open_name/1 opens it"
        {:error, Error.new(:invalid, why)}

      {:error, error} ->
        {:error, error}
    end
  end

  defp find(server), do: {:ok, server}

  defp attach(server) do
    GenServer.call(server, {:attach_far, self()}, :infinity)
  catch
    :exit, _reason -> {:error, Error.new(:closed, "the stream #{inspect(server)} does not run")}
  end

  # `values`: values in their order. A value that is being opened is {number, nil}. It leaves once a consumer could
  # have it.
  defp receive_next(%{monitor: monitor} = state, idle_ms \\ @idle_ms) do
    receive do
      {:tmesh_stream, 1, {:value, number, packed}} ->
        reader = self()
        _pid = spawn_link(fn -> send(reader, {:opened, number, unpack(packed)}) end)
        receive_next(%{state | values: state.values ++ [{number, nil}]})

      {:opened, number, result} ->
        tell(state.sender, {:opened, number})
        values = List.keyreplace(state.values, number, 0, {number, result})
        receive_next(%{state | values: hand_on(values, state.stream)})

      {:popped, number} ->
        tell(state.sender, {:popped, number})
        tell(state.sender, {:more, 1})
        receive_next(state)

      {:DOWN, ^monitor, :process, _pid, reason} ->
        last(state.values, state.stream)
        finish(state.stream, ended(state.from, reason))
    after
      idle_ms ->
        :erlang.garbage_collect()
        receive_next(state, :infinity)
    end
  end

  defp hand_on([{number, result} | rest], stream) when result != nil do
    send(stream, {:tmesh_far, self(), number, result})
    hand_on(rest, stream)
  end

  defp hand_on(values, _stream), do: values

  # Hand on the values of a stream that is gone, up to the first missing one.
  defp last([], _stream), do: :ok

  defp last([{number, nil} | _rest] = values, stream) do
    receive do
      {:opened, ^number, {:ok, _value} = result} ->
        values |> List.keyreplace(number, 0, {number, result}) |> hand_on(stream) |> last(stream)

      {:opened, ^number, _error} ->
        :ok
    end
  end

  defp last(values, stream), do: values |> hand_on(stream) |> last(stream)

  defp finish(stream, error) do
    send(stream, {:tmesh_far_end, self(), error})
    :ok
  end

  defp ended(from, :noconnection),
    do: Error.new(:gone, "the node of the stream #{inspect(from)} is gone, or cannot be reached")

  defp ended(from, _reason), do: Error.new(:closed, "the stream #{inspect(from)} has ended")

  ## Values

  # Offer refs and bundles in tuples, lists and maps.
  defp pack({:ok, value}) do
    {packed, offers} = walk(value, [], &offer_one/2)
    {{:ok, packed}, offers}
  catch
    {:tmesh_no_offer, error, offers} ->
      Enum.each(offers, &Net.withdraw_later/1)
      {{:error, error}, []}
  end

  defp pack({:error, _error} = result), do: {result, []}

  defp offer_one(%kind{} = what, offers) when kind in [TensorRef, Bundle] do
    case Net.offer(what) do
      {:ok, offer} -> {:ok, %__MODULE__{offer: offer}, [offer | offers]}
      {:error, error} -> throw({:tmesh_no_offer, error, offers})
    end
  end

  defp offer_one(_other, _offers), do: :other

  defp unpack({:ok, packed}) do
    {value, _opened} = walk(packed, [], &open_one/2)
    {:ok, value}
  catch
    {:tmesh_no_open, error} -> {:error, error}
  end

  defp unpack({:error, %Error{}} = result), do: result
  defp unpack(_garbage), do: {:error, no_value("it is neither a value nor an error")}

  defp no_value(why), do: Error.new(:protocol, "not a value of a stream: #{why}")

  defp open_one(%__MODULE__{offer: offer}, _opened) when not is_map(offer),
    do: throw({:tmesh_no_open, no_value("it has an offer that is no map")})

  defp open_one(%__MODULE__{offer: offer}, opened) do
    case Net.open(offer) do
      {:ok, what} ->
        forget(offer)
        {:ok, what, opened}

      {:error, error} ->
        throw({:tmesh_no_open, error})
    end
  end

  defp open_one(_other, _opened), do: :other

  # A value that passes is not kept: the consumer's ref holds it. An offer that opened in place may have any
  # members.
  @doc "Drop the kept copy of an open offer."
  @spec forget(term()) :: :ok
  def forget(%{"shards" => [_one | _more] = shards}) do
    if List.improper?(shards), do: :ok, else: Enum.each(shards, &forget/1)
  end

  def forget(%{"checksum" => checksum}) do
    _ = if Answer.hex?(checksum, 32), do: Tmesh.drop("net-" <> checksum)
    :ok
  end

  def forget(_nothing), do: :ok

  defp walk(term, acc, fun) do
    case fun.(term, acc) do
      {:ok, new, acc} -> {new, acc}
      :other -> walk_in(term, acc, fun)
    end
  end

  defp walk_in(term, acc, fun) when is_tuple(term) do
    {list, acc} = walk_in(Tuple.to_list(term), acc, fun)
    {List.to_tuple(list), acc}
  end

  defp walk_in([head | rest], acc, fun) do
    {head, acc} = walk(head, acc, fun)
    {rest, acc} = walk_in(rest, acc, fun)
    {[head | rest], acc}
  end

  defp walk_in(term, acc, fun) when is_map(term) and not is_struct(term) do
    {pairs, acc} =
      Enum.map_reduce(term, acc, fn {key, value}, acc ->
        {value, acc} = walk(value, acc, fun)
        {{key, value}, acc}
      end)

    {Map.new(pairs), acc}
  end

  defp walk_in(term, acc, _fun), do: {term, acc}

  # Do not reconnect a node that is gone.
  defp tell(to, message), do: :erlang.send(to, {:tmesh_stream, 1, message}, [:noconnect])
end
