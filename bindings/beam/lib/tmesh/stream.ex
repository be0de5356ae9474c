# SPDX-License-Identifier: MIT
defmodule Tmesh.Stream do
  @moduledoc """
  A process between a computation and the rest of the VM. It has two bounded queues: the *infeed* towards the
  computation and the *outfeed* from it.

      {:ok, _pid} = Tmesh.Stream.start_link(name: :my_stream)
      :ok = Tmesh.Stream.push_infeed(:my_stream, batch)
      {:ok, result} = Tmesh.Stream.pop_outfeed(:my_stream)

  The computation calls `pop_infeed/2` and `push_outfeed/3`. Values are any terms. Tensors travel as
  `Tmesh.ZeroCopy.TensorRef`s or binaries, and their bytes are not copied. Each queue keeps its order, also among
  waiting processes.

  ## Bounds and time

  A push into a full queue waits for room, and a pop from an empty queue for a value. With a `timeout`, in
  milliseconds, the wait ends with `:timeout`, and nothing was pushed or popped. If a waiting process dies, its wait
  ends, and the value that it was about to push is dropped.

  ## Errors

  Without such a process, or if it ends during a wait, the result is `:closed`.

  ## Native code

  Code in this VM that has the process's pid sends `{:tmesh_outfeed, value}` with `enif_send`, which cannot wait.
  Such values enter the outfeed like others while there is room. Later values are lost. Then the pop that would have
  got the first lost value gives `:limit_exceeded`, with their number in `details.lost`.

  ## Other processes

  `attach_channel/2` gives the token of a `Tmesh.Channel`. Another process, in any of tmesh's languages, sends
  values there, and they come out of the outfeed in its order. The sender waits while the outfeed and the channel
  are full, and nothing is lost.

      {:ok, token} = Tmesh.Stream.attach_channel(:my_stream)
      # Python: out = tmesh.Channel.open(token, "send"); out.send(tensor)
      {:ok, %Tmesh.ZeroCopy.TensorRef{} = ref} = Tmesh.Stream.pop_outfeed(:my_stream)

  When the last sender is gone, also by a kill, the pop after its last value gives `:gone`.

  With `feed: :infeed` values that are pushed into the infeed go through the channel to its receiver, such as a JAX
  program with `tmesh.xla.pop`. A push waits while the channel and the infeed are full.

      {:ok, token} = Tmesh.Stream.attach_channel(:my_stream, feed: :infeed)
      # Python: tmesh.xla.bind("batches", token, "recv")
      :ok = Tmesh.Stream.push_infeed(:my_stream, Tmesh.ZeroCopy.from_binary!(bytes, shape, :float32))

  Such a stream takes only values that channels carry, and refuses others (`:invalid`). When the last receiver is
  gone, pushes give `:gone`. Values that the channel had not got yet stay in the infeed and go to the next attached
  channel.

  ## Other nodes

  With `from:` a stream follows the outfeed of another stream, on this or another node. The values come out here in
  the same order, with tensors as refs of this node.

      # at home, where Tmesh.Net runs
      {:ok, stream} = Tmesh.Stream.start_link(name: :batches)
      :ok = Tmesh.Net.publish("batches", stream)
      # on another node, where it runs too
      {:ok, batches} = Tmesh.Stream.start_link(from: "batches", ahead: 4)
      {:ok, %{x: %Tmesh.ZeroCopy.TensorRef{}}} = Tmesh.Stream.pop_outfeed(batches)

  `Tmesh.Net` opens sealed refs and bundles, also in tuples, lists and maps. If a value has other refs, or if
  `Tmesh.Net.offer/1` or `Tmesh.Net.open/2` fails, the pop that would have got the value gives the error. The next
  pop gets the next value. At most `ahead` values are fetched before they are popped, so a full outfeed still delays
  pushes at home. A fetched copy lives as long as the consumer's refs.

  When the following stream ends, its unpopped values return to the front of the outfeed at home. When the followed
  stream ends, the fetched values still come. Then each pop gives `:closed`, or `:gone` if the node is gone or
  cannot be reached. To begin anew, call `start_link/1`. A value that was popped at the moment when the nodes lost
  each other comes again.

  ## Terms in tensors

  A computation that takes only tensors can still get the name of a process: `encode_term/2` turns any term into the
  bytes of a tensor. A pid of a named or another node works, too.
  """

  use GenServer

  use Tmesh.Bang,
      ~w(push_infeed/3 pop_outfeed/2 pop_infeed/2 push_outfeed/3 attach_channel/2 encode_term/2
         decode_term/1)

  import Tmesh.Options, only: [is_timeout: 1, no_timeout: 0]

  alias Tmesh.{Channel, Error, Native}
  alias Tmesh.Net.FarStream
  alias Tmesh.ZeroCopy.TensorRef

  @type stream :: GenServer.server()
  @type attach_option :: {:feed, :infeed | :outfeed} | {:token, String.t()} | Channel.option()

  @default_limit 16
  @most_ahead 64
  # Values that passed through a process are garbage there until it is collected. It is collected after this time
  # without a message.
  @idle_ms 1_000

  defmodule Queue do
    @moduledoc false
    # `values`, and the processes that wait for a value or for room: never both kinds at once. `passed`: how many values
    # may be garbage here. The entries are:
    #
    # {:value, value}
    # {:lost, count} of values of senders that could not wait
    # {:error, error} of a channel
    # {:far, number, result} of the followed stream
    defstruct [
      :limit,
      size: 0,
      passed: 0,
      values: :queue.new(),
      takers: :queue.new(),
      givers: :queue.new()
    ]
  end

  @doc """
  Start a stream.

  Options:

    * `name`
    * `infeed_limit`, `outfeed_limit` - the bounds of the queues (#{@default_limit} values each)
    * `from` - the stream to follow: a pid, `{name, node}` or the name given to `Tmesh.Net.publish/2`. If there is no
      such stream, the pops give the error
    * `ahead` - how many values of that stream are fetched before they are popped (2; at most #{@most_ahead})
  """
  @spec start_link(
          name: GenServer.name(),
          infeed_limit: pos_integer(),
          outfeed_limit: pos_integer(),
          from: stream() | String.t(),
          ahead: pos_integer()
        ) :: GenServer.on_start() | {:error, Error.t()}
  def start_link(opts \\ []) do
    with {:ok, opts} <- options(opts) do
      {server, limits} = Keyword.split(opts, [:name])
      GenServer.start_link(__MODULE__, limits, [hibernate_after: @idle_ms] ++ server)
    end
  end

  @doc """
  Return a child specification for a supervisor. The child's id is the stream's name, so that several streams can be
  children of one supervisor.

      children = [{Tmesh.Stream, name: :words}, {Tmesh.Stream, name: :pictures}]
  """
  @spec child_spec(keyword()) :: Supervisor.child_spec()
  def child_spec(opts) do
    named = Keyword.keyword?(opts) and opts[:name]
    %{id: named || __MODULE__, start: {__MODULE__, :start_link, [opts]}}
  end

  @doc """
  Push a value into the infeed, for the computation.

      iex> {:ok, stream} = Tmesh.Stream.start_link(infeed_limit: 1)
      iex> Tmesh.Stream.push_infeed(stream, :first)
      :ok
      iex> {:error, error} = Tmesh.Stream.push_infeed(stream, :second, 10)
      iex> error.type
      :timeout
  """
  @spec push_infeed(stream(), term(), timeout()) :: :ok | {:error, Error.t()}
  def push_infeed(stream, value, timeout \\ :infinity),
    do: ask(stream, {:push, :infeed, value}, timeout)

  @doc """
  Pop the next value from the outfeed, which the computation fills.

      iex> {:ok, stream} = Tmesh.Stream.start_link()
      iex> :ok = Tmesh.Stream.push_outfeed(stream, 42)
      iex> Tmesh.Stream.pop_outfeed(stream)
      {:ok, 42}
  """
  @spec pop_outfeed(stream(), timeout()) :: {:ok, term()} | {:error, Error.t()}
  def pop_outfeed(stream, timeout \\ :infinity), do: ask(stream, {:pop, :outfeed}, timeout)

  @doc "The computation's side of `push_infeed/3`."
  @spec pop_infeed(stream(), timeout()) :: {:ok, term()} | {:error, Error.t()}
  def pop_infeed(stream, timeout \\ :infinity), do: ask(stream, {:pop, :infeed}, timeout)

  @doc "The computation's side of `pop_outfeed/2`."
  @spec push_outfeed(stream(), term(), timeout()) :: :ok | {:error, Error.t()}
  def push_outfeed(stream, value, timeout \\ :infinity),
    do: ask(stream, {:push, :outfeed, value}, timeout)

  @doc """
  Attach a channel to the outfeed and return its token. Values that other processes send there come out of the
  outfeed. With `feed: :infeed`, the values that are pushed into the infeed go to other processes.

  Other options are those of `Tmesh.Channel.create/2`. To join an existing channel, give its `token` and the options
  of `Tmesh.Channel.open/3`. An outfeed may have several channels, an infeed one at a time (`:busy`).

  If a message cannot be received, the pop that would have got it gives the error of `Tmesh.Channel.recv/2`. The error's
  `details.channel` has the first 13 characters of the channel's token. After any error but `:not_found` the channel
  is closed.

  A value that the infeed's channel refuses, for example because its tensor was released, is lost. The next push
  then fails with the error of `Tmesh.Channel.send/3`, also with `details.channel`.

  Errors: `:closed`, `:busy`, `:invalid` (also: the infeed has values that no channel carries), and those of
  `create/2` and `open/3`.

      iex> {:ok, stream} = Tmesh.Stream.start_link()
      iex> {:ok, token} = Tmesh.Stream.attach_channel(stream)
      iex> {:ok, channel} = Tmesh.Channel.open(token, :send)
      iex> :ok = Tmesh.Channel.send(channel, "from afar")
      iex> Tmesh.Stream.pop_outfeed(stream)
      {:ok, "from afar"}
  """
  @spec attach_channel(stream(), [attach_option()]) ::
          {:ok, token :: String.t()} | {:error, Error.t()}
  def attach_channel(stream, opts \\ []) do
    with true <- Keyword.keyword?(opts),
         {feed, opts} when feed in [:infeed, :outfeed] <- Keyword.pop(opts, :feed, :outfeed) do
      call(stream, {:attach, feed, opts})
    else
      _wrong ->
        {:error,
         Error.new(:invalid, "options are a keyword list, and feed: is :infeed or :outfeed")}
    end
  end

  @doc """
  Encode a term as the bytes of a `uint8` tensor of `size` elements: its length in eight bytes, the external format,
  zeros. The size does not depend on the term, so a computation is compiled only once.

  Errors: `:limit_exceeded` (it does not fit).

      iex> {:ok, bytes} = Tmesh.Stream.encode_term({:tag, 1}, 64)
      iex> {byte_size(bytes), Tmesh.Stream.decode_term(bytes)}
      {64, {:ok, {:tag, 1}}}
  """
  @spec encode_term(term(), pos_integer()) :: {:ok, binary()} | {:error, Error.t()}
  def encode_term(term, size \\ 512) do
    external = :erlang.term_to_binary(term)
    left = size - 8 - byte_size(external)

    if left >= 0,
      do: {:ok, <<byte_size(external)::64-little, external::binary, 0::size(left * 8)>>},
      else: {:error, Error.new(:limit_exceeded, "the term takes #{size - left} bytes of #{size}")}
  end

  @doc """
  Decode a term that `encode_term/2` encoded. The bytes may come from any process: decoding creates no atoms, and
  refuses compressed bytes, which `encode_term/2` never makes.

  Errors: `:protocol`.
  """
  @spec decode_term(binary()) :: {:ok, term()} | {:error, Error.t()}
  def decode_term(<<bytes::64-little, external::binary-size(bytes), _zeros::binary>>),
    do: decode_external(external)

  def decode_term(_other), do: {:error, Error.new(:protocol, "the bytes hold no term")}

  # Refuse compressed bytes: a few of them can hold terms that fill the memory.
  defp decode_external(<<131, 80, _compressed::binary>>),
    do: {:error, Error.new(:protocol, "the bytes are compressed")}

  defp decode_external(external) do
    {:ok, :erlang.binary_to_term(external, [:safe])}
  rescue
    ArgumentError -> {:error, Error.new(:protocol, "the bytes are no term that is known here")}
  end

  defp options(opts) do
    limits = [infeed_limit: @default_limit, outfeed_limit: @default_limit]
    known = [name: nil, from: nil, ahead: 2] ++ limits

    with true <- Keyword.keyword?(opts),
         {:ok, opts} <- Keyword.validate(opts, known),
         true <-
           Enum.all?(
             [:infeed_limit, :outfeed_limit, :ahead],
             &(is_integer(opts[&1]) and opts[&1] > 0)
           ),
         true <- opts[:ahead] <= @most_ahead and followed?(opts[:from]) do
      {:ok, Enum.reject(opts, &(&1 == {:name, nil}))}
    else
      _wrong ->
        {:error,
         Error.new(
           :invalid,
           "options are name:, infeed_limit: and outfeed_limit:, of at least 1, from: (a pid, {name, node}, a name " <>
             "that is published) and ahead:, 1 to #{@most_ahead}"
         )}
    end
  end

  defp followed?({name, node}), do: is_atom(name) and is_atom(node)
  defp followed?(from), do: is_pid(from) or is_atom(from) or is_binary(from)

  # The stream itself measures the time, because only it knows whether a value went to this caller or to none.
  defp ask(stream, request, timeout) when is_timeout(timeout),
    do: call(stream, {request, timeout})

  defp ask(_stream, _request, _timeout), do: no_timeout()

  defp call(stream, request) do
    GenServer.call(stream, request, :infinity)
  catch
    :exit, _reason ->
      {:error, Error.new(:closed, "the stream #{inspect(stream)} does not run, or ended meanwhile")}
  end

  @impl true
  def init(limits) do
    stream = self()
    {from, ahead} = {limits[:from], limits[:ahead]}

    {:ok,
     %{
       infeed: %Queue{limit: limits[:infeed_limit]},
       outfeed: %Queue{limit: limits[:outfeed_limit]},
       # monitor => {queue, :takers or :givers, from, timer}
       waiting: %{},
       # A process for each channel of the outfeed.
       feeders: [],
       # The process of the infeed's channel, nil, or the error that it ended with; and the channel.
       outlet: nil,
       outlet_channel: nil,
       # The error of a value that the channel refused, for the next push.
       refused: nil,
       # The reader of the followed stream, and the error with which that stream ended.
       source: from && spawn_link(fn -> FarStream.read(stream, from, ahead) end),
       ended: nil
     }}
  end

  @impl true
  def handle_call({{:push, :infeed, value}, timeout}, from, state) do
    case state do
      %{refused: %Error{} = error} -> {:reply, {:error, error}, %{state | refused: nil}}
      %{outlet: %Error{} = error} -> {:reply, {:error, error}, state}
      _open -> push_open(value, timeout, from, state)
    end
  end

  def handle_call({{:push, name, value}, timeout}, from, state),
    do: push(name, {:value, value}, timeout, from, state)

  # From a feeder.
  def handle_call({:fail, error}, from, state),
    do: push(:outfeed, {:error, error}, :infinity, from, state)

  # From the outlet.
  def handle_call({:refused, error}, _from, state), do: {:reply, :ok, %{state | refused: error}}

  def handle_call({:ended, values, outlet}, _from, state),
    do: {:reply, :ok, give_back(%{state | outlet: outlet, outlet_channel: nil}, values)}

  def handle_call({:drains, channel}, _from, state),
    do: {:reply, :ok, %{state | outlet_channel: channel}}

  def handle_call({:attach, :infeed, opts}, from, state) do
    cond do
      is_pid(state.outlet) ->
        {:reply, {:error, Error.new(:busy, "the infeed has a channel")}, state}

      not Enum.all?(waiting_values(state.infeed), &carried?/1) ->
        {:reply, {:error, Error.new(:invalid, "the infeed has values that no channel carries")},
         state}

      true ->
        stream = self()
        {:noreply, %{state | outlet: spawn_link(fn -> drain(stream, from, opts) end)}}
    end
  end

  def handle_call({:attach, :outfeed, opts}, from, state) do
    stream = self()
    feeder = spawn_link(fn -> feed(stream, from, opts) end)
    {:noreply, %{state | feeders: [feeder | Enum.filter(state.feeders, &Process.alive?/1)]}}
  end

  # From the reader of a stream that follows this one.
  def handle_call({:attach_far, reader}, _from, state) when is_pid(reader) do
    stream = self()
    sender = spawn_link(fn -> FarStream.serve(stream, reader) end)
    feeders = [sender | Enum.filter(state.feeders, &Process.alive?/1)]
    {:reply, {:ok, sender}, %{state | feeders: feeders}}
  end

  # From such a reader: the values that it could not deliver. It pops no more.
  def handle_call({:return, results}, {sender, _tag}, state) do
    pops = for {monitor, {_queue, _side, {^sender, _}, _timer}} <- state.waiting, do: monitor
    state = Enum.reduce(pops, state, &forget(&2, &1))
    {:reply, :ok, return(Enum.map(results, &entry/1), state)}
  end

  def handle_call({{:pop, name}, timeout}, from, state) do
    case :queue.out(Map.fetch!(state, name).values) do
      {{:value, entry}, values} ->
        queue = Map.fetch!(state, name)
        queue = %{queue | values: values, size: queue.size - 1, passed: queue.passed + 1}
        told(entry, state.source)
        {:reply, answer(entry), state |> Map.put(name, queue) |> admit(name)}

      {:empty, _values} when name == :outfeed and state.ended != nil ->
        {:reply, {:error, state.ended}, state}

      {:empty, _values} when timeout == 0 ->
        {:reply, late(name, :takers), state}

      {:empty, _values} ->
        {:noreply, wait(state, name, :takers, from, timeout, nil)}
    end
  end

  @impl true
  def handle_info({:tmesh_outfeed, value}, state) do
    queue = state.outfeed

    cond do
      not :queue.is_empty(queue.takers) -> {:noreply, hand_over(state, :outfeed, {:value, value})}
      queue.size < queue.limit -> {:noreply, %{state | outfeed: enter(queue, {:value, value})}}
      true -> {:noreply, %{state | outfeed: lose(queue)}}
    end
  end

  # The reader sends no more values than were requested.
  def handle_info({:tmesh_far, source, number, result}, %{source: source} = state) do
    entry = {:far, number, result}

    if :queue.is_empty(state.outfeed.takers),
      do: {:noreply, %{state | outfeed: enter(state.outfeed, entry)}},
      else: {:noreply, hand_over(state, :outfeed, entry)}
  end

  def handle_info({:tmesh_far_end, source, error}, %{source: source} = state) do
    takers = for {monitor, _entry} <- :queue.to_list(state.outfeed.takers), do: monitor

    {:noreply,
     Enum.reduce(takers, %{state | source: nil, ended: error}, fn monitor, state ->
       %{^monitor => {_name, _side, from, _timer}} = state.waiting
       GenServer.reply(from, {:error, error})
       forget(state, monitor)
     end)}
  end

  def handle_info({:late, monitor}, state) do
    case state.waiting do
      %{^monitor => {name, side, from, _timer}} ->
        GenServer.reply(from, late(name, side))
        {:noreply, forget(state, monitor)}

      _answered_already ->
        {:noreply, state}
    end
  end

  def handle_info({:DOWN, monitor, :process, _pid, _reason}, state),
    do: {:noreply, forget(state, monitor)}

  def handle_info(_other, state), do: {:noreply, state}

  # A normal exit does not end linked processes, so end them here.
  @impl true
  def terminate(_reason, state) do
    [state.outlet, state.source | state.feeders]
    |> Enum.filter(&is_pid/1)
    |> Enum.each(&Process.exit(&1, :kill))
  end

  # The receivers may have died while the outlet waited for a value: then no process would receive this one.
  defp push_open(value, timeout, from, %{outlet: outlet, outlet_channel: channel} = state)
       when is_pid(outlet) and channel != nil do
    case Native.channel_gone(channel.native) do
      {:error, {:epipe, _why} = reason} ->
        error = reason |> Error.from_native() |> of(channel)
        {:reply, {:error, error}, close_outlet(state, error)}

      # If the outlet uses the channel at this moment, it will notice a loss itself.
      _open_or_busy ->
        push_infeed(value, timeout, from, state)
    end
  end

  defp push_open(value, timeout, from, state), do: push_infeed(value, timeout, from, state)

  # A waiting outlet holds no value, so it can be stopped. A busy one ends by itself.
  defp close_outlet(%{outlet: outlet} = state, error) do
    waits = for {monitor, {:infeed, :takers, {^outlet, _tag}, _timer}} <- state.waiting, do: monitor

    if waits == [] do
      state
    else
      Process.unlink(outlet)
      Process.exit(outlet, :kill)
      state = Enum.reduce(waits, state, &forget(&2, &1))
      %{state | outlet: error, outlet_channel: nil}
    end
  end

  defp push_infeed(value, timeout, from, state) do
    if state.outlet == nil or carried?(value),
      do: push(:infeed, {:value, value}, timeout, from, state),
      else:
        {:reply,
         {:error, Error.new(:invalid, "a channel carries open refs and short binaries only")},
         state}
  end

  defp carried?(%TensorRef{handle: handle, token: token}), do: handle != nil or token != nil

  defp carried?({%TensorRef{} = ref, bytes}),
    do: carried?(ref) and is_binary(bytes) and byte_size(bytes) <= 24

  defp carried?(bytes), do: is_binary(bytes) and byte_size(bytes) <= 56

  defp waiting_values(queue) do
    givers = for {_monitor, {:value, value}} <- :queue.to_list(queue.givers), do: value
    for({:value, value} <- :queue.to_list(queue.values), do: value) ++ givers
  end

  # Return values to the front of the queue. It may exceed the bound by one, because that value was in it before.
  defp give_back(state, values) do
    queue = state.infeed
    front = Enum.reduce(values, queue.values, &:queue.in_r({:value, &1}, &2))
    queue = %{queue | values: front, size: queue.size + length(values)}
    givers = for {monitor, _entry} <- :queue.to_list(queue.givers), do: monitor
    Enum.reduce(givers, %{state | infeed: queue}, &turn_away/2)
  end

  # Give the entries to waiting processes, or return them to the front.
  defp return([entry | rest] = entries, state) do
    if :queue.is_empty(state.outfeed.takers) do
      queue = state.outfeed
      front = entries |> Enum.reverse() |> Enum.reduce(queue.values, &:queue.in_r/2)
      %{state | outfeed: %{queue | values: front, size: queue.size + length(entries)}}
    else
      return(rest, hand_over(state, :outfeed, entry))
    end
  end

  defp return([], state), do: state

  # Rebuild the entry of a pop's result.
  defp entry({:ok, value}), do: {:value, value}
  defp entry({:error, %Error{details: %{lost: count}}}), do: {:lost, count}
  defp entry({:error, error}), do: {:error, error}

  # Tell the reader that a value was popped, so that it fetches another.
  defp told({:far, number, _result}, source) when is_pid(source),
    do: send(source, {:popped, number})

  defp told(_entry, _source), do: :ok

  # Answer a process that waits with a value: no receiver is left for it.
  defp turn_away(monitor, %{outlet: %Error{} = error} = state) do
    %{^monitor => {_name, _side, from, _timer}} = state.waiting
    GenServer.reply(from, {:error, error})
    forget(state, monitor)
  end

  defp turn_away(_monitor, state), do: state

  defp push(name, entry, timeout, from, state) do
    queue = Map.fetch!(state, name)

    cond do
      not :queue.is_empty(queue.takers) -> {:reply, :ok, hand_over(state, name, entry)}
      queue.size < queue.limit -> {:reply, :ok, Map.put(state, name, enter(queue, entry))}
      timeout == 0 -> {:reply, late(name, :givers), state}
      true -> state |> wait(name, :givers, from, timeout, entry) |> collected(name)
    end
  end

  # While values wait for room, collect garbage each time that as many values have passed as the bound allows.
  defp collected(state, name) do
    %Queue{passed: passed, limit: limit} = queue = Map.fetch!(state, name)

    if passed >= limit,
      do: {:noreply, Map.put(state, name, %{queue | passed: 0}), {:continue, :collect}},
      else: {:noreply, state}
  end

  # Collect after the callback, whose variables may still refer to released values.
  @impl true
  def handle_continue(:collect, state) do
    :erlang.garbage_collect()
    {:noreply, state}
  end

  # Receive in a process of its own. It owns its end of the channel, and the stream itself must not wait for
  # messages.
  defp feed(stream, from, opts) do
    case join(Keyword.pop(opts, :token), :recv) do
      {:ok, channel} ->
        GenServer.reply(from, {:ok, channel.token})
        pass_on(stream, channel)

      {:error, _error} = failed ->
        GenServer.reply(from, failed)
    end
  end

  # Do so for the infeed.
  defp drain(stream, from, opts) do
    case join(Keyword.pop(opts, :token), :send) do
      {:ok, channel} ->
        :ok = GenServer.call(stream, {:drains, channel}, :infinity)
        GenServer.reply(from, {:ok, channel.token})
        pass_in(stream, channel)

      {:error, _error} = failed ->
        :ok = GenServer.call(stream, {:ended, [], nil}, :infinity)
        GenServer.reply(from, failed)
    end
  end

  defp pass_in(stream, channel) do
    with {:ok, value} <- next_in(stream) do
      case Channel.send(channel, value) do
        :ok ->
          pass_in(stream, channel)

        {:error, %Error{type: type} = error} when type in [:gone, :protocol] ->
          GenServer.call(stream, {:ended, [value], of(error, channel)}, :infinity)

        {:error, error} ->
          :ok = GenServer.call(stream, {:refused, of(error, channel)}, :infinity)
          pass_in(stream, channel)
      end
    end
  end

  defp next_in(stream) do
    with {:error, %Error{type: :timeout}} <- pop_infeed(stream, @idle_ms) do
      :erlang.garbage_collect()
      pop_infeed(stream)
    end
  end

  defp join({nil, opts}, role), do: Channel.create(role, opts)
  defp join({token, opts}, role), do: Channel.open(token, role, opts)

  defp pass_on(stream, channel) do
    case next(channel) do
      {:ok, message} ->
        with :ok <- push_out(stream, message), do: pass_on(stream, channel)

      {:error, error} ->
        with :ok <- call(stream, {:fail, of(error, channel)}),
             :not_found <- error.type,
             do: pass_on(stream, channel)
    end
  end

  # Do not hold a value that was passed on while this process waits.
  defp push_out(stream, message) do
    with {:error, %Error{type: :timeout}} <- push_outfeed(stream, message, 0) do
      :erlang.garbage_collect()
      push_outfeed(stream, message, :infinity)
    end
  end

  # Name the channel in an error, because several may be attached. Cut its token: errors go into logs, and a whole
  # token opens the channel.
  defp of(%Error{details: details} = error, channel),
    do: %Error{error | details: Map.put(details, :channel, String.slice(channel.token, 0, 13))}

  defp next(channel) do
    with {:error, %Error{type: :timeout}} <- Channel.recv(channel, @idle_ms) do
      :erlang.garbage_collect()
      Channel.recv(channel, :infinity)
    end
  end

  defp answer({:value, value}), do: {:ok, value}
  defp answer({:error, error}), do: {:error, error}
  defp answer({:far, _number, result}), do: result

  defp answer({:lost, count}) do
    message = "#{count} values from native code were lost: the outfeed was full"
    {:error, %Error{type: :limit_exceeded, message: message, details: %{lost: count}}}
  end

  defp late(name, :takers),
    do: {:error, Error.new(:timeout, "timed out: the #{name} is empty")}

  defp late(name, :givers), do: {:error, Error.new(:timeout, "timed out: the #{name} is full")}

  defp enter(queue, entry),
    do: %{queue | values: :queue.in(entry, queue.values), size: queue.size + 1}

  # Count consecutive lost values in one entry. Only this entry may exceed the bound.
  defp lose(queue) do
    case :queue.out_r(queue.values) do
      {{:value, {:lost, count}}, values} ->
        %{queue | values: :queue.in({:lost, count + 1}, values)}

      _values ->
        enter(queue, {:lost, 1})
    end
  end

  defp hand_over(state, name, entry) do
    queue = Map.fetch!(state, name)
    {{:value, {monitor, nil}}, takers} = :queue.out(queue.takers)
    %{^monitor => {_name, _side, from, _timer}} = state.waiting
    GenServer.reply(from, answer(entry))
    told(entry, state.source)
    queue = %{queue | takers: takers, passed: queue.passed + 1}
    state |> Map.put(name, queue) |> forget(monitor)
  end

  # Let in the first process that waits with a value, since there is room now.
  defp admit(state, name) do
    queue = Map.fetch!(state, name)

    case :queue.out(queue.givers) do
      {{:value, {monitor, entry}}, givers} when queue.size < queue.limit ->
        %{^monitor => {_name, _side, from, _timer}} = state.waiting
        GenServer.reply(from, :ok)
        queue = enter(%{queue | givers: givers}, entry)
        state |> Map.put(name, queue) |> forget(monitor)

      _nobody_or_no_room ->
        state
    end
  end

  defp wait(state, name, side, {pid, _tag} = from, timeout, entry) do
    monitor = Process.monitor(pid)

    # Use at most the longest time that a timer takes.
    timer =
      if timeout != :infinity,
        do: Process.send_after(self(), {:late, monitor}, min(timeout, 0xFFFF_FFFF))

    queue = Map.update!(Map.fetch!(state, name), side, &:queue.in({monitor, entry}, &1))

    state
    |> Map.put(name, queue)
    |> put_in([:waiting, monitor], {name, side, from, timer})
  end

  # End the wait of a process that was answered, is late or has died.
  defp forget(state, monitor) do
    case Map.pop(state.waiting, monitor) do
      {nil, _waiting} ->
        state

      {{name, side, _from, timer}, waiting} ->
        # Do not flush: that would search the whole mailbox, which may be long.
        Process.demonitor(monitor)
        _left = timer && Process.cancel_timer(timer)

        queue =
          Map.update!(Map.fetch!(state, name), side, fn waiters ->
            :queue.filter(fn {waiter, _entry} -> waiter != monitor end, waiters)
          end)

        %{Map.put(state, name, queue) | waiting: waiting}
    end
  end
end
