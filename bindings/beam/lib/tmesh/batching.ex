# SPDX-License-Identifier: MIT
defmodule Tmesh.Batching do
  @moduledoc """
  A client of a generator that makes the decode steps of many requests one run of the engine "ggml" (continuous batching): of
  `python -m tmesh.batching model.gguf --socket=PATH`, a process of this user.

      children = [{Tmesh.Batching, name: Generate, path: "/run/user/1000/generate"}]
      {:ok, %{tokens: tokens, done: :length}} = Tmesh.Batching.generate(Generate, [1, 15043], 32, timeout: 5_000)
      Generate |> Tmesh.Batching.stream([1, 15043], 32) |> Enum.take(3)             # the rest is cancelled

  Tokens are numbers: a tokeniser is the caller's. Requests of any number of processes go over one connection, which is made when
  one is needed, and anew after the generator has ended; the generator takes at most 256 of a connection at a time. A request ends
  with its caller: it is out before the generator's next step.
  """

  use GenServer

  import Tmesh.Bang

  alias Tmesh.{Error, Native, Options}

  defmodule Request do
    @moduledoc "A request that was submitted: made by `Tmesh.Batching.submit/4`."
    @enforce_keys [:client, :id, :ref]
    @derive {Inspect, only: [:id]}
    defstruct @enforce_keys

    @type t :: %__MODULE__{client: pid(), id: pos_integer(), ref: reference()}
  end

  @type client :: GenServer.server()
  @type token :: non_neg_integer()
  @type done :: :stop | :length | :cancelled

  @typedoc """
  `stop`: tokens after which it ends. `temperature` 0: the likeliest token, else by chance and `seed`. `timeout`: milliseconds from
  the call to its end.
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
  # What the kernel says of the other end of a socket, and that there is none.
  @peer_credentials {:raw, 1, 17, 12}
  @no_user 0xFFFFFFFF
  # A generator whose queue of connections is full is asked again so soon.
  @again 20

  @doc "A process that has the connection. Options: `path` of the generator's socket, `name` of the process."
  @spec start_link(path: Path.t(), name: GenServer.name()) :: GenServer.on_start()
  def start_link(opts) do
    {name, opts} = Keyword.split(opts, [:name])
    GenServer.start_link(__MODULE__, Keyword.fetch!(opts, :path), name)
  end

  @doc """
  A request for at most so many tokens behind the prompt's. The caller gets messages `{Tmesh.Batching, request.ref, event}`: events
  are `{:token, token}`, and at last `{:done, done}` or `{:error, error}`.

  Errors, also as events: `:invalid` (what the generator refused, with its reason), `:busy` (256 that have not ended), `:timeout`
  (the request is cancelled then, or the generator took no connection by then), `:not_found` (no socket there), `:gone` (nobody
  listens, or the generator ended), `:access` (another user's).
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

  # It is the caller who waits for a generator that takes no connection: others of the client go on.
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

  @doc "Cancel a request. Its last event is `{:done, :cancelled}`, unless it had ended. Again and again is fine."
  @spec cancel(Request.t()) :: :ok
  def cancel(%Request{client: client, id: id}), do: GenServer.cast(client, {:cancel, id})

  @doc """
  A request, and what came of it: all tokens, and whether the last one is one of `stop`. Errors: as `submit/4`.
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

  bang submit(
         client :: client(),
         prompt :: [token()],
         max_tokens :: pos_integer(),
         opts :: options() \\ []
       ) :: Request.t()

  bang generate(
         client :: client(),
         prompt :: [token()],
         max_tokens :: pos_integer(),
         opts :: options() \\ []
       ) :: %{tokens: [token()], done: done()}

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

  @doc "Its tokens as they come. Who takes no more of them cancels the rest; errors, as of `submit/4`, are raised."
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

  # A request without its number.
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

  # The generator drops who sends a longer line.
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

  # The process: requests by the numbers that the generator has of them.

  @impl true
  def init(path),
    do: {:ok, %{path: path, socket: nil, writer: nil, read: "", number: 0, requests: %{}}}

  @impl true
  def handle_call({:submit, pid, words, timeout}, _from, state) do
    with :ok <- room(state),
         {:ok, state} <- connected(state) do
      id = state.number + 1

      entry = %{
        pid: pid,
        ref: make_ref(),
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

  defp room(%{requests: requests}) when map_size(requests) < @waiting, do: :ok

  defp room(_state),
    do: {:error, Error.new(:busy, "#{@waiting} requests of this connection have not ended")}

  defp connected(%{socket: nil, path: path} = state) do
    case :gen_tcp.connect({:local, path}, 0, [:binary, packet: :raw, active: false]) do
      {:ok, socket} ->
        with :ok <- own(socket, path), do: {:ok, begin(state, socket)}

      {:error, :econnrefused} ->
        {:error, gone("nobody listens at #{path}: #{start()}")}

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
    # Of a socket that ended meanwhile a message says so.
    _ = :inet.setopts(socket, active: :once)
    # A generator that does not read keeps the writer waiting, and no deadline.
    %{state | socket: socket, writer: spawn_link(fn -> write(socket) end), read: ""}
  end

  # A socket whose queue was full has nobody at the other end, though it counts as connected.
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

  defp write(socket) do
    receive do
      {:write, words} -> :gen_tcp.send(socket, words)
    end

    write(socket)
  end

  defp say(%{writer: nil}, _words), do: :ok
  defp say(%{writer: writer}, words), do: send(writer, {:write, words})

  defp say_cancel(state, id),
    do: say(state, [~s({"id":), Integer.to_string(id), ~s(,"cancel":true}\n)])

  @impl true
  def handle_cast({:cancel, id}, state) do
    if is_map_key(state.requests, id), do: say_cancel(state, id)
    {:noreply, state}
  end

  # Nobody wants to hear of it any more.
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
      # Of a socket that ended meanwhile a message says so.
      _ = :inet.setopts(socket, active: :once)
      {:noreply, %{state | read: rest}}
    else
      {:noreply, hang_up(state, "the generator said what is no answer")}
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

  # Of a connection before this one.
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

  # What was given up may have had a token under way.
  defp tell(state, id, token) do
    with %{pid: pid, ref: ref} <- state.requests[id],
         do: send(pid, {__MODULE__, ref, {:token, token}})

    state
  end

  defp hang_up(state, why) do
    :gen_tcp.close(state.socket)
    Process.unlink(state.writer)
    Process.exit(state.writer, :kill)
    state = %{state | socket: nil, writer: nil}
    Enum.reduce(Map.keys(state.requests), state, &finish(&2, &1, {:error, gone(why)}))
  end
end
