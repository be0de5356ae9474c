# SPDX-License-Identifier: MIT
defmodule Tmesh.Error do
  @moduledoc """
  What went wrong, in every `{:error, error}` of this application and raised by the bang variants.

    * `type` is one of the atoms below, for code;
    * `message` says what was wrong and what to do, for people;
    * `details` holds `:errno`, the library's error as an atom such as `:enoent`, where it was the
      library's.

  | type | meaning |
  | --- | --- |
  | `:not_found` | the token is dead, foreign or guessed |
  | `:access` | the handle or token has not that right, the system or the region's owner does not permit it, or no permission on /dev/tmesh |
  | `:sealed` | the memory is sealed |
  | `:busy` | a writer prevents the seal, a binary or other pin the revocation; a channel's end is in use, or its places are taken |
  | `:exists` | something else is kept under that name |
  | `:stale` | the region was revoked, or its lease has lapsed |
  | `:closed` | the ref has no open handle here: released, or never opened |
  | `:limit_exceeded` | a limit would be passed: tmesh's own, or `max_shared_memory_mb` |
  | `:no_memory` | the system has no memory |
  | `:too_many_files` | no file descriptor is free but the last 128 (of a low limit a quarter), which tmesh leaves to the VM's files and sockets: release tensors, use an arena, or raise RLIMIT_NOFILE |
  | `:protocol` | a malformed ref or token, or one whose numbers do not fit its region |
  | `:invalid` | an argument is out of its range |
  | `:timeout` | a peer did not answer in time |
  | `:unsupported` | this backend, machine or tensor cannot do it |
  | `:mps_not_supported` | a tensor was asked for on an Apple GPU |
  | `:no_device` | no CUDA driver, no GPU, or not that one |
  | `:not_started` | the `:tmesh` application, or the pool of workers, is not started |
  | `:worker_down` | the worker ended, or cannot be started; what it was given is as it was |
  | `:not_allowed` | no operation of a module that the workers allow |
  | `:operation` | the operation raised: `details` has `:exception` and `:traceback` |
  | `:cancelled` | the call was given up |
  | `:gone` | nobody is left at the other end of the channel, or to signal the fence |
  | `:system` | another error of the system, named by `details.errno` |
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

  @types %{
    enoent: :not_found,
    eacces: :access,
    # Where a seal is the reason, the NIFs say so.
    eperm: :access,
    ebusy: :busy,
    eexist: :exists,
    estale: :stale,
    ebadf: :closed,
    edquot: :limit_exceeded,
    enomem: :no_memory,
    emfile: :too_many_files,
    enfile: :too_many_files,
    eproto: :protocol,
    einval: :invalid,
    eoverflow: :invalid,
    etimedout: :timeout,
    ecanceled: :cancelled,
    eagain: :timeout,
    eopnotsupp: :unsupported,
    enodev: :no_device,
    epipe: :gone,
    eownerdead: :gone,
    eloop: :invalid,
    esrch: :not_started
  }

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
  @spec from_native(Tmesh.Native.reason()) :: t()
  def from_native({:sealed, message}),
    do: %__MODULE__{type: :sealed, message: message, details: %{errno: :eperm}}

  # The library's word for the setting.
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
