# SPDX-License-Identifier: MIT
defmodule Tmesh.Descriptor do
  @moduledoc """
  A file descriptor made for other code: a dma-buf of `Tmesh.ZeroCopy.export_dmabuf/2`, for a NIF, a driver, or
  `SCM_RIGHTS` of `:socket.sendmsg/2`.

    * `fd` - its number in this VM

  It is closed by `close/1`, or when no process has the struct any more: keep it for as long as the number is used.
  """

  alias Tmesh.Native

  @enforce_keys [:native, :fd]
  @derive {Inspect, only: [:fd]}
  defstruct @enforce_keys

  @type t :: %__MODULE__{native: Native.descriptor(), fd: non_neg_integer()}

  @doc "Close the descriptor. You may close it again."
  @spec close(t()) :: :ok
  def close(%__MODULE__{native: native}) do
    :ok = Native.descriptor_close(native)
  end
end
