# SPDX-License-Identifier: MIT
defmodule Tmesh.Error do
  @moduledoc """
  The error in every `{:error, error}` of this application and raised by the bang variants.

    * `type` is one of the atoms below, for code;
    * `message` names the mistake and the remedy, for people;
    * `details` holds `:errno`, the library's error as an atom such as `:enoent`, where it was the
      library's.

  | type | meaning |
  | --- | --- |
  | `:not_found` | the token is dead, foreign or guessed |
  | `:access` | the handle or token lacks the right, or the system refuses it |
  | `:sealed` | the memory is sealed |
  | `:busy` | a writer, a pin or another user of the end prevents it |
  | `:exists` | something else is kept under that name |
  | `:stale` | the region was revoked, or its lease has lapsed |
  | `:closed` | the ref has no open handle here: released, or never opened |
  | `:limit_exceeded` | a limit would be passed: tmesh's own, or `max_shared_memory_mb` |
  | `:no_memory` | the system has no memory |
  | `:too_many_files` | no file descriptor is free, see below |
  | `:protocol` | a malformed ref or token, or one that its region contradicts |
  | `:invalid` | an argument is out of its range |
  | `:timeout` | a peer did not answer in time |
  | `:unsupported` | this backend, machine or tensor cannot do it |
  | `:mps_not_supported` | a tensor was asked for on an Apple GPU |
  | `:no_device` | no CUDA driver, no GPU, or not that one |
  | `:not_started` | the `:tmesh` application, or the pool of workers, is not started |
  | `:worker_down` | the worker ended or cannot start; its arguments are unchanged |
  | `:not_allowed` | no operation of a module that the workers allow |
  | `:operation` | the operation raised: `details` has `:exception` and `:traceback` |
  | `:cancelled` | the call was given up |
  | `:gone` | the channel's other end, or the fence's producer, is gone |
  | `:system` | another error of the system, named by `details.errno` |

  `:too_many_files`: tmesh leaves the last 128 descriptors (of a low limit a quarter) to the VM's files and sockets. Release
  tensors, use an arena, or raise RLIMIT_NOFILE.

  `:access` also stands for a missing permission on /dev/tmesh, and for a refusal by the region's owner.

  ## Mistakes of the caller

  A value that no call allows is `:invalid`: an unknown option, a negative size, `-1` for a timeout. Like after any
  error, the call has done nothing. An argument of another kind than its type, such as `nil` for a ref, raises
  `FunctionClauseError`, as in Elixir's own modules. Bang variants and enumerables raise `Tmesh.Error`. `fetch!` of
  bundles and models raises `KeyError`.
  """

  @type type ::
          :not_found
          | :access
          | :sealed
          | :busy
          | :exists
          | :stale
          | :closed
          | :limit_exceeded
          | :no_memory
          | :too_many_files
          | :protocol
          | :invalid
          | :timeout
          | :unsupported
          | :mps_not_supported
          | :no_device
          | :not_started
          | :worker_down
          | :not_allowed
          | :operation
          | :cancelled
          | :gone
          | :system

  @type t :: %__MODULE__{type: type(), message: String.t(), details: map()}

  @enforce_keys [:type, :message]
  defexception [:type, :message, details: %{}]

  # Tmesh.Net sends the first name to other programs. The NIFs report EPERM from a seal as :sealed.
  @errnos [
    not_found: ~w(enoent)a,
    access: ~w(eacces eperm)a,
    busy: ~w(ebusy)a,
    exists: ~w(eexist)a,
    stale: ~w(estale)a,
    closed: ~w(ebadf)a,
    limit_exceeded: ~w(edquot e2big)a,
    no_memory: ~w(enomem)a,
    too_many_files: ~w(emfile enfile)a,
    protocol: ~w(eproto)a,
    invalid: ~w(einval eoverflow eloop)a,
    timeout: ~w(etimedout eagain)a,
    cancelled: ~w(ecanceled)a,
    unsupported: ~w(eopnotsupp)a,
    no_device: ~w(enodev)a,
    gone: ~w(epipe eownerdead)a,
    not_started: ~w(esrch)a
  ]

  @types for {type, errnos} <- @errnos, errno <- errnos, into: %{}, do: {errno, type}
  @words for {errno, _type} <- @types,
             into: %{},
             do: {errno |> to_string() |> String.upcase(), errno}

  @doc false
  @spec new(type(), String.t()) :: t()
  def new(type, message), do: %__MODULE__{type: type, message: message}

  @doc false
  @spec bang!(:ok) :: :ok
  @spec bang!({:ok, value} | {:error, t()}) :: value when value: term()
  def bang!(:ok), do: :ok
  def bang!({:ok, value}), do: value
  def bang!({:error, error}), do: raise(error)

  @doc false
  # "ENOENT"
  @spec word(type()) :: String.t()
  def word(:sealed), do: "EPERM"
  def word(type), do: @errnos |> Keyword.get(type, [:eio]) |> hd() |> to_string() |> String.upcase()

  @doc false
  @spec from_word(String.t(), String.t()) :: t()
  def from_word(word, message), do: from_native({Map.get(@words, word, :eio), message})

  @doc false
  @spec from_native(Tmesh.Native.reason()) :: t()
  def from_native({:sealed, message}),
    do: %__MODULE__{type: :sealed, message: message, details: %{errno: :eperm}}

  # Replace the library's word by the name of the setting.
  def from_native({:edquot, message}) do
    message = String.replace(message, "(max_bytes)", "(the setting max_shared_memory_mb)")
    %__MODULE__{type: :limit_exceeded, message: message, details: %{errno: :edquot}}
  end

  def from_native({errno, message}) do
    %__MODULE__{
      type: Map.get(@types, errno, :system),
      message: message,
      details: %{errno: errno}
    }
  end
end
