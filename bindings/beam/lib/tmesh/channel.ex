# SPDX-License-Identifier: MIT
defmodule Tmesh.Channel do
  @moduledoc """
  One end of a bounded queue in shared memory that carries tensors and small messages one way,
  between processes of any of tmesh's languages.

      {:ok, channel} = Tmesh.Channel.create(:recv)
      # Python: out = tmesh.Channel.open(token, "send"); out.send(tensor)
      {:ok, %TensorRef{} = ref} = Tmesh.Channel.recv(channel, 1_000)

  A message is a binary of at most 56 bytes, a ref with a handle, or a tuple of such a ref and a
  binary of at most 24 bytes; what is sent comes out. Of a tensor only the description moves,
  whatever its size, and the sender may release it at once. What was sent is received also when the end that sent
  it is closed or its process ends, and in most cases when the VM does: docs/channels.md has the table.

  An end belongs to the Erlang process that created or opened it: it is closed when that one ends, or
  when nobody has it any more, and only one process at a time may use it or wait at it (`:busy`).
  When nobody is left at the other end, processes that were killed included, sending gives `:gone`,
  and receiving does once all was received. Waiting holds no scheduler, and has no limit unless one
  is given.

  ## As an enumerable

  An end that receives is an enumerable of its messages, which waits for each of them, ends with
  `:gone`, and raises other errors; what is not asked for stays in the channel:

      [first, second] = Enum.take(channel, 2)
      channel |> Stream.map(&Tmesh.ZeroCopy.to_binary!/1) |> Enum.each(&IO.inspect/1)

  An end that sends collects: `Enum.into(refs, channel)` sends each of them.
  """

  import Tmesh.Bang

  alias Tmesh.{Context, Error, Janitor, Native, Options}
  alias Tmesh.ZeroCopy.TensorRef

  @enforce_keys [:native, :token, :role]
  @derive {Inspect, only: [:role]}
  defstruct @enforce_keys

  @type role :: :send | :recv
  @type message :: binary() | TensorRef.t() | {TensorRef.t(), binary()}
  @type t :: %__MODULE__{
          native: Native.channel(),
          token: String.t(),
          role: role()
        }

  @typedoc """
  Of the channel, for `create/2` alone:

    * `slots` - messages under way, a power of two (64)
    * `producers` - ends that send (1)
    * `regions`, `layouts` - of tensors under way (16)

  Of this end:

    * `writable` - whether receivers may write to what is sent here (false)
    * `max_regions`, `max_bytes` - what a receiver keeps open (64, 1 GiB)
    * `limit` - of an end that sends: messages that it has under way at most, where it may not use all
      slots (0: as many as there are slots)
    * `spin_us` - how long `recv/2` looks busily, on its scheduler, before it waits: at most 100 (0)
  """
  @type option ::
          {:slots, pos_integer()}
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

  defguardp is_timeout(ms) when ms == :infinity or (is_integer(ms) and ms >= 0)

  @of_end [writable: false, max_regions: 0, max_bytes: 0, spin_us: 0, limit: 0]
  @of_channel [slots: 0, producers: 0, regions: 0, layouts: 0]

  @doc """
  A new channel, and this process's end of it. It lives as long as this end.

  Errors: `:invalid`, `:limit_exceeded`, `:no_memory`, `:too_many_files`.

      iex> {:ok, out} = Tmesh.Channel.create(:send, slots: 8)
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
      {:ok, %__MODULE__{native: native, token: token, role: role}}
    end
  end

  @doc """
  Join a channel by the token of its maker's end.

  Errors: `:not_found` (there is none any more), `:busy` (all places of that role are taken),
  `:protocol`, `:invalid`, `:timeout`.
  """
  @spec open(String.t(), role(), [end_option()]) :: {:ok, t()} | {:error, Error.t()}
  def open(token, role, opts \\ []) do
    with {:ok, opts} <- options(opts, @of_end),
         {:ok, native} <- native(Native.channel_open(Context.get(), token, role, opts)) do
      {:ok, %__MODULE__{native: native, token: token, role: role}}
    end
  end

  @doc """
  Send a message; waits while the channel is full, at most `timeout` ms.

  Errors: `:timeout`, `:gone`, `:invalid`, `:closed`, `:access`, `:stale`, `:protocol`, `:busy`.
  """
  @spec send(t(), message(), timeout()) :: :ok | {:error, Error.t()}
  def send(%__MODULE__{} = channel, message, timeout \\ :infinity) when is_timeout(timeout) do
    with {:ok, handle, bytes} <- to_native(message) do
      case Native.channel_send(channel.native, handle, bytes) do
        :ok -> :ok
        tried -> send_later(tried, channel, handle, bytes, deadline(timeout))
      end
    end
  end

  defp send_later(tried, channel, handle, bytes, deadline) do
    try = fn -> Native.channel_send(channel.native, handle, bytes) end
    tried |> wait(channel, try, deadline) |> native()
  end

  defp to_native({%TensorRef{handle: handle}, bytes}) when handle != nil, do: {:ok, handle, bytes}
  defp to_native(%TensorRef{handle: handle}) when handle != nil, do: {:ok, handle, ""}
  defp to_native(bytes) when is_binary(bytes), do: {:ok, nil, bytes}

  defp to_native(_other) do
    {:error,
     Error.new(
       :invalid,
       "a message is a binary, an open ref, or a tuple of such a ref and a binary"
     )}
  end

  @doc """
  The next message; waits until there is one, at most `timeout` ms.

  Errors: `:timeout`, `:gone`, `:not_found` (the message's tensor is gone with its owner; the next
  call goes on behind it), `:closed`, `:stale`, `:protocol`, `:too_many_files`, `:busy`.
  """
  @spec recv(t(), timeout()) :: {:ok, message()} | {:error, Error.t()}
  def recv(%__MODULE__{} = channel, timeout \\ :infinity) when is_timeout(timeout) do
    case Native.channel_recv(channel.native, nil) do
      {:ok, message} -> {:ok, from_native(message, nil)}
      tried -> recv_later(tried, channel, nil, nil, deadline(timeout))
    end
  end

  defp recv_later(tried, channel, handle, given, deadline) do
    take = fn -> Native.channel_recv(channel.native, handle) end
    try = fn -> Janitor.retry(take) end

    # A message whose region found no descriptor is there still.
    case wait(Janitor.retry(tried, take), channel, try, deadline) do
      :given -> {:ok, ref(:given, given)}
      {:ok, message} -> {:ok, from_native(message, given)}
      error -> native(error)
    end
  end

  defp from_native({nil, bytes}, _given), do: bytes
  defp from_native({tensor, ""}, given), do: ref(tensor, given)
  defp from_native({tensor, bytes}, given), do: {ref(tensor, given), bytes}

  defp ref(:given, {given, _bytes}), do: given
  defp ref(:given, given), do: given
  defp ref({handle, ref}, _given), do: TensorRef.unnamed(handle, ref)

  @doc """
  Send a message by `out` and wait for the one that comes by `into`: a call of somebody who answers
  each message with one of its own. Both ends are this process's.

  Where the answer is about the very tensor of `message`, say because it was changed in place, it
  comes with the ref that was given, and nothing else is to be released. With `spin_us` at `into`
  it costs one native call.

  Errors as of `send/3` and `recv/2`. After a timeout the answer may come yet, and would be taken
  for that to the next call: close the channels then, or number the messages.

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

  # Before anything is sent.
  def call(%__MODULE__{}, %__MODULE__{role: :send}, _message, timeout) when is_timeout(timeout),
    do: {:error, Error.new(:invalid, "the end for the answers is one that sends")}

  def call(%__MODULE__{} = out, %__MODULE__{} = into, message, timeout)
      when is_timeout(timeout) do
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
  Wait until all that was sent by this end was received, at most `timeout` ms.

  Before the VM ends, for certainty; `Tmesh.flush/1` does it for all ends, closed ones too.

      iex> {:ok, into} = Tmesh.Channel.create(:recv)
      iex> {:ok, out} = Tmesh.Channel.open(into.token, :send)
      iex> :ok = Tmesh.Channel.send(out, "one")
      iex> {:error, %Tmesh.Error{type: :timeout}} = Tmesh.Channel.flush(out, 0)
      iex> "one" = Tmesh.Channel.recv!(into)
      iex> Tmesh.Channel.flush(out)
      :ok

  Errors: `:timeout`, `:gone` (nobody is there to receive), `:invalid`, `:closed`, `:busy`.
  """
  @spec flush(t(), timeout()) :: :ok | {:error, Error.t()}
  def flush(%__MODULE__{} = channel, timeout \\ :infinity) when is_timeout(timeout) do
    try = fn -> Native.channel_flush(channel.native) end
    try.() |> wait(channel, try, deadline(timeout)) |> native()
  end

  bang create(role :: role(), opts :: [option()] \\ []) :: t()
  bang open(token :: String.t(), role :: role(), opts :: [end_option()] \\ []) :: t()
  bang send(channel :: t(), message :: message(), timeout :: timeout() \\ :infinity) :: :ok
  bang flush(channel :: t(), timeout :: timeout() \\ :infinity) :: :ok
  bang recv(channel :: t(), timeout :: timeout() \\ :infinity) :: message()

  bang call(out :: t(), into :: t(), message :: message(), timeout :: timeout() \\ :infinity) ::
         message()

  @doc """
  Leave the channel. What was sent can still be received, while there is somebody to receive it; where this end
  made the channel and nobody has come yet, for 5 s (`TMESH_LINGER`). Closing again is fine.
  """
  @spec close(t()) :: :ok
  def close(%__MODULE__{native: native}), do: Native.channel_close(native)

  # What came of the first try, and what is tried when it may be worth it.
  defp wait(tried, channel, try, deadline) do
    case tried do
      :eagain ->
        doze(channel, try, deadline)

      # No descriptor tells one of several producers of room, and schedulers that open regions
      # are scarce.
      waits when waits in [:full, :busy] ->
        if left(deadline) == 0, do: over(), else: nap(channel, try, deadline)

      :again ->
        wait(try.(), channel, try, deadline)

      done_or_error ->
        done_or_error
    end
  end

  # The reference comes into being and is waited for here, so that the emulator looks at no message
  # that was in the mailbox before, however many there are. The last who looks is this function, too:
  # behind that the emulator knows no more from where.
  defp doze(%__MODULE__{native: native} = channel, try, deadline) do
    ref = make_ref()

    case Native.channel_wait(native, ref) do
      :ok ->
        tried =
          receive do
            {:select, _end, ^ref, :ready_input} -> try.()
          after
            left(deadline) -> give_up(native, try)
          end

        # Who gives up may have been told meanwhile, and who waits when the end is closed of that and
        # of a message.
        forget(ref)
        wait(tried, channel, try, deadline)

      full_or_error ->
        wait(full_or_error, channel, try, deadline)
    end
  end

  defp nap(channel, try, deadline) do
    Process.sleep(1)
    wait(try.(), channel, try, deadline)
  end

  # What comes at the last moment is not lost, and no message comes later.
  defp give_up(native, try) do
    :ok = Native.channel_cancel(native)
    last(try)
  end

  defp last(try) do
    case try.() do
      waits when waits in [:eagain, :busy] -> over()
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

  defp over,
    do:
      {:error, Error.new(:timeout, "the channel gave no message, had no room, or was not emptied")}

  defp deadline(:infinity), do: :infinity
  defp deadline(ms), do: System.monotonic_time(:millisecond) + ms

  # At most what `after` takes.
  defp left(:infinity), do: :infinity

  defp left(deadline),
    do: (deadline - System.monotonic_time(:millisecond)) |> max(0) |> min(0xFFFF_FFFF)

  defp native({:error, {_errno, _why} = reason}), do: {:error, Error.from_native(reason)}
  defp native(other), do: other

  defp options(opts, known) do
    with {:ok, opts} <- Options.validate(opts, known) do
      if is_integer(opts[:spin_us]) and opts[:spin_us] >= 0 do
        {:ok,
         {opts[:slots] || 0, opts[:producers] || 0, opts[:regions] || 0, opts[:layouts] || 0,
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

  # Nobody knows without receiving.
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
