# SPDX-License-Identifier: MIT
defmodule Tmesh.ZeroCopy.Layout do
  @moduledoc false
  # Convert shapes and dtypes, Nx's forms too, to the library's form. Other terms stay as they are, and the library
  # refuses them.

  alias Tmesh.ZeroCopy.TensorRef

  @nx %{
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
    float8_e4m3fn: {:f8_e4m3fn, 8},
    float8_e5m2: {:f, 8},
    complex64: {:c, 64},
    complex128: {:c, 128}
  }

  # {:f, 32} and :f32.
  @dtypes for {dtype, {kind, bits} = type} <- @nx,
              short = if(kind == :f8_e4m3fn, do: kind, else: :"#{kind}#{bits}"),
              form <- [type, short],
              into: %{},
              do: {form, dtype}

  @spec shape(term()) :: term()
  def shape(shape) when is_tuple(shape), do: Tuple.to_list(shape)
  def shape(shape), do: shape

  @spec dtype(term()) :: term()
  def dtype(dtype), do: Map.get(@dtypes, dtype, dtype)

  @doc "Return Nx's type of a dtype."
  @spec to_nx(TensorRef.dtype()) :: {:ok, {atom(), pos_integer()}} | :error
  def to_nx(:bool), do: {:ok, {:u, 8}}
  def to_nx(dtype), do: Map.fetch(@nx, dtype)

  @doc "Return the dtype of one of Nx's types, in the form of `Nx.type/1`."
  @spec from_nx(term()) :: {:ok, TensorRef.dtype()} | :error
  def from_nx(type) when is_tuple(type), do: Map.fetch(@dtypes, type)
  def from_nx(_other), do: :error
end
