# SPDX-License-Identifier: MIT
defmodule Tmesh.Nx do
  @moduledoc """
  Nx tensors over shared memory, and shared memory from Nx tensors. Nx is used where it is loaded and
  not needed otherwise.

      {:ok, ref} = Tmesh.Nx.from_nx(tensor)          # one copy, sealed
      {:ok, tensor} = Tmesh.Nx.to_nx(ref)            # none: it points into the region

  A tensor of `Nx.BinaryBackend` over a sealed region is read in place, and keeps the region as any
  binary does (`Tmesh.ZeroCopy`). Other backends, such as EXLA's, make a copy of their own when they
  take it.

  | tmesh | Nx |
  | --- | --- |
  | `:int8` to `:int64` | `{:s, 8}` to `{:s, 64}` |
  | `:uint8` to `:uint64` | `{:u, 8}` to `{:u, 64}` |
  | `:bool` | `{:u, 8}`, as Nx has it; it comes back as `:uint8` |
  | `:float16`, `:float32`, `:float64` | `{:f, 16}`, `{:f, 32}`, `{:f, 64}` |
  | `:bfloat16` | `{:bf, 16}` |
  | `:float8_e5m2` | `{:f, 8}` |
  | `:complex64`, `:complex128` | `{:c, 64}`, `{:c, 128}` |

  Names of axes are Nx's alone and do not travel.

  The tests run against a stand-in with the functions and shapes that Nx documents, for Nx itself
  cannot be had where they run.
  """

  alias Tmesh.{Error, ZeroCopy}
  alias Tmesh.ZeroCopy.TensorRef

  @types %{
    int8: {:s, 8},
    int16: {:s, 16},
    int32: {:s, 32},
    int64: {:s, 64},
    uint8: {:u, 8},
    uint16: {:u, 16},
    uint32: {:u, 32},
    uint64: {:u, 64},
    float16: {:f, 16},
    float32: {:f, 32},
    float64: {:f, 64},
    bfloat16: {:bf, 16},
    float8_e5m2: {:f, 8},
    complex64: {:c, 64},
    complex128: {:c, 128}
  }
  @dtypes Map.new(@types, fn {dtype, type} -> {type, dtype} end)

  @doc """
  The tensor behind a ref as an Nx tensor.

  Options and copies are those of `Tmesh.ZeroCopy.to_binary/2`: none of a sealed and contiguous
  tensor, one of any other, which `copy: false` refuses.

  Errors: `:unsupported` (Nx is not loaded, or has no such type), and those of `to_binary/2`.
  """
  @spec to_nx(TensorRef.t(), copy: boolean()) :: {:ok, struct()} | {:error, Error.t()}
  def to_nx(%TensorRef{} = ref, opts \\ []) do
    with :ok <- loaded(),
         {:ok, type} <- type(ref.dtype),
         :ok <- elements(ref),
         {:ok, binary} <- ZeroCopy.to_binary(ref, opts) do
      flat = apply(Nx, :from_binary, [binary, type])
      {:ok, apply(Nx, :reshape, [flat, List.to_tuple(ref.shape)])}
    end
  end

  @doc """
  A new tensor with the contents of an Nx tensor, which are copied once.

  Options are those of `Tmesh.ZeroCopy.from_binary/4`: `label`, `seal: false` and so on.

  Errors: `:unsupported` (Nx is not loaded, or tmesh has no such type), `:invalid` (no Nx tensor), and
  those of `from_binary/4`.
  """
  @spec from_nx(struct(), keyword()) :: {:ok, TensorRef.t()} | {:error, Error.t()}
  def from_nx(tensor, opts \\ []) do
    with {:ok, binary, shape, dtype} <- parts(tensor),
         do: ZeroCopy.from_binary(binary, shape, dtype, opts)
  end

  # What a tensor is made of.
  @doc false
  @spec parts(struct()) ::
          {:ok, binary(), TensorRef.shape(), TensorRef.dtype()} | {:error, Error.t()}
  def parts(tensor) do
    with :ok <- loaded(),
         :ok <- tensor(tensor),
         {:ok, dtype} <- dtype(apply(Nx, :type, [tensor])) do
      shape = tensor |> then(&apply(Nx, :shape, [&1])) |> Tuple.to_list()
      {:ok, apply(Nx, :to_binary, [tensor]), shape, dtype}
    end
  end

  defp loaded do
    if Code.ensure_loaded?(Nx),
      do: :ok,
      else: {:error, Error.new(:unsupported, "Nx is not loaded: it is no part of this project")}
  end

  defp tensor(%{__struct__: Nx.Tensor}), do: :ok
  defp tensor(_other), do: {:error, Error.new(:invalid, "from_nx takes an Nx tensor")}

  # Nx has no tensors without elements.
  defp elements(%TensorRef{byte_size: 0}),
    do: {:error, Error.new(:unsupported, "Nx has no tensors without elements")}

  defp elements(_ref), do: :ok

  defp type(:bool), do: {:ok, {:u, 8}}

  defp type(dtype) do
    with :error <- Map.fetch(@types, dtype),
         do: {:error, Error.new(:unsupported, "Nx has no #{dtype}")}
  end

  defp dtype(type) do
    with :error <- Map.fetch(@dtypes, type),
         do: {:error, Error.new(:unsupported, "tmesh has no #{inspect(type)}")}
  end
end
