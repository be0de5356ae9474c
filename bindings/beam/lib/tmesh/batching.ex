# SPDX-License-Identifier: MIT
defmodule Tmesh.Batching do
  @moduledoc """
  A client of a generator of tokens, `python -m tmesh.batching model.gguf --socket=PATH`, a process of this user.
  The generator makes the decode steps of many requests one run of the engine "ggml" (continuous batching).

      children = [{Tmesh.Batching, name: Generate, path: "/run/user/1000/generate"}]
      {:ok, %{tokens: tokens, done: :length}} = Tmesh.Batching.generate(Generate, [1, 15043], 32, timeout: 5_000)
      Generate |> Tmesh.Batching.stream([1, 15043], 32) |> Enum.take(3)             # the rest is cancelled

  Tokens are numbers: the caller brings a tokeniser. Requests of any number of processes share one connection. It is
  made when needed, and again after the generator has ended. The generator takes at most 256 requests of a
  connection at a time. If its caller ends, a request ends before the generator's next step.
  """

  use GenServer

  use Tmesh.Bang, ~w(submit/4 generate/4)
  alias Tmesh.{Error, Native, Options}

  defmodule Request do
    @moduledoc "A submitted request, made by `Tmesh.Batching.submit/4`."
    @enforce_keys [:client, :id, :ref]
    @derive {Inspect, only: [:id]}
    defstruct @enforce_keys

    @type t :: %__MODULE__{client: pid(), id: pos_integer(), ref: reference()}
  end

  @type client :: GenServer.server()
  @type token :: non_neg_integer()
  @type done :: :stop | :length | :cancelled

  @typedoc """
  Options of a request:

    * `stop` - tokens after which it ends
    * `temperature` - 0 for the likeliest token, else for a choice by chance and `seed`
    * `timeout` - milliseconds from the call to the end of the request
  """
  @type options :: [
          stop: [token()],
          temperature: number(),
          seed: non_neg_integer(),
          timeout: timeout()
        ]

  @options [stop: [], temperature: 0, seed: 0, timeout: :infinity]
  @line 1_048_576
  @waiting 256
  # Requests that the generator has not read wait in this process's memory. From this many bytes on, none is added.
  @unread 16 * 1_048_576
  # The socket option for the other end's credentials, and the user of a socket without another end.
  @peer_credentials {:raw, 1, 17, 12}
  @no_user 0xFFFFFFFF
  # The pause before the next try, if the generator's queue of connections is full.
  @again 20

  @doc "Start the process of the connection. Options: `path` of the generator's socket, `name` of the process."
  @spec start_link(path: Path.t(), name: GenServer.name()) :: GenServer.on_start()
  def start_link(opts) do
    {name, opts} = Keyword.split(opts, [:name])
    GenServer.start_link(__MODULE__, Keyword.fetch!(opts, :path), name)
  end

  @doc """
  Submit a request for at most so many tokens after the prompt. The caller receives messages `{Tmesh.Batching,
  request.ref, event}`. Events are `{:token, token}`, and at last `{:done, done}` or `{:error, error}`.

  Errors, also as events:

    * `:invalid` - the generator refused it; the message has its reason
    * `:busy` - 256 requests have not ended, or the generator has not read 16 MiB of requests
    * `:timeout` - the request is cancelled, or the generator took no connection in time
    * `:not_found` - there is no such socket
    * `:gone` - no process listens, or the generator ended
    * `:access` - the generator is another user's
  """
  @spec submit(client(), [token()], pos_integer(), options()) ::
          {:ok, Request.t()} | {:error, Error.t()}
  def submit(client, prompt, max_tokens, opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, @options),
         {:ok, words} <- words(prompt, max_tokens, opts),
         {:ok, timeout} <- timeout(opts[:timeout]) do
      until = if timeout == :infinity, do: :infinity, else: now() + timeout
      ask(client, words, until)
    end
  end

  # The caller itself waits for a generator that takes no connection, so that the client's other callers go on.
  defp ask(client, words, until) do
    case GenServer.call(client, {:submit, self(), words, left(until)}, :infinity) do
      {:full, path} ->
        if left(until) == 0 do
          {:error,
           Error.new(
             :timeout,
             "the generator at #{path} took no connection before the deadline: " <>
               "it is stopped, or has more clients than it takes"
           )}
        else
          Process.sleep(@again)
          ask(client, words, until)
        end

      answer ->
        answer
    end
  end

  defp now, do: System.monotonic_time(:millisecond)
  defp left(:infinity), do: :infinity
  defp left(until), do: max(until - now(), 0)

  @doc "Cancel a request. Its last event is `{:done, :cancelled}`, unless it had ended. You may repeat it."
  @spec cancel(Request.t()) :: :ok
  def cancel(%Request{client: client, id: id}), do: GenServer.cast(client, {:cancel, id})

  @doc """
  Run a request, and return all its tokens and whether the last one is one of `stop`. Errors: those of `submit/4`.
  """
  @spec generate(client(), [token()], pos_integer(), options()) ::
          {:ok, %{tokens: [token()], done: done()}} | {:error, Error.t()}
  def generate(client, prompt, max_tokens, opts \\ []) do
    with {:ok, request} <- submit(client, prompt, max_tokens, opts) do
      monitor = Process.monitor(request.client)
      answer = collect(request, monitor, [])
      Process.demonitor(monitor, [:flush])
      answer
    end
  end

  defp collect(request, monitor, tokens) do
    case next(request, monitor) do
      {:token, token} -> collect(request, monitor, [token | tokens])
      {:done, done} -> {:ok, %{tokens: Enum.reverse(tokens), done: done}}
      {:error, _error} = error -> error
    end
  end

  defp next(%Request{ref: ref}, monitor) do
    receive do
      {__MODULE__, ^ref, event} -> event
      {:DOWN, ^monitor, :process, _pid, _why} -> {:error, gone("the client's process ended")}
    end
  end

  @doc "Stream the tokens of a request. A consumer that stops cancels the rest. Errors of `submit/4` are raised."
  @spec stream(client(), [token()], pos_integer(), options()) :: Enumerable.t()
  def stream(client, prompt, max_tokens, opts \\ []) do
    Stream.resource(
      fn ->
        request = client |> submit(prompt, max_tokens, opts) |> Error.bang!()
        {request, Process.monitor(request.client)}
      end,
      fn {request, monitor} = state ->
        case next(request, monitor) do
          {:token, token} -> {[token], state}
          {:done, _done} -> {:halt, state}
          {:error, error} -> raise error
        end
      end,
      fn {request, monitor} ->
        GenServer.cast(request.client, {:forget, request.id})
        Process.demonitor(monitor, [:flush])
        drain(request.ref)
      end
    )
  end

  defp drain(ref) do
    receive do
      {__MODULE__, ^ref, _event} -> drain(ref)
    after
      0 -> :ok
    end
  end

  defp timeout(:infinity), do: {:ok, :infinity}
  defp timeout(ms) when is_integer(ms) and ms in 0..0xFFFFFFFF, do: {:ok, ms}
  defp timeout(_wrong), do: invalid("timeout is milliseconds, or :infinity")

  # Make a request without its number.
  defp words(prompt, max_tokens, opts) do
    {stop, temperature} = {opts[:stop], opts[:temperature]}

    cond do
      not (tokens?(prompt) and tokens?(stop)) ->
        invalid("prompt and stop are lists of tokens, which are numbers of at least 0")

      not Enum.all?([max_tokens, opts[:seed]], &is_integer/1) or not is_number(temperature) ->
        invalid("max_tokens, seed and temperature are numbers")

      true ->
        short([
          [~s("prompt":), list(prompt), ~s(,"max_tokens":), Integer.to_string(max_tokens)],
          [~s(,"stop":), list(stop), ~s(,"temperature":), to_string(temperature)],
          [~s(,"seed":), Integer.to_string(opts[:seed]), "}\n"]
        ])
    end
  end

  # The generator drops a connection that sends a longer line.
  defp short(words) do
    if IO.iodata_length(words) < @line - 64,
      do: {:ok, words},
      else: invalid("a request is at most 1 MiB as text")
  end

  defp tokens?(list), do: is_list(list) and Enum.all?(list, &(is_integer(&1) and &1 >= 0))

  defp list(tokens),
    do: ["[", tokens |> Enum.map(&Integer.to_string/1) |> Enum.intersperse(","), "]"]

  defp invalid(words), do: {:error, Error.new(:invalid, words)}
  defp gone(words), do: Error.from_native({:epipe, words})

  # The process. It has requests by the numbers that the generator knows.

  @impl true
  def init(path) do
    state = %{path: path, socket: nil, writer: nil, unread: nil, read: "", number: 0}
    {:ok, Map.put(state, :requests, %{})}
  end

  @impl true
  def handle_call({:submit, pid, words, timeout}, _from, state) do
    with :ok <- room(state),
         {:ok, state} <- connected(state) do
      id = state.number + 1

      entry = %{
        pid: pid,
        ref: make_ref(),
        cancelled: false,
        monitor: Process.monitor(pid),
        timer: timeout != :infinity && Process.send_after(self(), {:deadline, id}, timeout)
      }

      say(state, [~s({"id":), Integer.to_string(id), "," | words])
      state = %{state | number: id, requests: Map.put(state.requests, id, entry)}
      {:reply, {:ok, %Request{client: self(), id: id, ref: entry.ref}}, state}
    else
      not_sent -> {:reply, not_sent, state}
    end
  end

  defp room(%{requests: requests}) when map_size(requests) >= @waiting,
    do: {:error, Error.new(:busy, "#{@waiting} requests of this connection have not ended")}

  defp room(%{unread: unread}) do
    bytes = if unread, do: :counters.get(unread, 1), else: 0

    if bytes < @unread,
      do: :ok,
      else:
        {:error,
         Error.new(
           :busy,
           "the generator has not read #{bytes} bytes of requests: wait, or restart it"
         )}
  end

  defp connected(%{socket: nil, path: path} = state) do
    case :gen_tcp.connect({:local, path}, 0, [:binary, packet: :raw, active: false]) do
      {:ok, socket} ->
        with :ok <- own(socket, path), do: {:ok, begin(state, socket)}

      {:error, :econnrefused} ->
        {:error, gone("no process listens at #{path}: #{start()}")}

      {:error, :enoent} ->
        {:error, Error.from_native({:enoent, "there is no socket at #{path}: #{start()}"})}

      {:error, :eacces} ->
        {:error, Error.from_native({:eacces, "#{path} is another user's: #{alone()}"})}

      {:error, code} ->
        words = "#{path} is no socket of a generator's: #{:inet.format_error(code)}"
        {:error, Error.from_native({:einval, words})}
    end
  end

  defp connected(state), do: {:ok, state}

  defp begin(state, socket) do
    # If the socket ended meanwhile, a message reports it.
    _ = :inet.setopts(socket, active: :once)
    # A generator that does not read delays the writer, but no deadline.
    unread = :counters.new(1, [])
    writer = spawn_link(fn -> write(socket, unread) end)
    %{state | socket: socket, writer: writer, unread: unread, read: ""}
  end

  # A socket whose queue was full counts as connected, but has no process at the other end.
  defp own(socket, path) do
    {:ok, [{:raw, 1, 17, <<_pid::32, uid::native-32, _gid::32>>}]} =
      :inet.getopts(socket, [@peer_credentials])

    if uid == own_uid() do
      :ok
    else
      :gen_tcp.close(socket)

      if uid == @no_user,
        do: {:full, path},
        else: {:error, Error.from_native({:eacces, "#{path} is served by user #{uid}: #{alone()}"})}
    end
  end

  defp own_uid do
    [_line, uid] = Regex.run(~r/^Uid:\s+\d+\s+(\d+)/m, File.read!("/proc/self/status"))
    String.to_integer(uid)
  end

  defp start, do: "start python -m tmesh.batching MODEL --socket=PATH"
  defp alone, do: "generators serve their own user alone"

  defp write(socket, unread) do
    receive do
      {:write, words} ->
        _sent = :gen_tcp.send(socket, words)
        :counters.sub(unread, 1, IO.iodata_length(words))
    end

    write(socket, unread)
  end

  defp say(%{writer: nil}, _words), do: :ok

  defp say(%{writer: writer, unread: unread}, words) do
    :counters.add(unread, 1, IO.iodata_length(words))
    send(writer, {:write, words})
  end

  defp say_cancel(state, id),
    do: say(state, [~s({"id":), Integer.to_string(id), ~s(,"cancel":true}\n)])

  @impl true
  def handle_cast({:cancel, id}, state) do
    case state.requests do
      # Send it once, however often it is requested.
      %{^id => %{cancelled: false} = entry} ->
        say_cancel(state, id)
        {:noreply, put_in(state.requests[id], %{entry | cancelled: true})}

      _other ->
        {:noreply, state}
    end
  end

  # No process wants its events any more.
  def handle_cast({:forget, id}, state), do: {:noreply, give_up(state, id)}

  defp give_up(state, id) do
    if is_map_key(state.requests, id), do: say_cancel(state, id)
    state |> pop(id) |> elem(1)
  end

  defp pop(state, id) do
    {entry, requests} = Map.pop(state.requests, id)
    unwatch(entry)
    {entry, %{state | requests: requests}}
  end

  defp unwatch(nil), do: :ok

  defp unwatch(entry) do
    Process.demonitor(entry.monitor, [:flush])
    _left = entry.timer && Process.cancel_timer(entry.timer)
    :ok
  end

  defp finish(state, id, event) do
    case pop(state, id) do
      {nil, state} ->
        state

      {entry, state} ->
        send(entry.pid, {__MODULE__, entry.ref, event})
        state
    end
  end

  @impl true
  def handle_info({:tcp, socket, data}, %{socket: socket} = state) do
    {lines, [rest]} = (state.read <> data) |> :binary.split("\n", [:global]) |> Enum.split(-1)

    {good, state} = Enum.reduce_while(lines, {true, state}, &hear/2)

    if good and byte_size(rest) <= @line do
      # If the socket ended meanwhile, a message reports it.
      _ = :inet.setopts(socket, active: :once)
      {:noreply, %{state | read: rest}}
    else
      {:noreply, hang_up(state, "the generator sent a malformed answer")}
    end
  end

  def handle_info({closed, socket}, %{socket: socket} = state) when closed == :tcp_closed,
    do: {:noreply, hang_up(state, "the generator ended, or dropped this client")}

  def handle_info({:tcp_error, socket, _why}, %{socket: socket} = state),
    do: {:noreply, hang_up(state, "the generator ended, or dropped this client")}

  def handle_info({:deadline, id}, state) do
    if is_map_key(state.requests, id), do: say_cancel(state, id)
    error = Error.new(:timeout, "the request was not done at its deadline, and is cancelled")
    {:noreply, finish(state, id, {:error, error})}
  end

  def handle_info({:DOWN, monitor, :process, _pid, _why}, state) do
    case Enum.find(state.requests, fn {_id, entry} -> entry.monitor == monitor end) do
      {id, _entry} -> {:noreply, give_up(state, id)}
      nil -> {:noreply, state}
    end
  end

  # A message of an earlier connection.
  def handle_info(_late, state), do: {:noreply, state}

  defp hear(line, {true, state}) do
    case Native.json_decode(line) do
      {:ok, %{"id" => id} = said} when is_integer(id) -> heard(event(said), id, state)
      _no_answer -> {:halt, {false, state}}
    end
  end

  defp heard(:no_answer, _id, state), do: {:halt, {false, state}}
  defp heard({:token, token}, id, state), do: {:cont, {true, tell(state, id, token)}}
  defp heard(event, id, state), do: {:cont, {true, finish(state, id, event)}}

  defp event(%{"token" => token}) when is_integer(token), do: {:token, token}
  defp event(%{"done" => "stop"}), do: {:done, :stop}
  defp event(%{"done" => "length"}), do: {:done, :length}
  defp event(%{"done" => "cancelled"}), do: {:done, :cancelled}
  defp event(%{"error" => why}) when is_binary(why), do: invalid(why)
  defp event(_other), do: :no_answer

  # A cancelled request may still have had a token in transit.
  defp tell(state, id, token) do
    with %{pid: pid, ref: ref} <- state.requests[id],
         do: send(pid, {__MODULE__, ref, {:token, token}})

    state
  end

  defp hang_up(state, why) do
    :gen_tcp.close(state.socket)
    Process.unlink(state.writer)
    Process.exit(state.writer, :kill)
    state = %{state | socket: nil, writer: nil, unread: nil}
    Enum.reduce(Map.keys(state.requests), state, &finish(&2, &1, {:error, gone(why)}))
  end
end
