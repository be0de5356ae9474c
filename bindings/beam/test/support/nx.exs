# SPDX-License-Identifier: MIT
# A stand-in for Nx: the functions that Tmesh.Nx calls, with the arguments, results and refusals that
# Nx documents. It is compiled by the tests that want it, so that others run without.

defmodule Nx.BinaryBackend do
  @moduledoc false
  defstruct [:state]
end

defmodule Nx.Tensor do
  @moduledoc false
  defstruct [:data, :type, :shape, :names, vectorized_axes: []]
end

defmodule Nx do
  @moduledoc false

  @types for(n <- [8, 16, 32, 64], k <- [:s, :u], do: {k, n}) ++
           [{:f8_e4m3fn, 8}, {:f, 8}, {:f, 16}, {:f, 32}, {:f, 64}, {:bf, 16}, {:c, 64}, {:c, 128}]

  def from_binary(binary, {_kind, bits} = type) when is_binary(binary) and type in @types do
    count = div(bit_size(binary), bits)
    if binary == "", do: raise(ArgumentError, "cannot build an empty tensor")
    if count * bits != bit_size(binary), do: raise(ArgumentError, "binary does not match the type")
    tensor(binary, type, {count})
  end

  def reshape(%Nx.Tensor{} = tensor, shape, opts \\ []) when is_tuple(shape) do
    names = opts[:names] || List.duplicate(nil, tuple_size(shape))
    named = Enum.reject(names, &is_nil/1)

    if length(names) != tuple_size(shape) or Enum.uniq(named) != named or
         not Enum.all?(names, &is_atom/1),
       do: raise(ArgumentError, "invalid names for tensor")

    if Tuple.product(shape) != Tuple.product(tensor.shape),
      do: raise(ArgumentError, "cannot reshape to a different size")

    %{tensor(tensor.data.state, tensor.type, shape) | names: names}
  end

  def names(%Nx.Tensor{} = tensor), do: tensor.names

  # Its shape is that of an element of the vectors, its binary has all of them.
  def vectorize(%Nx.Tensor{} = tensor, name) when is_atom(name), do: vectorize(tensor, [name])
  def vectorize(%Nx.Tensor{} = tensor, axes), do: Enum.reduce(axes, tensor, &vectorize_one/2)

  defp vectorize_one({name, size}, %Nx.Tensor{shape: shape} = tensor) do
    if shape == {} or elem(shape, 0) != size,
      do: raise(ArgumentError, "expected vectorized axis #{inspect(name)} to have size #{size}")

    vectorize_one(name, tensor)
  end

  defp vectorize_one(name, %Nx.Tensor{} = tensor) do
    if Keyword.has_key?(tensor.vectorized_axes, name),
      do: raise(ArgumentError, "cannot use duplicate name in vectorized axes: #{inspect(name)}")

    [first | rest] = Tuple.to_list(tensor.shape)
    axes = tensor.vectorized_axes ++ [{name, first}]
    %{tensor | shape: List.to_tuple(rest), names: tl(tensor.names), vectorized_axes: axes}
  end

  def devectorize(%Nx.Tensor{vectorized_axes: axes} = tensor, opts \\ []) do
    shape = List.to_tuple(Keyword.values(axes) ++ Tuple.to_list(tensor.shape))
    kept = if Keyword.get(opts, :keep_names, true), do: & &1, else: fn _name -> nil end
    names = Enum.map(Keyword.keys(axes), kept) ++ tensor.names
    %{tensor | shape: shape, names: names, vectorized_axes: []}
  end

  def to_binary(%Nx.Tensor{} = tensor), do: tensor.data.state
  def type(%Nx.Tensor{} = tensor), do: tensor.type
  def shape(%Nx.Tensor{} = tensor), do: tensor.shape

  def tensor(binary, type, shape) do
    names = List.duplicate(nil, tuple_size(shape))
    data = %Nx.BinaryBackend{state: binary}
    %Nx.Tensor{data: data, type: type, shape: shape, names: names}
  end
end
