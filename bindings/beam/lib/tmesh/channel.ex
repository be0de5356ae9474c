# SPDX-License-Identifier: MIT
defmodule Tmesh.Channel do
  @moduledoc """
  One end of a bounded queue in shared memory that carries tensors and small messages one way,
  between processes of any of tmesh's languages.

      {:ok, channel} = Tmesh.Channel.create(:recv)
      # Python: out = tmesh.Channel.open(token, "send"); out.send(tensor)
      {:ok, %TensorRef{} = ref} = Tmesh.Channel.recv(channel, 1_000)

  A message is a binary of at most 56 bytes, or a ref with a handle. A tuple of such a ref and a binary of at most
  24 bytes is a message, too. The receiver gets the same. Only the description of a tensor moves, whatever its size,
  and the sender may release it at once. Sent messages are received also after the sending end is closed or its
  process ends, and in most cases after the VM ends: docs/reference/channels.md has the table.

  The Erlang process that created or opened an end owns it. Like a port it is open until `close/1` or until that
  process ends, even without a variable that refers to it. Only one process at a time may use it or wait at it
  (`:busy`). When the last process at the other end is gone, also by a kill, sending gives `:gone`. Receiving does
  so after the last message. Waiting holds no scheduler, and has no limit unless you give one.

  ## As an enumerable

  A receiving end is an enumerable of its messages. It waits for each message, ends with `:gone`, and raises other
  errors. Messages that were not requested stay in the channel:

      [first, second] = Enum.take(channel, 2)
      channel |> Stream.map(&Tmesh.ZeroCopy.to_binary!/1) |> Enum.each(&IO.inspect/1)

  A sending end collects: `Enum.into(refs, channel)` sends each of them.

  ## In a GenServer

  Like `Tmesh.Slot.watch/1`, `watch/1` requests a message for the time when there may be something to receive:

      def handle_info({:tmesh_channel, tag}, %{channel: %{tag: tag}} = state) do
        state =
          case Tmesh.Channel.recv(state.channel, 0) do
            {:ok, message} -> handle(message, state)
            {:error, %Tmesh.Error{type: type}} when type in [:timeout, :gone, :closed] -> state
          end

        case Tmesh.Channel.watch(state.channel) do
          :ok -> {:noreply, state}
          {:error, %Tmesh.Error{type: type}} when type in [:gone, :closed] -> {:stop, :normal, state}
        end
      end
  """

  use Tmesh.Bang, ~w(create/2 open/3 send/3 flush/2 watch/1 recv/2 call/4)
  import Tmesh.Options, only: [is_timeout: 1, no_timeout: 0]

  alias Tmesh.{Context, Error, Janitor, Native, Options, ZeroCopy}
  alias Tmesh.ZeroCopy.TensorRef

  @enforce_keys [:native, :token, :role, :tag]
  @derive {Inspect, only: [:role]}
  defstruct @enforce_keys

  @type role :: :send | :recv
  @type message :: binary() | TensorRef.t() | {TensorRef.t(), binary()}
  @type t :: %__MODULE__{
          native: Native.channel(),
          token: String.t(),
          role: role(),
          tag: reference()
        }

  @typedoc """
  Options of the channel, for `create/2` alone:

    * `capacity` - messages in transit, a power of two (64)
    * `producers` - sending ends (1)
    * `regions`, `layouts` - of tensors in transit (16)

  Options of this end:

    * `writable` - whether receivers may write to the tensors sent here (false)
    * `max_regions`, `max_bytes` - how many regions and bytes a receiver keeps open (64, 1 GiB)
    * `limit` - the most messages of this sending end in transit, below `capacity` (0: all)
    * `spin_us` - how long `recv/2` looks busily, on its scheduler, before it waits: at most 100 (0)
  """
  @type option ::
          {:capacity, pos_integer()}
          | {:producers, pos_integer()}
          | {:regions, pos_integer()}
          | {:layouts, pos_integer()}
          | end_option()

  @type end_option ::
          {:writable, boolean()}
          | {:max_regions, pos_integer()}
          | {:max_bytes, pos_integer()}
          | {:limit, non_neg_integer()}
          | {:spin_us, 0..100}

  @of_end [writable: false, max_regions: 0, max_bytes: 0, spin_us: 0, limit: 0]
  @of_channel [capacity: 0, producers: 0, regions: 0, layouts: 0]

  @doc """
  Create a channel and this process's end of it. The channel lives as long as this end.

  Errors: `:invalid`, `:limit_exceeded`, `:no_memory`, `:too_many_files`.

      iex> {:ok, out} = Tmesh.Channel.create(:send, capacity: 8)
      iex> {:ok, into} = Tmesh.Channel.open(out.token, :recv)
      iex> Tmesh.Channel.send(out, "hello")
      iex> Tmesh.Channel.recv(into)
      {:ok, "hello"}
  """
  @spec create(role(), [option()]) :: {:ok, t()} | {:error, Error.t()}
  def create(role, opts \\ []) do
    with {:ok, opts} <- options(opts, @of_channel ++ @of_end),
         {:ok, context} <- Context.limited(),
         {:ok, {native, token}} <-
           native(Janitor.retry(fn -> Native.channel_create(context, role, opts) end)) do
      {:ok, %__MODULE__{native: native, token: token, role: role, tag: make_ref()}}
    end
  end

  @doc """
  Join a channel by the token of its maker's end.

  Errors: `:not_found` (the channel is gone), `:busy` (all places of that role are taken), `:protocol`, `:invalid`,
  `:timeout`.
  """
  @spec open(String.t(), role(), [end_option()]) :: {:ok, t()} | {:error, Error.t()}
  def open(token, role, opts \\ []) do
    with {:ok, opts} <- options(opts, @of_end),
         # eagain: too many opens wait for slow peers already.
         join = fn -> Native.channel_open(Context.get(), token, role, opts) end,
         {:ok, native} <- join |> Janitor.patiently() |> native() do
      {:ok, %__MODULE__{native: native, token: token, role: role, tag: make_ref()}}
    end
  end

  @doc """
  Send a message. The call waits while the channel is full, at most `timeout` ms.

  Errors: `:timeout`, `:gone`, `:invalid`, `:closed`, `:access`, `:stale`, `:protocol`, `:busy`.
  """
  @spec send(t(), message(), timeout()) :: :ok | {:error, Error.t()}
  def send(channel, message, timeout \\ :infinity)

  def send(%__MODULE__{} = channel, message, timeout) when is_timeout(timeout) do
    with {:ok, handle, bytes} <- to_native(message) do
      case Native.channel_send(channel.native, handle, bytes) do
        :ok -> :ok
        tried -> send_later(tried, channel, handle, bytes, deadline(timeout))
      end
    end
  end

  def send(%__MODULE__{}, _message, _timeout), do: no_timeout()

  defp send_later(tried, channel, handle, bytes, deadline) do
    try = fn -> Native.channel_send(channel.native, handle, bytes) end
    tried |> wait(channel, try, deadline) |> in_time("send timed out: the channel is full")
  end

  # Open a ref of another node for the call: it is garbage after the send.
  defp to_native({%TensorRef{} = ref, bytes}) do
    with {:ok, ref} <- ZeroCopy.here(ref), do: {:ok, ref.handle, bytes}
  end

  defp to_native(%TensorRef{} = ref), do: to_native({ref, ""})
  defp to_native(bytes) when is_binary(bytes), do: {:ok, nil, bytes}

  defp to_native(_other) do
    {:error,
     Error.new(
       :invalid,
       "a message is a binary, a ref, or a tuple of a ref and a binary"
     )}
  end

  @doc """
  Receive the next message. The call waits for one, at most `timeout` ms.

  Errors: `:timeout`, `:gone`, `:not_found` (the message's tensor is gone with its owner; the next call receives the
  next message), `:closed`, `:stale`, `:protocol`, `:too_many_files`, `:busy`.
  """
  @spec recv(t(), timeout()) :: {:ok, message()} | {:error, Error.t()}
  def recv(channel, timeout \\ :infinity)

  def recv(%__MODULE__{} = channel, timeout) when is_timeout(timeout) do
    case Native.channel_recv(channel.native, nil) do
      {:ok, message} -> {:ok, from_native(message, nil)}
      tried -> recv_later(tried, channel, nil, nil, deadline(timeout))
    end
  end

  def recv(%__MODULE__{}, _timeout), do: no_timeout()

  defp recv_later(tried, channel, handle, given, deadline) do
    take = fn -> Native.channel_recv(channel.native, handle) end
    try = fn -> Janitor.retry(take) end

    # If there was no descriptor for its region, the message is still in the channel.
    case wait(Janitor.retry(tried, take), channel, try, deadline) do
      :given -> {:ok, ref(:given, given)}
      {:ok, message} -> {:ok, from_native(message, given)}
      late_or_error -> in_time(late_or_error, "receive timed out: no message is ready")
    end
  end

  defp from_native({nil, bytes}, _given), do: bytes
  defp from_native({tensor, ""}, given), do: ref(tensor, given)
  defp from_native({tensor, bytes}, given), do: {ref(tensor, given), bytes}

  defp ref(:given, {given, _bytes}), do: given
  defp ref(:given, given), do: given
  defp ref({handle, ref}, _given), do: TensorRef.unnamed(handle, ref)

  @doc """
  Send a message by `out` and wait for the answer by `into`, as a call to a process that answers each message with
  one of its own. This process owns both ends.

  If the answer has the tensor of `message`, for example because the peer changed it in place, its ref is the given
  one. Then there is nothing else to release. With `spin_us` at `into` the call costs one native call.

  The errors are those of `send/3` and `recv/2`. After a timeout the answer may still come, and the next call would
  take it for its own. Close the channels then, or number the messages.

      iex> {:ok, out} = Tmesh.Channel.create(:send)
      iex> {:ok, into} = Tmesh.Channel.create(:recv)
      iex> answer = Task.async(fn ->
      ...>   {:ok, from} = Tmesh.Channel.open(out.token, :recv)
      ...>   {:ok, to} = Tmesh.Channel.open(into.token, :send)
      ...>   {:ok, question} = Tmesh.Channel.recv(from)
      ...>   Tmesh.Channel.send(to, question <> " yourself")
      ...> end)
      iex> Tmesh.Channel.call(out, into, "hello")
      {:ok, "hello yourself"}
      iex> Task.await(answer)
      :ok
  """
  @spec call(t(), t(), message(), timeout()) :: {:ok, message()} | {:error, Error.t()}
  def call(out, into, message, timeout \\ :infinity)

  # Refuse the timeout before anything is sent.
  def call(%__MODULE__{}, %__MODULE__{}, _message, timeout) when not is_timeout(timeout),
    do: no_timeout()

  def call(%__MODULE__{}, %__MODULE__{role: :send}, _message, _timeout),
    do: {:error, Error.new(:invalid, "the end for the answers is one that sends")}

  def call(%__MODULE__{} = out, %__MODULE__{} = into, message, timeout) do
    with {:ok, handle, bytes} <- to_native(message) do
      case Native.channel_call(out.native, into.native, handle, bytes) do
        :given ->
          {:ok, ref(:given, message)}

        {:ok, answer} ->
          {:ok, from_native(answer, message)}

        {:sent, tried} ->
          recv_later(tried, into, handle, message, deadline(timeout))

        tried ->
          deadline = deadline(timeout)

          with :ok <- send_later(tried, out, handle, bytes, deadline) do
            tried = Native.channel_recv(into.native, handle)
            recv_later(tried, into, handle, message, deadline)
          end
      end
    end
  end

  @doc """
  Request `{:tmesh_channel, channel.tag}` once, for this process. It comes when there may be something to receive,
  at once if there is something already, or when the last sender ends. `close/1` sends it, too. Receive with `recv/2`
  and the timeout 0, which does not end the watch. A call that waits at the end cancels the watch. Other processes
  cannot use the end meanwhile (`:busy`).

  Errors: `:gone` (the channel is empty and without a sender: no message comes), `:invalid` (a sending end),
  `:closed`, `:busy`.

      iex> {:ok, into} = Tmesh.Channel.create(:recv)
      iex> :ok = Tmesh.Channel.watch(into)
      iex> {:ok, out} = Tmesh.Channel.open(into.token, :send)
      iex> :ok = Tmesh.Channel.send(out, "hello")
      iex> receive do: ({:tmesh_channel, tag} when tag == into.tag -> Tmesh.Channel.recv(into, 0))
      {:ok, "hello"}
  """
  @spec watch(t()) :: :ok | {:error, Error.t()}
  def watch(%__MODULE__{role: :recv, native: native, tag: tag}) do
    collect(native)
    native |> Native.channel_watch({:tmesh_channel, tag}) |> native()
  end

  def watch(%__MODULE__{}),
    do: {:error, Error.new(:invalid, "watch: an end that sends has nothing to receive")}

  @doc """
  Wait until everything sent by this end was received, at most `timeout` ms.

  Call it before the VM ends, to be certain. `Tmesh.flush/1` does it for all ends, closed ones too.

      iex> {:ok, into} = Tmesh.Channel.create(:recv)
      iex> {:ok, out} = Tmesh.Channel.open(into.token, :send)
      iex> :ok = Tmesh.Channel.send(out, "one")
      iex> {:error, %Tmesh.Error{type: :timeout}} = Tmesh.Channel.flush(out, 0)
      iex> "one" = Tmesh.Channel.recv!(into)
      iex> Tmesh.Channel.flush(out)
      :ok

  Errors: `:timeout`, `:gone` (no receiver is left), `:invalid`, `:closed`, `:busy`.
  """
  @spec flush(t(), timeout()) :: :ok | {:error, Error.t()}
  def flush(channel, timeout \\ :infinity)

  def flush(%__MODULE__{} = channel, timeout) when is_timeout(timeout) do
    try = fn -> Native.channel_flush(channel.native) end

    try.()
    |> wait(channel, try, deadline(timeout))
    |> in_time("flush timed out: sent messages wait for a receiver")
  end

  def flush(%__MODULE__{}, _timeout), do: no_timeout()

  @doc """
  Leave the channel. Sent messages can still be received while there is a receiver. If this end made the channel and
  no receiver has come yet, they can be received for 5 s (`TMESH_EXIT_WAIT`). You may close it again.
  """
  @spec close(t()) :: :ok
  def close(%__MODULE__{native: native}), do: Native.channel_close(native)

  # Return the result of the first try, or wait and try again; `:late`: the time is over.
  defp wait(tried, channel, try, deadline) do
    case tried do
      # A call that does not wait leaves a watch as it is.
      :eagain ->
        if left(deadline) == 0, do: try_once(channel, try), else: doze(channel, try, deadline)

      # No descriptor reports room to one of several producers, and schedulers that open regions are scarce.
      waits when waits in [:full, :busy] ->
        if left(deadline) == 0, do: :late, else: nap(channel, try, deadline)

      :again ->
        wait(try.(), channel, try, deadline)

      done_or_error ->
        done_or_error
    end
  end

  # Make the reference and wait for it in this function. Then the emulator does not search messages that were in the
  # mailbox before, however many there are. The last receive must happen in this function, too: later the emulator
  # no longer knows where to start.
  defp doze(%__MODULE__{native: native} = channel, try, deadline) do
    collect(native)
    ref = make_ref()

    case Native.channel_wait(native, ref) do
      :ok ->
        tried =
          receive do
            {:select, _end, ^ref, :ready_input} -> try.()
          after
            left(deadline) -> give_up(native, try)
          end

        # A message may have come before the wait was given up. An end that is closed during a wait may send two.
        forget(ref)
        wait(tried, channel, try, deadline)

      full_or_error ->
        wait(full_or_error, channel, try, deadline)
    end
  end

  defp nap(channel, try, deadline) do
    collect(channel.native)
    Process.sleep(1)
    wait(try.(), channel, try, deadline)
  end

  # Collect garbage before a wait. A waiting process allocates nothing, so the emulator does not collect, and a ref
  # takes only a few words. Without this, a bounded channel would hold as many tensors as fit into heaps. Collect
  # only if that is quick compared with copying so many bytes.
  @worth_bytes 1_048_576
  @bytes_per_word 64

  defp collect(native) do
    {:ok, passed} = Native.channel_passed(native, 0)
    if passed >= @worth_bytes, do: collect(native, passed), else: :ok
  end

  defp collect(native, passed) do
    {:total_heap_size, words} = Process.info(self(), :total_heap_size)

    if passed >= words * @bytes_per_word do
      :erlang.garbage_collect()
      {:ok, _left} = Native.channel_passed(native, passed)
      :ok
    else
      :ok
    end
  end

  defp try_once(channel, try) do
    collect(channel.native)
    last(try)
  end

  # Keep a message that comes at the last moment; no message comes later.
  defp give_up(native, try) do
    :ok = Native.channel_cancel(native)
    last(try)
  end

  defp last(try) do
    case try.() do
      waits when waits in [:eagain, :busy] -> :late
      :again -> last(try)
      done -> done
    end
  end

  defp forget(ref) do
    receive do
      {:select, _end, ^ref, :ready_input} -> :ok
    after
      0 -> :ok
    end
  end

  # Name the call and the reason for its wait, in the words of the library.
  defp in_time(:late, message), do: {:error, Error.new(:timeout, message)}
  defp in_time(result, _message), do: native(result)

  defp deadline(:infinity), do: :infinity
  defp deadline(ms), do: System.monotonic_time(:millisecond) + ms

  # Use at most the longest time of `after`.
  defp left(:infinity), do: :infinity

  defp left(deadline),
    do: (deadline - System.monotonic_time(:millisecond)) |> max(0) |> min(0xFFFF_FFFF)

  defp native({:error, {_errno, _why} = reason}), do: {:error, Error.from_native(reason)}
  defp native(other), do: other

  defp options(opts, known) do
    with {:ok, opts} <- Options.validate(opts, known) do
      if is_integer(opts[:spin_us]) and opts[:spin_us] >= 0 do
        {:ok,
         {opts[:capacity] || 0, opts[:producers] || 0, opts[:regions] || 0, opts[:layouts] || 0,
          opts[:writable], opts[:max_regions], opts[:max_bytes], opts[:spin_us] * 1_000,
          opts[:limit]}}
      else
        {:error, Error.new(:invalid, "spin_us must be microseconds, at least 0")}
      end
    end
  end
end

defimpl Enumerable, for: Tmesh.Channel do
  alias Tmesh.{Channel, Error}

  def reduce(channel, {:suspend, acc}, fun),
    do: {:suspended, acc, &reduce(channel, &1, fun)}

  def reduce(_channel, {:halt, acc}, _fun), do: {:halted, acc}

  def reduce(channel, {:cont, acc}, fun) do
    case Channel.recv(channel) do
      {:ok, message} -> reduce(channel, fun.(message, acc), fun)
      {:error, %Error{type: :gone}} -> {:done, acc}
      {:error, error} -> raise error
    end
  end

  # The number of messages is unknown without receiving.
  def count(_channel), do: {:error, __MODULE__}
  def member?(_channel, _message), do: {:error, __MODULE__}
  def slice(_channel), do: {:error, __MODULE__}
end

defimpl Collectable, for: Tmesh.Channel do
  alias Tmesh.Channel

  def into(channel) do
    {channel,
     fn
       channel, {:cont, message} ->
         :ok = Channel.send!(channel, message)
         channel

       channel, :done ->
         channel

       _channel, :halt ->
         :ok
     end}
  end
end
