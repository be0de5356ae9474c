# SPDX-License-Identifier: MIT
defmodule Tmesh.XLA do
  @moduledoc """
  Names of channels for the XLA of this VM, which is EXLA's. Inside a compiled program `push` sends tensors into a
  channel, and `pop` takes the next tensors from one. libtmesh-xla implements them.

  **None of this has run in EXLA itself**, which is not available where the tests run. They register with a stand-in
  for its library, and implement its protocol as in EXLA 0.12 and 0.13. They run the resulting StableHLO in JAX's
  XLA. To try it, add `exla` and `tmesh` to a project, install libtmesh-xla, and

      :ok = Tmesh.XLA.register()                                # once EXLA has loaded its library
      {:ok, stream} = Tmesh.Stream.start_link(name: :my_stream)
      {:ok, token} = Tmesh.Stream.attach_channel(:my_stream)
      :ok = Tmesh.XLA.bind("losses", token, :send)

  In a `defn` that EXLA compiles for the host, the call is a block. It returns the sequence. A call that takes the
  sequence happens after the call that returned it. Without it XLA may drop or merge calls.

      Nx.block(%Tmesh.XLA.Push{channel: "losses"}, [sequence, loss], sequence, default)
      Nx.block(%Tmesh.XLA.Pop{channel: "batches"}, [sequence], {sequence, like}, default)

  The sequence is a `u32` scalar, at first 0. Nx runs `default` if EXLA does not compile the block: let it raise.
  """

  use Tmesh.Bang, ~w(register/1 bind/3 unbind/1 cancel/1 flush/2 limit/1)
  alias Tmesh.{Context, Error, Janitor, Native}

  defmodule Push do
    @moduledoc """
    The tag of a block that sends. Its inputs are the sequence and tensors, its output is the sequence. `seal`: each
    tensor gets a sealed region of its own.
    """
    @enforce_keys [:channel]
    defstruct [:channel, timeout_ms: 60_000, seal: false]

    @type t :: %__MODULE__{
            channel: String.t(),
            timeout_ms: non_neg_integer(),
            seal: boolean()
          }
  end

  defmodule Pop do
    @moduledoc """
    The tag of a block that receives. Its input is the sequence, its outputs are the sequence and tensors.
    """
    @enforce_keys [:channel]
    defstruct [:channel, timeout_ms: 60_000]

    @type t :: %__MODULE__{channel: String.t(), timeout_ms: non_neg_integer()}
  end

  # The longest wait on a scheduler, which then serves other processes.
  @slice_ms 100

  @doc """
  Register `tmesh_push` and `tmesh_pop` with the XLA in a library that this VM has loaded, EXLA's by default. You
  may repeat it.

  Errors: `:not_found` (the library is not loaded), `:unsupported` (no XLA, another version, or libtmesh-xla is not
  installed), `:protocol` (XLA refuses).
  """
  @spec register(String.t() | nil) :: :ok | {:error, Error.t()}
  def register(library \\ nil), do: native(Native.xla_register(library))

  @doc """
  Join a channel by its token under `name` in this VM's programs: `:send` for a push, `:recv` for a pop. The channel
  that the name had before is left, and its waits end.

  Errors: `:invalid`, `:unsupported`, and those of `Tmesh.Channel.open/3`.
  """
  @spec bind(String.t(), String.t(), :send | :recv) :: :ok | {:error, Error.t()}
  def bind(name, token, role) do
    fn -> Native.xla_bind(Context.get(), name, token, role) end |> Janitor.patiently() |> native()
  end

  @doc """
  Leave the channel. Messages that were not received are lost; `flush/2` waits for them.

  Errors: `:not_found` (the name is not bound).
  """
  @spec unbind(String.t()) :: :ok | {:error, Error.t()}
  def unbind(name), do: native(Native.xla_unbind(name))

  @doc """
  End the calls that wait under the name at this moment.

  Errors: `:not_found`.
  """
  @spec cancel(String.t()) :: :ok | {:error, Error.t()}
  def cancel(name), do: native(Native.xla_cancel(name))

  @doc """
  Wait until everything pushed under the name was received, at most `timeout` ms.

  Errors: `:not_found`, `:timeout`, `:gone`, `:closed` (the name is bound for receiving).
  """
  @spec flush(String.t(), timeout()) :: :ok | {:error, Error.t()}
  def flush(name, timeout \\ :infinity)
      when timeout == :infinity or (is_integer(timeout) and timeout >= 0) do
    slice = if is_integer(timeout), do: min(timeout, @slice_ms), else: @slice_ms

    with {:error, %Error{type: :timeout}} = late <-
           native(Native.xla_flush(name, slice * 1_000_000)) do
      cond do
        timeout == :infinity -> flush(name, timeout)
        timeout > slice -> flush(name, timeout - slice)
        true -> late
      end
    end
  end

  @doc """
  Limit the bytes in transit by pushes, over all names; 0: no limit. A push beyond the limit fails.

  Errors: `:invalid`, `:unsupported`.
  """
  @spec limit(non_neg_integer()) :: :ok | {:error, Error.t()}
  def limit(max_bytes), do: native(Native.xla_limit(max_bytes))

  defp native({:error, {_errno, _why} = reason}), do: {:error, Error.from_native(reason)}
  defp native(:ok), do: :ok
end
