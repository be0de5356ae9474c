# SPDX-License-Identifier: MIT
defmodule Tmesh.Stream do
  @moduledoc """
  A process between a computation and the rest of the VM: two bounded queues, the *infeed* towards
  the computation and the *outfeed* from it.

      {:ok, _pid} = Tmesh.Stream.start_link(name: :my_stream)
      :ok = Tmesh.Stream.push_infeed(:my_stream, batch)
      {:ok, result} = Tmesh.Stream.pop_outfeed(:my_stream)

  and on the computation's side `pop_infeed/2` and `push_outfeed/3`. Values are any terms; tensors
  go as `Tmesh.ZeroCopy.TensorRef`s or binaries, and nothing of them is copied on the way. Each queue
  keeps its order, also among those who wait.

  ## Bounds and time

  A push into a full queue waits until there is room, a pop from an empty one until there is a
  value. With a `timeout`, in milliseconds, both wait at most so long: then they give `:timeout`, and
  nothing was pushed or popped. Who dies while waiting is forgotten, together with the value that he
  was about to push.

  ## Errors

  Where there is no such process, or it ends while one waits, the result is `:closed`.

  ## Native code

  Code in this VM that has the process's pid sends `{:tmesh_outfeed, value}` with `enif_send`, which
  knows no waiting. Such values go into the outfeed like others while there is room. What comes
  beyond that is lost, and the loss is told in its place: the pop that would have got the first of
  the lost values gives `:limit_exceeded`, with their number in `details.lost`.

  ## Other processes

  `attach_channel/2` gives the token of a `Tmesh.Channel`: what another process, in any of tmesh's
  languages, sends there comes out of the outfeed in its order. That one waits while the outfeed and
  the channel are full, and nothing is lost.

      {:ok, token} = Tmesh.Stream.attach_channel(:my_stream)
      # Python: out = tmesh.Channel.open(token, "send"); out.send(tensor)
      {:ok, %Tmesh.ZeroCopy.TensorRef{} = ref} = Tmesh.Stream.pop_outfeed(:my_stream)

  When all who sent are gone, also by being killed, the pop behind their last value gives `:gone`.

  With `feed: :infeed` what is pushed into the infeed goes through the channel to whoever receives
  there, a JAX program by `tmesh.xla.pop` for example. A push waits while the channel and the infeed are full.

      {:ok, token} = Tmesh.Stream.attach_channel(:my_stream, feed: :infeed)
      # Python: tmesh.xla.bind("batches", token, "recv")
      :ok = Tmesh.Stream.push_infeed(:my_stream, Tmesh.ZeroCopy.from_binary!(bytes, shape, :float32))

  Then values are what channels carry, others are refused (`:invalid`). When all who received are gone, pushes
  give `:gone`. What the channel had not got yet stays in the infeed, and goes to the next channel that is attached.

  ## Other nodes

  With `from:` a stream follows the outfeed of another, on this or another node: what comes out there comes out here,
  in its order, its tensors as refs of this node.

      # at home, where Tmesh.Net runs
      {:ok, stream} = Tmesh.Stream.start_link(name: :batches)
      :ok = Tmesh.Net.publish("batches", stream)
      # on another node, where it runs too
      {:ok, batches} = Tmesh.Stream.start_link(from: "batches", ahead: 4)
      {:ok, %{x: %Tmesh.ZeroCopy.TensorRef{}}} = Tmesh.Stream.pop_outfeed(batches)

  Sealed refs and bundles, also in tuples, lists and maps, are opened by `Tmesh.Net`; others, and any error of
  `Tmesh.Net.offer/1` and `Tmesh.Net.open/2`, are the error of the pop that would have got the value, and the next pop
  gets the next value. At most `ahead` values are fetched before they are popped; so the pushes at home wait as ever. A
  fetched copy is not kept beyond the consumer's refs.

  When the stream here ends, what was not popped goes back to the front of the outfeed at home. When that one ends, what
  was fetched still comes, then each pop gives `:closed`; `:gone` when the node is gone or cannot be reached. Begin anew
  with `start_link/1`: a value that was popped in the moment in which the nodes lost each other comes again.

  ## Terms in tensors

  To name the process to a computation that only takes tensors, `encode_term/2` makes a tensor's
  bytes of any term, a pid of a named or of another node too.
  """

  use GenServer

  import Tmesh.Bang

  alias Tmesh.{Channel, Error}
  alias Tmesh.Net.FarStream
  alias Tmesh.ZeroCopy.TensorRef

  @type stream :: GenServer.server()
  @type result :: :ok | {:error, Error.t()}
  @type attach_option :: {:feed, :infeed | :outfeed} | {:token, String.t()} | Channel.option()

  @default_limit 16
  @most_ahead 64
  # What has passed through a process is garbage there, and held until it is collected: it is when
  # nothing comes for so long.
  @idle_ms 1_000

  defmodule Queue do
    @moduledoc false
    # `values` and those who wait for one, or for room: never both waiters at once. An entry is
    # {:value, value}, {:lost, count} of values that nobody could be made to wait with, or
    # {:error, error} of a channel, {:far, number, result} of the stream that this one follows.
    defstruct [:limit, size: 0, values: :queue.new(), takers: :queue.new(), givers: :queue.new()]
  end

  @doc """
  Start a stream.

  Options: `name`, and the queues' bounds, `infeed_limit` and `outfeed_limit` (#{@default_limit} values each). `from`: the
  stream to follow, a pid, `{name, node}` or what `Tmesh.Net.publish/2` was given; and `ahead`, how many values are
  fetched before they are popped (2; at most #{@most_ahead}). That there is no such stream is told by the pops.
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
  For a supervisor: the child's id is the stream's name, so that several can be children of one.

      children = [{Tmesh.Stream, name: :words}, {Tmesh.Stream, name: :pictures}]
  """
  @spec child_spec(keyword()) :: Supervisor.child_spec()
  def child_spec(opts) do
    named = Keyword.keyword?(opts) and opts[:name]
    %{id: named || __MODULE__, start: {__MODULE__, :start_link, [opts]}}
  end

  @doc """
  Give the computation a value.

      iex> {:ok, stream} = Tmesh.Stream.start_link(infeed_limit: 1)
      iex> Tmesh.Stream.push_infeed(stream, :first)
      :ok
      iex> {:error, error} = Tmesh.Stream.push_infeed(stream, :second, 10)
      iex> error.type
      :timeout
  """
  @spec push_infeed(stream(), term(), timeout()) :: result()
  def push_infeed(stream, value, timeout \\ :infinity),
    do: ask(stream, {:push, :infeed, value}, timeout)

  @doc """
  The next value from the computation.

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
  @spec push_outfeed(stream(), term(), timeout()) :: result()
  def push_outfeed(stream, value, timeout \\ :infinity),
    do: ask(stream, {:push, :outfeed, value}, timeout)

  @doc """
  Have what others send through a channel come out of the outfeed; the token is for them. With
  `feed: :infeed`, have what is pushed into the infeed go to others.

  Other options are those of `Tmesh.Channel.create/2`; or `token` and those of `Tmesh.Channel.open/3`, for
  a channel that somebody else has made. An outfeed may have several channels, an infeed one at a time (`:busy`).

  Where a message cannot be had, the pop that would have got it gives the error of
  `Tmesh.Channel.recv/2`, with the channel's token in `details.token`. After any but `:not_found` the channel
  is closed.

  A value that the infeed's channel refuses, because its tensor was released for example, is lost, and
  the next push gives the error of `Tmesh.Channel.send/3`, with the token too, in place of being done.

  Errors: `:closed`, `:busy`, `:invalid` (also: the infeed has what no channel carries), and those of `create/2`
  and `open/3`.

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
  A term as the bytes of a `uint8` tensor of `size` elements: its length in eight bytes, the external
  format, zeros. The size is the same whatever the term, so that a computation is compiled once.

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
  The term that `encode_term/2` encoded. It may come from anybody: no atoms come into being, and what
  was compressed, which `encode_term/2` never does, is refused.

  Errors: `:protocol`.
  """
  @spec decode_term(binary()) :: {:ok, term()} | {:error, Error.t()}
  def decode_term(<<bytes::64-little, external::binary-size(bytes), _zeros::binary>>),
    do: decode_external(external)

  def decode_term(_other), do: {:error, Error.new(:protocol, "the bytes hold no term")}

  # A few bytes can hold terms that fill the memory.
  defp decode_external(<<131, 80, _compressed::binary>>),
    do: {:error, Error.new(:protocol, "the bytes are compressed")}

  defp decode_external(external) do
    {:ok, :erlang.binary_to_term(external, [:safe])}
  rescue
    ArgumentError -> {:error, Error.new(:protocol, "the bytes are no term that is known here")}
  end

  bang push_infeed(stream :: stream(), value :: term(), timeout :: timeout() \\ :infinity) :: :ok
  bang pop_outfeed(stream :: stream(), timeout :: timeout() \\ :infinity) :: term()
  bang pop_infeed(stream :: stream(), timeout :: timeout() \\ :infinity) :: term()
  bang push_outfeed(stream :: stream(), value :: term(), timeout :: timeout() \\ :infinity) :: :ok

  bang attach_channel(
         stream :: stream(),
         opts :: [attach_option()] \\ []
       ) :: String.t()

  bang encode_term(term :: term(), size :: pos_integer() \\ 512) :: binary()
  bang decode_term(bytes :: binary()) :: term()

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

  # The stream itself keeps the time: it knows whether a value went to this caller or to none.
  defp ask(stream, request, timeout)
       when timeout == :infinity or (is_integer(timeout) and timeout >= 0),
       do: call(stream, {request, timeout})

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
       # One for each channel of the outfeed.
       feeders: [],
       # Of the infeed's channel: its process, nil, or the error that it ended with.
       outlet: nil,
       # Of a value that it did not take: for the next push.
       refused: nil,
       # Who brings what the stream that is followed has, and why no more comes.
       source: from && spawn_link(fn -> FarStream.read(stream, from, ahead) end),
       ended: nil
     }}
  end

  @impl true
  def handle_call({{:push, :infeed, value}, timeout}, from, state) do
    case state do
      %{refused: %Error{} = error} -> {:reply, {:error, error}, %{state | refused: nil}}
      %{outlet: %Error{} = error} -> {:reply, {:error, error}, state}
      _open -> push_infeed(value, timeout, from, state)
    end
  end

  def handle_call({{:push, name, value}, timeout}, from, state),
    do: push(name, {:value, value}, timeout, from, state)

  # A feeder's.
  def handle_call({:fail, error}, from, state),
    do: push(:outfeed, {:error, error}, :infinity, from, state)

  # The outlet's.
  def handle_call({:refused, error}, _from, state), do: {:reply, :ok, %{state | refused: error}}

  def handle_call({:ended, values, outlet}, _from, state),
    do: {:reply, :ok, give_back(%{state | outlet: outlet}, values)}

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

  # A stream that follows this one.
  def handle_call({:attach_far, reader}, _from, state) when is_pid(reader) do
    stream = self()
    sender = spawn_link(fn -> FarStream.serve(stream, reader) end)
    feeders = [sender | Enum.filter(state.feeders, &Process.alive?/1)]
    {:reply, {:ok, sender}, %{state | feeders: feeders}}
  end

  # What its sender could not bring to anybody; it pops no more.
  def handle_call({:return, results}, {sender, _tag}, state) do
    pops = for {monitor, {_queue, _side, {^sender, _}, _timer}} <- state.waiting, do: monitor
    state = Enum.reduce(pops, state, &forget(&2, &1))
    {:reply, :ok, return(Enum.map(results, &entry/1), state)}
  end

  def handle_call({{:pop, name}, timeout}, from, state) do
    case :queue.out(Map.fetch!(state, name).values) do
      {{:value, entry}, values} ->
        queue = Map.fetch!(state, name)
        queue = %Queue{queue | values: values, size: queue.size - 1}
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

  # Its reader sends no more than were asked for.
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

  # An end that is not an error's leaves those that are linked alive.
  @impl true
  def terminate(_reason, state) do
    [state.outlet, state.source | state.feeders]
    |> Enum.filter(&is_pid/1)
    |> Enum.each(&Process.exit(&1, :kill))
  end

  defp push_infeed(value, timeout, from, state) do
    if state.outlet == nil or carried?(value),
      do: push(:infeed, {:value, value}, timeout, from, state),
      else:
        {:reply,
         {:error, Error.new(:invalid, "a channel carries open refs and short binaries only")},
         state}
  end

  defp carried?(%TensorRef{handle: handle}), do: handle != nil

  defp carried?({%TensorRef{handle: handle}, bytes}),
    do: handle != nil and is_binary(bytes) and byte_size(bytes) <= 24

  defp carried?(bytes), do: is_binary(bytes) and byte_size(bytes) <= 56

  defp waiting_values(queue) do
    givers = for {_monitor, {:value, value}} <- :queue.to_list(queue.givers), do: value
    for({:value, value} <- :queue.to_list(queue.values), do: value) ++ givers
  end

  # To the front, and beyond the bound by one: it has been there already.
  defp give_back(state, values) do
    queue = state.infeed
    front = Enum.reduce(values, queue.values, &:queue.in_r({:value, &1}, &2))
    queue = %Queue{queue | values: front, size: queue.size + length(values)}
    givers = for {monitor, _entry} <- :queue.to_list(queue.givers), do: monitor
    Enum.reduce(givers, %{state | infeed: queue}, &turn_away/2)
  end

  # To those who wait, or to the front.
  defp return([entry | rest] = entries, state) do
    if :queue.is_empty(state.outfeed.takers) do
      queue = state.outfeed
      front = entries |> Enum.reverse() |> Enum.reduce(queue.values, &:queue.in_r/2)
      %{state | outfeed: %Queue{queue | values: front, size: queue.size + length(entries)}}
    else
      return(rest, hand_over(state, :outfeed, entry))
    end
  end

  defp return([], state), do: state

  # What a pop gave, as it was.
  defp entry({:ok, value}), do: {:value, value}
  defp entry({:error, %Error{details: %{lost: count}}}), do: {:lost, count}
  defp entry({:error, error}), do: {:error, error}

  # The reader fetches another in its place.
  defp told({:far, number, _result}, source) when is_pid(source),
    do: send(source, {:popped, number})

  defp told(_entry, _source), do: :ok

  # Who waits with a value hears why nobody will take it.
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
      true -> {:noreply, wait(state, name, :givers, from, timeout, entry)}
    end
  end

  # The end of a channel is its process's, and waiting for messages is not the stream's business.
  defp feed(stream, from, opts) do
    case join(Keyword.pop(opts, :token), :recv) do
      {:ok, channel} ->
        GenServer.reply(from, {:ok, channel.token})
        pass_on(stream, channel)

      {:error, _error} = failed ->
        GenServer.reply(from, failed)
    end
  end

  # The same of the infeed.
  defp drain(stream, from, opts) do
    case join(Keyword.pop(opts, :token), :send) do
      {:ok, channel} ->
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
        with :ok <- push_outfeed(stream, message, :infinity), do: pass_on(stream, channel)

      {:error, error} ->
        with :ok <- call(stream, {:fail, of(error, channel)}),
             :not_found <- error.type,
             do: pass_on(stream, channel)
    end
  end

  # Several channels may be attached.
  defp of(%Error{details: details} = error, channel),
    do: %Error{error | details: Map.put(details, :token, channel.token)}

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
    do: {:error, Error.new(:timeout, "nothing came into the #{name} in time")}

  defp late(name, :givers), do: {:error, Error.new(:timeout, "the #{name} stayed full")}

  defp enter(queue, entry),
    do: %Queue{queue | values: :queue.in(entry, queue.values), size: queue.size + 1}

  # One entry tells of all that are lost in a row; it is the one that a bound may be passed by.
  defp lose(queue) do
    case :queue.out_r(queue.values) do
      {{:value, {:lost, count}}, values} ->
        %Queue{queue | values: :queue.in({:lost, count + 1}, values)}

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
    state |> Map.put(name, %Queue{queue | takers: takers}) |> forget(monitor)
  end

  # Room has come about: let in the first who waits with a value.
  defp admit(state, name) do
    queue = Map.fetch!(state, name)

    case :queue.out(queue.givers) do
      {{:value, {monitor, entry}}, givers} when queue.size < queue.limit ->
        %{^monitor => {_name, _side, from, _timer}} = state.waiting
        GenServer.reply(from, :ok)
        queue = enter(%Queue{queue | givers: givers}, entry)
        state |> Map.put(name, queue) |> forget(monitor)

      _nobody_or_no_room ->
        state
    end
  end

  defp wait(state, name, side, {pid, _tag} = from, timeout, entry) do
    monitor = Process.monitor(pid)

    # At most what any timer takes.
    timer =
      if timeout != :infinity,
        do: Process.send_after(self(), {:late, monitor}, min(timeout, 0xFFFF_FFFF))

    queue = Map.update!(Map.fetch!(state, name), side, &:queue.in({monitor, entry}, &1))

    state
    |> Map.put(name, queue)
    |> put_in([:waiting, monitor], {name, side, from, timer})
  end

  # Who was answered, is late or has died waits no more.
  defp forget(state, monitor) do
    case Map.pop(state.waiting, monitor) do
      {nil, _waiting} ->
        state

      {{name, side, _from, timer}, waiting} ->
        # Not to be flushed: that would look through all that waits, of which there may be much.
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
