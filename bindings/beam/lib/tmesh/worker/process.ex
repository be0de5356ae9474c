# SPDX-License-Identifier: MIT
defmodule Tmesh.Worker.Process do
  @moduledoc false
  # One worker process of the system. The port bounds its life: closing the port ends its input, and the port
  # reports its exit. The socket carries calls. A process that ends is started again, sooner or later.

  use GenServer
  require Logger

  alias Tmesh.{Error, Native, Telemetry}
  alias Tmesh.Worker.{Payload, Pool}

  @first_pause_ms 50
  @longest_pause_ms 5_000
  # The most items of a stream that are not released. Otherwise a worker could fill the caller's mailbox.
  @most_items 8
  # On a busy machine the port may report late why its process ended.
  @last_words_ms 5_000

  @typedoc """
  A call from its caller. `reply` is an alias of the caller. `again` means that a worker which had it ended before
  the call began.
  """
  @type call :: %{
          reply: reference(),
          caller: pid(),
          operation: String.t(),
          body: binary(),
          deadline: integer() | nil,
          grace_ms: non_neg_integer(),
          again: boolean()
        }

  @typedoc "The caller passes this to `give_back/1` after a result or item."
  @type hold :: {pid(), reference(), non_neg_integer(), non_neg_integer() | nil}

  @spec start_link({GenServer.server(), map()}) :: GenServer.on_start()
  def start_link({pool, options}), do: GenServer.start_link(__MODULE__, {pool, options})

  @doc "Run a call. Answers go to `call.reply`, and a message to the pool when this worker is idle again."
  @spec run(pid(), call()) :: :ok
  def run(worker, call), do: GenServer.cast(worker, {:run, call})

  @doc "Give a call up. Its caller receives nothing more of it."
  @spec cancel(pid(), reference()) :: :ok
  def cancel(worker, reply), do: GenServer.cast(worker, {:cancel, reply})

  @doc "Let the worker release the tensors that it holds for a result or item; nil for nothing."
  @spec give_back(hold() | nil) :: :ok
  def give_back(nil), do: :ok

  def give_back({worker, _life, _id, _sequence} = hold),
    do: GenServer.cast(worker, {:give_back, hold})

  @impl true
  def init({pool, options}) do
    # So that the pool's end calls terminate/2.
    Process.flag(:trap_exit, true)

    state = %{
      pool: pool,
      options: options,
      pause_ms: @first_pause_ms,
      # Members for one life of the system's process:
      life: nil,
      began: nil,
      up: false,
      asked: false,
      name: nil,
      port: nil,
      # The lines of its standard error before it was ready, the last lines first.
      said: [],
      partial: "",
      socket: nil,
      out: :queue.new(),
      next_id: 1,
      # By id: calls that run or whose results are held.
      calls: %{},
      running: nil
    }

    {:ok, state, {:continue, :start}}
  end

  @impl true
  def handle_continue(:start, state), do: start(state)

  @impl true
  def handle_cast({:run, call}, %{socket: nil} = state) do
    # The process ended before the pool learned of it: nothing of the call has begun, so it may be repeated. Do so
    # once only, because workers that end as soon as they are up could repeat it for ever.
    if call.again,
      do:
        answer(call, {:error, Error.new(:worker_down, "two workers ended before the call began")}),
      else: Pool.again(state.pool, %{call | again: true})

    {:noreply, state}
  end

  def handle_cast({:run, call}, state) do
    id = state.next_id
    timeout = if call.deadline, do: max(1, call.deadline - now())

    head = [
      ~s({"v":1,"type":"call","id":#{id},"timeout_ms":#{timeout || "null"},"operation":),
      Payload.string(call.operation)
    ]

    entry = %{
      call: call,
      monitor: Process.monitor(call.caller),
      held: MapSet.new(),
      state: :running
    }

    state = %{
      state
      | next_id: id + 1,
        asked: true,
        running: id,
        calls: Map.put(state.calls, id, entry)
    }

    state |> send_text([head, call.body]) |> look()
  end

  def handle_cast({:cancel, reply}, state) do
    case Enum.find(state.calls, fn {_id, entry} -> entry.call.reply == reply end) do
      {id, entry} -> abandon(state, id, entry)
      nil -> {:noreply, state}
    end
  end

  def handle_cast({:give_back, {_worker, life, id, sequence}}, %{life: life} = state)
      when is_map_key(state.calls, id),
      do: release(state, id, [sequence])

  def handle_cast({:give_back, _hold}, state), do: {:noreply, state}

  @impl true
  def handle_info(:start, state), do: start(state)

  def handle_info({port, {:data, data}}, %{port: port} = state), do: hear(state, data)

  # Read the remaining output first.
  def handle_info({port, {:exit_status, status}}, %{port: port} = state) do
    reason = "exit status #{status}"
    state = if state.up, do: state, else: hear_out(state)

    case state.socket && receive_all(state) do
      {:noreply, %{port: ^port} = state} -> down(state, reason)
      nil -> down(state, reason)
      # That message was the end already.
      noreply -> noreply
    end
  end

  def handle_info({:select, socket, _ref, :ready_input}, %{socket: socket} = state),
    do: receive_all(state)

  def handle_info({:select, socket, _ref, :ready_output}, %{socket: socket} = state),
    do: flush(state)

  def handle_info({:start_timeout, life}, %{life: life} = state) do
    if state.up, do: {:noreply, state}, else: down(state, "it did not start in time")
  end

  def handle_info({:grace_over, life, id}, %{life: life, running: id} = state),
    do: down(state, "it did not end a call that was given up")

  def handle_info({:DOWN, monitor, :process, _pid, _reason}, state) do
    case Enum.find(state.calls, fn {_id, entry} -> entry.monitor == monitor end) do
      {id, entry} -> abandon(state, id, entry)
      nil -> {:noreply, state}
    end
  end

  # From an earlier life.
  def handle_info(_other, state), do: {:noreply, state}

  # Closing the port ends the process's input, and so the process, unless the process holds the interpreter's lock.
  # This process owns the socket.
  @impl true
  def terminate(_reason, %{running: nil, up: true}), do: :ok
  def terminate(_reason, state), do: kill(state)

  ## Life

  defp start(state) do
    %{python: python, allow: allow, env: env, start_timeout_ms: timeout, spin_us: spin_us} =
      state.options

    life = make_ref()
    name = "tmesh-worker-" <> Base.encode16(:crypto.strong_rand_bytes(16), case: :lower)
    began = System.monotonic_time()
    state = %{state | life: life, name: name, began: began, up: false, asked: false}
    state = %{state | said: [], partial: ""}
    # Until it is ready its standard error comes here. Later it goes to this VM's standard error.
    args = ["-c", ~S(exec "$0" "$@" 3>&2 2>&1), python, "-m", "tmesh.worker", "--stderr-fd", "3"]
    args = args ++ ["--until-eof", "--socket", "@" <> name]
    args = args ++ ["--spin-us", "#{spin_us}"] ++ Enum.flat_map(allow, &["--allow", &1])

    try do
      port =
        Port.open({:spawn_executable, "/bin/sh"}, [
          :binary,
          :exit_status,
          :eof,
          line: 1024,
          args: args,
          env: env
        ])

      Process.send_after(self(), {:start_timeout, life}, timeout)
      {:noreply, %{state | port: port}}
    rescue
      # No such file, no permission, no descriptors, no ports, or a variable that no environment can have. Elixir
      # turns some of these into exceptions of its own.
      error in ErlangError -> down(state, "#{python}: #{why(error)}")
    end
  end

  defp why(error) do
    case Map.get(error, :original) do
      nil -> Exception.message(error)
      reason -> inspect(reason)
    end
  end

  defp came_up(state, pid) do
    Telemetry.execute(
      [:tmesh, :worker, :up],
      %{duration: System.monotonic_time() - state.began},
      %{pool: state.options.name, pid: pid}
    )

    Pool.idle(state.pool, self())
    # Measure its use from now on; starting may have taken long.
    {:noreply, %{state | up: true, began: System.monotonic_time()}}
  end

  # End this life: answer its callers, and start the next life. The pause is short if this life was of use, and
  # grows while lives are not.
  defp down(state, reason) do
    kill(state)
    lost = for {_id, entry} <- state.calls, entry.state == :running, do: entry.call
    for call <- lost, do: answer(call, {:error, down_error(reason)})
    for {_id, entry} <- state.calls, do: Process.demonitor(entry.monitor, [:flush])

    Telemetry.execute([:tmesh, :worker, :down], %{calls: length(lost)}, %{
      pool: state.options.name,
      reason: reason
    })

    Logger.warning("tmesh: a worker of #{inspect(state.options.name)} ended: #{reason}")
    how = if(state.up, do: :restarting, else: {:failed, reason <> quoted(state.said)})
    Pool.down(state.pool, self(), how)
    pause_ms = if good?(state), do: @first_pause_ms, else: state.pause_ms
    Process.send_after(self(), :start, pause_ms)

    {:noreply,
     %{
       state
       | life: nil,
         port: nil,
         socket: nil,
         out: :queue.new(),
         calls: %{},
         running: nil,
         pause_ms: min(pause_ms * 2, @longest_pause_ms)
     }}
  end

  # A worker that ends in a call may have ended because of the call.
  defp good?(%{up: up, asked: asked, began: began}) do
    lived = System.convert_time_unit(System.monotonic_time() - began, :native, :millisecond)
    up and (asked or lived > @longest_pause_ms)
  end

  defp kill(%{port: port, socket: socket, name: name}) do
    if socket do
      _killed = Native.worker_kill(socket)
      Native.worker_close(socket)
    else
      _killed =
        with {:os_pid, pid} <- port && Port.info(port, :os_pid),
             do: Native.worker_kill_unready(pid, name)

      :ok
    end

    # The message has no effect on a port that has closed already, which may happen at any moment.
    if port, do: send(port, {self(), :close})
  end

  # Print its lines, as they would appear without this process, and keep the last ones.
  @kept_lines 10
  @longest_line 4096

  defp hear(state, {:noeol, part}) do
    line = state.partial <> part
    bytes = min(byte_size(line), @longest_line)
    {:noreply, %{state | partial: binary_part(line, byte_size(line), -bytes)}}
  end

  defp hear(%{partial: partial} = state, {:eol, line}) do
    state = %{state | partial: ""}
    line = partial <> line

    # A module may have printed something before it on the same line, or this very word.
    if state.socket == nil and String.ends_with?(line, "ready") do
      case Native.worker_connect(state.name) do
        {:ok, socket} ->
          state = say(state, binary_part(line, 0, byte_size(line) - 5))
          receive_all(%{state | socket: socket})

        {:error, {_errno, message}} ->
          {:noreply, state |> say(line) |> say(message)}
      end
    else
      {:noreply, say(state, line)}
    end
  end

  defp say(state, ""), do: state

  defp say(state, line) do
    line = if String.valid?(line), do: line, else: inspect(line)
    IO.puts(:standard_error, line)
    %{state | said: Enum.take([line | state.said], @kept_lines)}
  end

  # The port reports the exit at once, but the output only when it was read.
  defp hear_out(%{port: port} = state) do
    receive do
      {^port, {:data, data}} ->
        {:noreply, state} = hear(%{state | socket: :ended}, data)
        hear_out(%{state | socket: nil})

      {^port, :eof} ->
        say(state, state.partial)
    after
      # Another process has its standard error open.
      @last_words_ms -> say(state, state.partial)
    end
  end

  defp quoted([]), do: ""
  defp quoted(said), do: ". It said: " <> (said |> Enum.reverse() |> Enum.join("\n"))

  defp down_error(reason), do: Error.new(:worker_down, "the worker ended: #{reason}")

  ## Messages

  defp receive_all(state) do
    case Native.worker_recv(state.socket, 0) do
      {:ok, text} ->
        case handle_text(state, text) do
          {:noreply, %{socket: nil}} = ended -> ended
          {:noreply, state} -> receive_all(state)
        end

      other ->
        no_text(state, other)
    end
  end

  # Look busily for the answer of a call that was just sent, if the pool's options ask for it. The socket is
  # selected, so further messages are reported.
  defp look({:noreply, %{socket: socket, options: %{spin_us: spin_us}} = state})
       when socket != nil and spin_us > 0 do
    case Native.worker_recv(socket, spin_us) do
      {:ok, text} -> handle_text(state, text)
      other -> no_text(state, other)
    end
  end

  defp look(noreply), do: noreply

  defp no_text(state, :eagain), do: {:noreply, state}
  defp no_text(state, :closed), do: down(state, last_words(state.port))
  defp no_text(state, {:error, {_errno, message}}), do: down(state, message)

  # The port reports the reason a moment after the socket's end, unless the process lives on.
  defp last_words(port) do
    receive do
      {^port, {:exit_status, status}} -> "exit status #{status}"
    after
      @last_words_ms -> "it closed its socket"
    end
  end

  defp handle_text(state, text) do
    case Native.json_decode(text) do
      {:ok, %{"v" => 1, "type" => type} = message} -> handle_message(state, type, message)
      {:ok, _message} -> down(state, "its message has no type")
      {:error, {_errno, why}} -> down(state, "its message is malformed: #{why}")
    end
  end

  defp handle_message(state, "hello", %{"pid" => pid}) when is_integer(pid) do
    if state.up, do: down(state, "it said hello again"), else: came_up(state, pid)
  end

  defp handle_message(%{running: id} = state, type, %{"id" => id} = message) when id != nil do
    handle_answer(state, id, type, message)
  end

  defp handle_message(state, "error", %{"id" => nil, "error" => %{"message" => why}})
       when is_binary(why),
       do: down(state, "it broke off: #{why}")

  defp handle_message(state, type, _message),
    do: down(state, "it sent a message out of turn: #{inspect(type, printable_limit: 50)}")

  defp handle_answer(state, id, "result", %{"value" => value, "held" => held} = message)
       when is_boolean(held) do
    sequence = nil
    entry = hold(state.calls[id], held, sequence)
    hold = if(held, do: {self(), state.life, id, sequence})
    answer(entry.call, {:result, value, hold, copied(message)})
    ended(state, id, entry)
  end

  defp handle_answer(
         state,
         id,
         "item",
         %{"value" => value, "sequence" => n, "held" => true} = message
       )
       when is_integer(n) do
    %{held: held} = entry = state.calls[id]

    if MapSet.size(held) < @most_items and n not in held,
      do: item(state, id, hold(entry, true, n), n, {value, copied(message)}),
      else: down(state, "it sent more than #{@most_items} items before their release")
  end

  defp handle_answer(state, id, "end", _message) do
    answer(state.calls[id].call, :end)
    ended(state, id, state.calls[id])
  end

  defp handle_answer(state, id, "error", %{"error" => %{"type" => type, "message" => why} = error})
       when is_binary(type) and is_binary(why) do
    answer(state.calls[id].call, {:error, error(type, why, error)})
    ended(state, id, state.calls[id])
  end

  defp handle_answer(state, _id, type, _message),
    do: down(state, "its answer is malformed: #{inspect(type, printable_limit: 50)}")

  defp item(state, id, entry, n, {value, copied}) do
    answer(entry.call, {:item, value, {self(), state.life, id, n}, copied})
    state = %{state | calls: %{state.calls | id => entry}}
    # No caller takes this answer.
    if entry.state == :abandoned, do: release(state, id, [n]), else: {:noreply, state}
  end

  defp copied(%{"copied" => bytes}) when is_integer(bytes) and bytes >= 0, do: bytes
  defp copied(_message), do: 0

  defp hold(entry, true, sequence), do: %{entry | held: MapSet.put(entry.held, sequence)}
  defp hold(entry, false, _sequence), do: entry

  defp ended(state, id, entry) do
    Pool.idle(state.pool, self())
    abandoned = entry.state == :abandoned
    state = %{state | running: nil, calls: %{state.calls | id => %{entry | state: :ended}}}
    release(state, id, if(abandoned, do: MapSet.to_list(entry.held), else: []))
  end

  # Abandon a call whose caller has ended or has cancelled it.
  defp abandon(state, id, %{state: :running} = entry) do
    Process.send_after(self(), {:grace_over, state.life, id}, entry.call.grace_ms)
    held = MapSet.to_list(entry.held)
    state = %{state | calls: %{state.calls | id => %{entry | state: :abandoned}}}

    case release(state, id, held) do
      {:noreply, %{socket: nil}} = ended -> ended
      {:noreply, state} -> send_text(state, ~s({"v":1,"type":"cancel","id":#{id}}))
    end
  end

  defp abandon(state, _id, %{state: :abandoned}), do: {:noreply, state}
  defp abandon(state, id, entry), do: release(state, id, MapSet.to_list(entry.held))

  # Tell the worker which tensors to release. Forget a call that has ended and holds nothing.
  defp release(state, id, sequences) do
    entry = state.calls[id]
    {given, _unknown} = Enum.split_with(sequences, &(&1 in entry.held))
    entry = %{entry | held: Enum.reduce(given, entry.held, &MapSet.delete(&2, &1))}

    calls =
      if entry.state == :ended and MapSet.size(entry.held) == 0 do
        Process.demonitor(entry.monitor, [:flush])
        Map.delete(state.calls, id)
      else
        %{state.calls | id => entry}
      end

    Enum.reduce(given, {:noreply, %{state | calls: calls}}, fn
      _sequence, {:noreply, %{socket: nil}} = ended -> ended
      sequence, {:noreply, state} -> send_text(state, release_text(id, sequence))
    end)
  end

  defp release_text(id, nil), do: ~s({"v":1,"type":"release","id":#{id}})
  defp release_text(id, n), do: ~s({"v":1,"type":"release","id":#{id},"sequence":#{n}})

  defp answer(call, message), do: send(call.reply, {call.reply, message})

  defp send_text(state, text) do
    flush(%{state | out: :queue.in(IO.iodata_to_binary(text), state.out)})
  end

  defp flush(state) do
    case :queue.peek(state.out) do
      :empty ->
        {:noreply, state}

      {:value, text} ->
        case Native.worker_send(state.socket, text) do
          :ok -> flush(%{state | out: :queue.drop(state.out)})
          :eagain -> {:noreply, state}
          {:error, {_errno, message}} -> down(state, message)
        end
    end
  end

  defp now, do: System.monotonic_time(:millisecond)

  # The types of a worker's errors, as in docs/reference/worker.md.
  @types %{
    "not_allowed" => :not_allowed,
    "malformed" => :invalid,
    "exception" => :operation,
    "cancelled" => :cancelled,
    "timeout" => :timeout,
    "too_large" => :limit_exceeded,
    "busy" => :limit_exceeded
  }

  @tensor_types %{
    "NotFoundError" => :not_found,
    "AccessError" => :access,
    "SealedError" => :sealed,
    "BusyError" => :busy,
    "ExistsError" => :exists,
    "StaleError" => :stale,
    "LimitError" => :limit_exceeded,
    "OutOfMemoryError" => :no_memory,
    "ProtocolError" => :protocol,
    "InvalidError" => :invalid,
    "PeerTimeoutError" => :timeout,
    "UnsupportedError" => :unsupported,
    "ReleasedError" => :closed
  }

  defp error("tensor", why, error) do
    %Error{
      Error.new(Map.get(@tensor_types, error["exception"], :system), why)
      | details: details(error)
    }
  end

  defp error(type, why, error) do
    %Error{Error.new(Map.get(@types, type, :system), why) | details: details(error)}
  end

  defp details(error) do
    for {key, name} <- [exception: "exception", traceback: "traceback"],
        is_binary(error[name]),
        into: %{},
        do: {key, error[name]}
  end
end
