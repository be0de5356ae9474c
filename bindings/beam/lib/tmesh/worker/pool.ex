# SPDX-License-Identifier: MIT
defmodule Tmesh.Worker.Pool do
  @moduledoc false
  # Gives calls to idle workers, in the order of arrival.

  use GenServer

  alias Tmesh.Error
  alias Tmesh.Worker.Process, as: Worker

  @spec start_link(map()) :: GenServer.on_start()
  def start_link(%{name: name} = options), do: GenServer.start_link(__MODULE__, options, name: name)

  @doc "Wait until a worker is up, or until none can be started."
  @spec started(GenServer.server()) :: :ok | {:error, Error.t()}
  def started(pool) do
    GenServer.call(pool, :started, :infinity)
  catch
    :exit, _reason -> {:error, Error.new(:worker_down, "the pool has ended while it was started")}
  end

  @spec submit(GenServer.server(), Worker.call()) :: :ok | {:error, Error.t()}
  def submit(pool, call) do
    GenServer.call(pool, {:submit, call}, :infinity)
  catch
    :exit, _reason -> {:error, Error.new(:not_started, "the pool has just ended")}
  end

  @spec cancel(GenServer.server(), reference()) :: :ok
  def cancel(pool, reply), do: GenServer.cast(pool, {:cancel, reply})

  @doc "Give a call to another worker, because its worker had ended before it began."
  @spec again(GenServer.server(), Worker.call()) :: :ok
  def again(pool, call), do: GenServer.cast(pool, {:again, call})

  @spec idle(GenServer.server(), pid()) :: :ok
  def idle(pool, worker), do: GenServer.cast(pool, {:idle, worker})

  @doc "Report that a worker's process has ended. It will restart, or could not start at all."
  @spec down(GenServer.server(), pid(), :restarting | {:failed, String.t()}) :: :ok
  def down(pool, worker, how), do: GenServer.cast(pool, {:down, worker, how})

  # workers: the state of each by pid: :idle, :busy, :restarting, {:failed, reason}
  @impl true
  def init(options) do
    {:ok,
     %{
       options: options,
       workers: %{},
       idle: :queue.new(),
       waiting: :queue.new(),
       running: %{},
       # Whether a worker has ever been up, and the callers that wait for the first one.
       started: false,
       starters: []
     }}
  end

  @impl true
  def handle_call(:started, _from, %{started: true} = state), do: {:reply, :ok, state}

  def handle_call(:started, from, state),
    do: {:noreply, fail_waiting(%{state | starters: [from | state.starters]})}

  def handle_call({:submit, call}, _from, state) do
    cond do
      failure = all_failed(state) ->
        {:reply, {:error, failure}, state}

      :queue.len(state.waiting) >= state.options.max_waiting ->
        {:reply, {:error, Error.new(:limit_exceeded, "too many calls wait for a worker")}, state}

      true ->
        {:reply, :ok, dispatch(%{state | waiting: :queue.in(call, state.waiting)})}
    end
  end

  @impl true
  def handle_cast({:idle, worker}, state) do
    state = state |> watch(worker) |> mark(worker, :idle) |> tell_starters(:ok)
    state = %{state | started: true}
    {:noreply, dispatch(%{state | idle: :queue.in(worker, state.idle)})}
  end

  def handle_cast({:down, worker, how}, state) do
    {:noreply, state |> watch(worker) |> mark(worker, how) |> fail_waiting()}
  end

  def handle_cast({:again, call}, state) do
    {:noreply, %{state | waiting: :queue.in_r(call, state.waiting)} |> dispatch() |> fail_waiting()}
  end

  def handle_cast({:cancel, reply}, state) do
    # Any worker may run the call, or still hold its result.
    for {worker, _what} <- state.workers, do: Worker.cancel(worker, reply)
    {:noreply, %{state | waiting: :queue.filter(&(&1.reply != reply), state.waiting)}}
  end

  # The Elixir process of a worker ended, which the end of the system's process never causes.
  @impl true
  def handle_info({:DOWN, _monitor, :process, worker, reason}, state) do
    error = Error.new(:worker_down, "the worker's keeper ended: #{inspect(reason)}")

    for {reply, ^worker} <- state.running, do: send(reply, {reply, {:error, error}})
    state = mark(state, worker, :gone)
    {:noreply, %{state | workers: Map.delete(state.workers, worker)}}
  end

  def handle_info(_other, state), do: {:noreply, state}

  # The pool learns of a worker by the worker's first message.
  defp watch(state, worker) when is_map_key(state.workers, worker), do: state

  defp watch(state, worker) do
    Process.monitor(worker)
    state
  end

  # Set the state of a worker; its call is over.
  defp mark(state, worker, what) do
    %{
      state
      | workers: Map.put(state.workers, worker, what),
        idle: :queue.delete(worker, state.idle),
        running:
          for({reply, other} <- state.running, other != worker, into: %{}, do: {reply, other})
    }
  end

  defp dispatch(state) do
    with {{:value, worker}, idle} <- :queue.out(state.idle),
         {{:value, call}, waiting} <- :queue.out(state.waiting) do
      state = %{state | waiting: waiting}

      if Process.alive?(call.caller) do
        Worker.run(worker, call)

        %{
          state
          | idle: idle,
            workers: Map.put(state.workers, worker, :busy),
            running: Map.put(state.running, call.reply, worker)
        }
      else
        state
      end
      |> dispatch()
    else
      {:empty, _queue} -> state
    end
  end

  # Answer the waiting callers if no worker can start.
  defp fail_waiting(state) do
    case all_failed(state) do
      nil ->
        state

      error ->
        for call <- :queue.to_list(state.waiting),
            do: send(call.reply, {call.reply, {:error, error}})

        tell_starters(%{state | waiting: :queue.new()}, {:error, error})
    end
  end

  defp tell_starters(state, outcome) do
    Enum.each(state.starters, &GenServer.reply(&1, outcome))
    %{state | starters: []}
  end

  defp all_failed(state) do
    failed = for {_worker, {:failed, reason}} <- state.workers, do: reason

    if length(failed) == state.options.size do
      Error.new(:worker_down, "no worker can be started: #{hd(failed)}")
    end
  end
end
