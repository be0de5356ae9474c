# SPDX-License-Identifier: MIT
defmodule Tmesh.Worker do
  @moduledoc """
  Python functions, called from Elixir, with tensors that are not copied on the way.

      {:ok, _pool} = Tmesh.Worker.start_pool(allow: ["numpy"], size: 2)

      {:ok, a} = Tmesh.ZeroCopy.from_binary(data, [1024, 768], :float32)
      {:ok, b} = Tmesh.Worker.execute("numpy.multiply", [a, 2])
      {:ok, bytes} = Tmesh.ZeroCopy.to_binary(b)

  A pool keeps `size` processes `python -m tmesh.worker`, each of which runs one call at a time. Put it into your
  supervision tree,

      children = [{Tmesh.Worker, allow: ["my_operations"], env: [{"PYTHONPATH", "priv/python"}]}]

  or start it under tmesh's own with `start_pool/1`. A process that ends is started again. Its calls get
  `:worker_down`, and their arguments stay unchanged.

  ## Options of a pool

    * `allow` - the Python modules whose functions may be called, and no others. Required
    * `name` - the pool's name, `Tmesh.Worker` by default
    * `size` - the number of processes, by default the number of schedulers, at most 4
    * `python` - the interpreter, `"python3"` by default
    * `env` - further environment variables, a list of pairs of strings
    * `max_waiting` - how many calls may wait for a worker, 1000 by default
    * `start_timeout_ms` - how long a process may take to import its modules, 60 s by default
    * `spin_us` - how long each end looks busily for the other's next message before it sleeps, at most 100 (0). It
      occupies a scheduler for the answer of a call, and the worker's process for the next call. It saves both
      wakes, which take longer than a short operation, if calls follow each other fast

  ## Arguments

  A payload that is a list gives positional arguments. If it ends with keywords, they are keyword arguments:

      Tmesh.Worker.execute("numpy.sum", [ref, axis: 0])

  A map gives keyword arguments. A map with only the keys `args` and `kwargs` gives both. A payload may hold, nested
  at will:

  | Elixir | Python |
  | --- | --- |
  | `Tmesh.ZeroCopy.TensorRef` | NumPy array over the same memory, read-only |
  | `Tmesh.DLPack.GPUTensorRef` | `tmesh.cuda` array over the same memory, read-only |
  | `writable/1` of either | the same, writable |
  | `Tmesh.Arrow.TableRef` | `pyarrow.Table` over the same memory |
  | Nx tensor | NumPy array without axis names, over shared memory above `threshold_bytes` |
  | binary above `threshold_bytes` | memoryview over shared memory, read-only |
  | other binary | `str` when it is valid UTF-8, else `bytes` |
  | map with the key `"__snakepit_zero_copy__"` | as its `"ref"` |
  | other map, with strings or atoms as keys | `dict` |
  | list; number | `list`; `int`, `float` |
  | `nil`, `true`, `false` | `None`, `True`, `False` |
  | `:nan`, `:infinity`, `:neg_infinity`; other atom | `float`; `str` |

  `Tmesh.ZeroCopy.AutoDetect` decides which values travel through shared memory. This costs one copy into it; a ref
  costs none. Tuples, other structs and integers of more than 64 bits are refused.

  ## Results

  Results are converted in the same way. Arrays become `Tmesh.ZeroCopy.TensorRef`s, opened here and valid as long as
  you like, also after the worker has ended. Arrays in GPU memory become `Tmesh.DLPack.GPUTensorRef`s. Tables of
  pyarrow, Polars and pandas become `Tmesh.Arrow.TableRef`s. A map with the key `"__snakepit_zero_copy__"` becomes
  the object that it describes. `bytes` become binaries. Strings never become atoms. A generator function gives a
  stream: `stream/3`.

  ## Timeouts and cancelling

  `timeout` (60,000 ms by default, or `:infinity`) ends the wait with `:timeout`. The end of the calling process or
  `cancel/1` ends it, too. The operation can check `tmesh.worker.cancelled()` in Python. If it still runs after
  `grace_ms` (5,000), its process is killed and replaced.

  ## For generated wrappers

  A generator of Elixir functions for Python ones, such as SnakeBridge, can call `execute/3` with large arguments as
  they are. If it calls through something else, such as Snakepit's gRPC, use
  `Tmesh.ZeroCopy.AutoDetect.with_shared/2`. It encodes the arguments, and holds them during the call.

  The protocol between pool and worker, for clients in other languages, is in docs/reference/worker.md.

  ## Without shared memory

  With `config :tmesh, :zero_copy, enabled: false` large binaries, Nx tensors and results go through the socket.
  They are copied several times, and a message has at most 16 MiB (`:limit_exceeded` beyond). A line in the log and
  the event `[:tmesh, :worker, :fallback]` report each message. Refs still travel as refs, since their memory is
  shared already.
  """

  use Tmesh.Bang, ~w(start_pool/1 stop_pool/1 execute/3 start/3 await/1)
  require Logger

  alias Tmesh.{Config, Error, Options, Telemetry}
  alias Tmesh.Worker.{Payload, Pool, Writable}
  alias Tmesh.Worker.Process, as: WorkerProcess
  alias Tmesh.DLPack.GPUTensorRef
  alias Tmesh.ZeroCopy.TensorRef

  defmodule Writable do
    @moduledoc false
    @enforce_keys [:ref]
    defstruct [:ref]
    @type t :: %__MODULE__{ref: TensorRef.t() | GPUTensorRef.t()}
  end

  defmodule Call do
    @moduledoc "A call that was started: for `Tmesh.Worker.await/1` and `Tmesh.Worker.cancel/1`."
    @enforce_keys [:reply, :pool, :operation, :began, :deadline, :made, :inline_above]
    defstruct @enforce_keys ++ [copied: 0]

    @typedoc "Its members are for `Tmesh.Worker` only."
    @type t :: %__MODULE__{
            reply: reference(),
            pool: atom(),
            operation: String.t(),
            began: integer(),
            deadline: integer() | nil,
            made: [TensorRef.t()],
            inline_above: non_neg_integer() | nil,
            copied: non_neg_integer()
          }
  end

  @typedoc "See \"Options of a pool\"."
  @type pool_option ::
          {:allow, [String.t(), ...]}
          | {:name, atom()}
          | {:size, pos_integer()}
          | {:python, String.t()}
          | {:env, [{String.t(), String.t()}]}
          | {:max_waiting, non_neg_integer()}
          | {:start_timeout_ms, pos_integer()}
          | {:spin_us, 0..100}

  @typedoc """
    * `pool` - the pool's name, `Tmesh.Worker` by default
    * `timeout` - ms or `:infinity`
    * `grace_ms` - how long a cancelled operation may go on
    * `arena` - whether copied arrays lie one after the other in few regions, as in a `Tmesh.Arena` (false). Use it
      for many small results. They are not sealed, so `Tmesh.ZeroCopy.to_binary/2` copies them
  """
  @type option ::
          {:pool, atom()}
          | {:timeout, timeout()}
          | {:grace_ms, non_neg_integer()}
          | {:arena, boolean()}

  @doc """
  Start a pool under the `:tmesh` application, and wait until one of its workers is up. Stop it by its pid with
  `stop_pool/1`.

  Errors: `:worker_down` (no worker can be started, for example because a module is missing: the message has the
  last lines of its standard error), `:invalid`, `:not_started`.
  """
  @spec start_pool([pool_option()]) :: {:ok, pid()} | {:error, Error.t()}
  def start_pool(options) do
    with {:ok, options} <- pool_options(options),
         true <- is_pid(Process.whereis(Tmesh.WorkerSupervisor)) do
      spec = Supervisor.child_spec({Tmesh.Worker.Supervisor, options}, restart: :permanent)

      case DynamicSupervisor.start_child(Tmesh.WorkerSupervisor, spec) do
        {:ok, pid} ->
          with {:error, error} <- Pool.started(options.name) do
            _ended = stop_pool(pid)
            {:error, error}
          else
            :ok -> {:ok, pid}
          end

        {:error, {:shutdown, {:failed_to_start_child, Tmesh.Worker.Pool, {:already_started, _}}}} ->
          {:error, Error.new(:invalid, "#{inspect(options.name)} is running already: name another")}

        {:error, reason} ->
          {:error, Error.new(:invalid, "the pool cannot be started: #{inspect(reason)}")}
      end
    else
      false -> {:error, Error.new(:not_started, "the :tmesh application is not started")}
      error -> error
    end
  end

  @doc "Stop a pool of `start_pool/1` and its processes. Calls that run get `:worker_down`."
  @spec stop_pool(pid()) :: :ok | {:error, Error.t()}
  def stop_pool(pool) when is_pid(pool) do
    with {:error, :not_found} <- DynamicSupervisor.terminate_child(Tmesh.WorkerSupervisor, pool),
         do: {:error, Error.new(:not_started, "no pool of start_pool/1")}
  end

  @doc false
  @spec child_spec([pool_option()]) :: Supervisor.child_spec()
  def child_spec(options) do
    %{
      id: Keyword.get(options, :name, __MODULE__),
      start: {__MODULE__, :start_link, [options]},
      type: :supervisor
    }
  end

  @doc false
  @spec start_link([pool_option()]) :: Supervisor.on_start() | {:error, Error.t()}
  def start_link(options) do
    with {:ok, options} <- pool_options(options), do: Tmesh.Worker.Supervisor.start_link(options)
  end

  @doc """
  Mark a ref as writable for the operation. A tensor in host memory must be this VM's and not sealed.
  """
  @spec writable(TensorRef.t() | GPUTensorRef.t()) :: Writable.t()
  def writable(%kind{} = ref) when kind in [TensorRef, GPUTensorRef], do: %Writable{ref: ref}

  @doc """
  Call `operation`, such as `"numpy.multiply"`, with the arguments in `payload`, and wait for its result.

  Errors, beside those of opening tensors on either side:

    * `:operation` - it raised an exception
    * `:limit_exceeded` - a message or the queue is too long
    * `:invalid` - a value cannot be sent
    * `:not_allowed`, `:worker_down`, `:timeout`, `:not_started`
  """
  @spec execute(String.t(), map() | list(), [option()]) :: {:ok, term()} | {:error, Error.t()}
  def execute(operation, payload, opts \\ []) do
    start_call(operation, payload, opts, :result)
  end

  @doc """
  Start a call without waiting for it; several may run at once. Only the calling process may `await/1` or `cancel/1`
  it, and its end cancels it.
  """
  @spec start(String.t(), map() | list(), [option()]) :: {:ok, Call.t()} | {:error, Error.t()}
  def start(operation, payload, opts \\ []), do: start_call(operation, payload, opts, :call)

  @doc """
  Wait once for the result of a call that this process started.

  Errors: those of `execute/3`; `:invalid` for a call that was awaited or cancelled already, or that
  another process started.
  """
  @spec await(Call.t()) :: {:ok, term()} | {:error, Error.t()}
  def await(%Call{} = call) do
    if Process.get({__MODULE__, call.reply}),
      do: await_answer(call, call.reply),
      else: invalid("this process has no such call, or not any more")
  end

  defp await_answer(call, reply) do
    {result, copied} =
      case next(reply, call.deadline) do
        {^reply, {:result, value, hold, copied}} -> {take(call, value, hold), copied}
        {^reply, {:error, error}} -> {{:error, error}, 0}
        other -> {ended(other), 0}
      end

    # This does nothing to a call that has ended.
    if not match?({:ok, _value}, result), do: Pool.cancel(call.pool, reply)
    finish(%{call | copied: copied}, reply, result)
  end

  @doc """
  Cancel a call that this process started, without waiting for its end. Its result is dropped.
  """
  @spec cancel(Call.t()) :: :ok
  def cancel(%Call{} = call) do
    Pool.cancel(call.pool, call.reply)
    _result = finish(call, call.reply, {:error, Error.new(:cancelled, "the call was cancelled")})
    :ok
  end

  @doc """
  Call a generator function. Its items come in a lazy enumerable that the calling process must consume. The worker
  is at most 8 items ahead of the consumer. The call begins with the first item requested, and is cancelled when the
  consumer stops early.

  `timeout` applies to the whole call. Enumerating raises a `Tmesh.Error` for the errors of `execute/3`.
  """
  @spec stream(String.t(), map() | list(), [option()]) :: Enumerable.t()
  def stream(operation, payload, opts \\ []) do
    Stream.resource(
      fn ->
        case start_call(operation, payload, opts, :stream) do
          {:ok, call} -> call
          {:error, error} -> raise error
        end
      end,
      &next_item/1,
      fn
        :over -> :ok
        {:failed, error} -> raise error
        %Call{} = call -> cancel(call)
      end
    )
  end

  defp next_item(%Call{reply: reply} = call) do
    case next(reply, call.deadline) do
      {^reply, {:item, value, hold, copied}} ->
        call = %{call | copied: call.copied + copied}

        case take(call, value, hold) do
          {:ok, item} -> {[item], call}
          {:error, error} -> fail(call, error)
        end

      {^reply, :end} ->
        _result = finish(call, reply, {:ok, nil})
        {:halt, :over}

      {^reply, {:error, error}} ->
        fail(call, error)

      other ->
        {:error, error} = ended(other)
        fail(call, error)
    end
  end

  defp fail(call, error) do
    Pool.cancel(call.pool, call.reply)
    _result = finish(call, call.reply, {:error, error})
    {:halt, {:failed, error}}
  end

  ## Calls

  # docs/reference/worker.md allows 16 MiB. The header of a call takes less than the rest.
  @body_bytes 16 * 1_048_576 - 4096

  # `wanted`: the :result at once, a :call, or the items of a :stream.
  defp start_call(operation, payload, opts, wanted) do
    known = [pool: __MODULE__, timeout: 60_000, grace_ms: 5_000, arena: false]

    with {:ok, opts} <- Options.validate(opts, known),
         :ok <- check_call(operation, payload, opts),
         {:ok, pool} <- pool(opts[:pool]),
         {:ok, threshold} <- Config.get(:threshold_bytes),
         {:ok, payload} <- arguments(payload),
         {:ok, encoded} <- Payload.encode(payload) do
      tell_fallback(opts[:pool], "for", operation, encoded.inline_bytes)

      # Make one binary, which goes from process to process uncopied.
      body =
        IO.iodata_to_binary([
          ~s(,"payload":),
          encoded.json,
          ~s(,"stream":#{wanted == :stream},"inline":#{encoded.inline},"threshold_bytes":#{threshold}),
          if(opts[:arena], do: ~s(,"arena":true}), else: "}")
        ])

      if byte_size(body) <= @body_bytes do
        submit(pool, wanted, body, encoded, opts[:grace_ms], %{
          pool: opts[:pool],
          operation: operation,
          began: System.monotonic_time(),
          deadline: if(opts[:timeout] != :infinity, do: now() + opts[:timeout]),
          made: encoded.made,
          inline_above: if(encoded.inline, do: threshold)
        })
      else
        Payload.release(encoded.made)

        {:error,
         Error.new(
           :limit_exceeded,
           "a message is longer than 16 MiB: put what is large into tensors"
         )}
      end
    end
  end

  # Make the reference in this function, and pass it to the wait as an argument of its own, not as a member of the
  # call. Then the emulator does not search messages that were in the mailbox before, however many there are.
  defp submit(pool, wanted, body, encoded, grace_ms, call) do
    reply = :erlang.monitor(:process, pool, alias: :explicit_unalias)
    call = struct!(Call, Map.put(call, :reply, reply))
    operation = call.operation

    # Hold the sent values in the process dictionary, whatever becomes of the caller's variables.
    Process.put({__MODULE__, reply}, encoded.held)

    Telemetry.execute(
      [:tmesh, :worker, :call, :start],
      %{system_time: System.system_time(), payload_bytes: byte_size(body)},
      %{pool: call.pool, operation: operation}
    )

    request = %{
      reply: reply,
      caller: self(),
      operation: operation,
      body: body,
      deadline: call.deadline,
      grace_ms: grace_ms,
      again: false
    }

    case Pool.submit(pool, request) do
      :ok when wanted == :result -> await_answer(call, reply)
      :ok -> {:ok, call}
      {:error, error} -> finish(call, reply, {:error, error})
    end
  end

  # Return the next message of a call, or :timeout.
  defp next(reply, deadline) do
    timeout = if deadline, do: max(0, deadline - now()), else: :infinity

    receive do
      {^reply, _message} = answer -> answer
      {:DOWN, ^reply, :process, _pool, reason} -> {:down, reason}
    after
      timeout -> :timeout
    end
  end

  defp ended(:timeout), do: {:error, Error.new(:timeout, "no answer within the call's timeout")}

  defp ended({:down, reason}) do
    {:error, Error.new(:worker_down, "the pool ended: #{inspect(reason)}")}
  end

  defp ended({_reply, _other}) do
    {:error, Error.new(:protocol, "a worker answered a stream with a result, or the reverse")}
  end

  defp take(call, value, hold) do
    if call.inline_above do
      bytes = Payload.inline_bytes(value, call.inline_above)
      tell_fallback(call.pool, "from", call.operation, bytes)
    end

    result = Payload.decode(value)
    WorkerProcess.give_back(hold)
    result
  end

  # Receive nothing more of this call, and hold nothing for it.
  defp finish(call, reply, result) do
    :erlang.unalias(reply)
    Process.demonitor(reply)
    forget_answers(reply)
    Process.delete({__MODULE__, reply})
    Payload.release(call.made)

    outcome =
      case result do
        {:ok, _value} -> :ok
        {:error, %Error{type: type}} -> type
      end

    Telemetry.execute(
      [:tmesh, :worker, :call, :stop],
      %{duration: System.monotonic_time() - call.began, copied_bytes: call.copied},
      %{pool: call.pool, operation: call.operation, result: outcome}
    )

    result
  end

  # The call was cancelled, so the worker releases the values of these answers.
  defp forget_answers(reply) do
    receive do
      {^reply, _answer} -> forget_answers(reply)
      {:DOWN, ^reply, :process, _pool, _reason} -> forget_answers(reply)
    after
      0 -> :ok
    end
  end

  defp tell_fallback(_pool, _way, _operation, 0), do: :ok

  defp tell_fallback(pool, way, operation, bytes) do
    Logger.warning(
      "tmesh: #{bytes} bytes #{way} #{operation} are copied: shared memory is switched off " <>
        "(config :tmesh, :zero_copy, enabled: false)"
    )

    Telemetry.execute([:tmesh, :worker, :fallback], %{bytes: bytes}, %{
      pool: pool,
      operation: operation
    })
  end

  defp now, do: System.monotonic_time(:millisecond)

  ## Arguments

  defp pool(name) do
    case Process.whereis(name) do
      nil -> {:error, Error.new(:not_started, "no pool #{inspect(name)}: see Tmesh.Worker")}
      pid -> {:ok, pid}
    end
  end

  # Split [a, b: 1] as docs/reference/worker.md defines it.
  defp arguments([_first | _rest] = payload) when length(payload) > 0 do
    case payload |> Enum.reverse() |> Enum.split_while(&keyword?/1) do
      {[], _args} ->
        {:ok, payload}

      {keywords, args} ->
        kwargs = Map.new(keywords)

        if map_size(kwargs) == length(keywords),
          do: {:ok, %{"args" => Enum.reverse(args), "kwargs" => kwargs}},
          else: invalid("a payload has a keyword twice")
    end
  end

  # Refuse an improper list like other values that cannot be sent.
  defp arguments(payload), do: {:ok, payload}

  defp keyword?({name, _value}), do: is_atom(name)
  defp keyword?(_other), do: false

  defp check_call(operation, payload, opts) do
    cond do
      not (is_binary(operation) and String.valid?(operation) and
               String.length(operation) in 1..255) ->
        invalid("an operation is a string of 1 to 255 characters")

      not (is_list(payload) or (is_map(payload) and not is_struct(payload))) ->
        invalid("a payload is a list or a map of arguments")

      not is_atom(opts[:pool]) ->
        invalid("pool must be a name")

      opts[:timeout] != :infinity and not amount?(opts[:timeout], 1) ->
        invalid("timeout must be milliseconds, at least 1, or :infinity")

      not amount?(opts[:grace_ms], 0) ->
        invalid("grace_ms must be milliseconds")

      not is_boolean(opts[:arena]) ->
        invalid("arena must be true or false")

      true ->
        :ok
    end
  end

  # Timers take no more than 32 bits.
  defp amount?(value, low), do: is_integer(value) and value >= low and value <= 0xFFFF_FFFF

  @pool_options [
    :allow,
    name: __MODULE__,
    size: nil,
    python: "python3",
    env: [],
    max_waiting: 1000,
    start_timeout_ms: 60_000,
    spin_us: 0
  ]

  defp pool_options(options) do
    with {:ok, options} <- Options.validate(options, @pool_options) do
      options = Map.new(options)
      size = options.size || min(System.schedulers_online(), 4)
      python = is_binary(options.python) && System.find_executable(options.python)

      cond do
        not strings?(options[:allow]) or options.allow == [] ->
          invalid("allow must be a list of the Python modules that may be called")

        not (is_atom(options.name) and options.name != nil) ->
          invalid("name must be an atom")

        not (amount?(size, 1) and size <= 1024) ->
          invalid("size must be 1 to 1024")

        not is_binary(python) ->
          invalid("python must be an interpreter that can be found, not #{inspect(options.python)}")

        not env?(options.env) ->
          invalid("env must be a list of pairs of strings, and a name has no = and is not empty")

        not (amount?(options.max_waiting, 0) and amount?(options.start_timeout_ms, 1)) ->
          invalid("max_waiting and start_timeout_ms must be integers")

        not (amount?(options.spin_us, 0) and options.spin_us <= 100) ->
          invalid("spin_us must be microseconds, 0 to 100")

        true ->
          env = for {name, value} <- options.env, do: {charlist(name), charlist(value)}
          {:ok, %{options | size: size, python: python, env: env}}
      end
    end
  end

  defp env?(env) do
    is_list(env) and
      Enum.all?(env, fn
        {name, value} -> strings?([name, value]) and name != "" and not String.contains?(name, "=")
        _other -> false
      end)
  end

  defp strings?(list) do
    is_list(list) and
      Enum.all?(list, &(is_binary(&1) and String.valid?(&1) and not String.contains?(&1, "\0")))
  end

  defp charlist(string), do: String.to_charlist(string)

  defp invalid(message), do: {:error, Error.new(:invalid, message)}
end
