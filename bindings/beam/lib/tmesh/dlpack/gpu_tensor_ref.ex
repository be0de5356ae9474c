# SPDX-License-Identifier: MIT
defmodule Tmesh.DLPack.GPUTensorRef do
  @moduledoc """
  A tensor in the memory of a GPU, which this VM holds.

    * `shape`, `dtype`, `byte_size`, `strides` - as in `Tmesh.ZeroCopy.TensorRef`
    * `device` - `{:cuda, n}`, the GPU that has the memory, by its number in this VM; for host memory that a GPU uses,
      that GPU
    * `handle` - opaque

  The handle holds the memory like that of a `Tmesh.ZeroCopy.TensorRef`: until `Tmesh.ZeroCopy.release/1`, or until no
  process has the ref any more. Release it, because a GPU's memory is scarce, and the garbage collector sees only a
  few words.
  """

  alias Tmesh.ZeroCopy.TensorRef

  @type t :: %__MODULE__{
          shape: TensorRef.shape(),
          dtype: TensorRef.dtype(),
          device: {:cuda, non_neg_integer()},
          byte_size: non_neg_integer(),
          strides: [integer()],
          handle: Tmesh.Native.gpu()
        }

  @derive {Inspect, only: [:dtype, :shape, :device]}
  @enforce_keys [:shape, :dtype, :device, :byte_size, :strides, :handle]
  defstruct @enforce_keys
end
