# SPDX-License-Identifier: MIT
defmodule Tmesh.Nx do
  @moduledoc """
  Nx tensors over shared memory, and shared memory from Nx tensors. This module uses Nx if it is loaded, and needs
  it for nothing else.

      {:ok, ref} = Tmesh.Nx.from_nx(tensor)          # one copy, sealed
      {:ok, tensor} = Tmesh.Nx.to_nx(ref)            # none: it points into the region

  A tensor of `Nx.BinaryBackend` over a sealed region is read in place, and keeps the region like any binary
  (`Tmesh.ZeroCopy`). Other backends, such as EXLA's, make a copy of their own when they take it.

  | tmesh | Nx |
  | --- | --- |
  | `:int8` to `:int64` | `{:s, 8}` to `{:s, 64}` |
  | `:uint8` to `:uint64` | `{:u, 8}` to `{:u, 64}` |
  | `:bool` | `{:u, 8}`, as Nx has it; it comes back as `:uint8` |
  | `:float16`, `:float32`, `:float64` | `{:f, 16}`, `{:f, 32}`, `{:f, 64}` |
  | `:bfloat16` | `{:bf, 16}` |
  | `:float8_e5m2`, `:float8_e4m3fn` | `{:f, 8}`, `{:f8_e4m3fn, 8}` (of Nx 0.9 and 0.11 on) |
  | `:complex64`, `:complex128` | `{:c, 64}`, `{:c, 128}` |

  Names of axes are strings in the ref (`TensorRef.names`). They travel with its description, and become Nx's atoms
  again in `to_nx/2`. The vectorized axes of a tensor are the first dimensions of the ref's shape.
  `TensorRef.vectorized` names them and travels, too, and `to_nx/2` vectorizes the tensor again. Other languages see
  a tensor of all its dimensions. In a call of `Tmesh.Worker`, which carries no names, a tensor arrives with all its
  dimensions and without names.

  The tests run with a stand-in that has the functions and shapes that Nx documents, because Nx itself is not
  available where they run.
  """

  use Tmesh.Bang, ~w(to_nx/2 from_nx/2)
  alias Tmesh.{Error, Options, ZeroCopy}
  alias Tmesh.ZeroCopy.{Layout, TensorRef}

  @doc """
  Return the tensor behind a ref as an Nx tensor.

  Options:

    * `copy` - as for `Tmesh.ZeroCopy.to_binary/2`. A sealed and contiguous tensor is not copied. Others are copied
      once, which `copy: false` refuses
    * `names` - in Nx's form, of the axes that are not vectorized; replaces the ref's
    * `vectorized` - the names of the first axes, which become vectorized ones; replaces the ref's. `[]`: none

  Errors:

    * `:unsupported` - Nx is not loaded, or has no such type, or a name is no atom of this VM
    * `:invalid` - `names` or `vectorized` does not fit
    * those of `to_binary/2`
  """
  @spec to_nx(TensorRef.t(), copy: boolean(), names: [atom()], vectorized: [atom()]) ::
          {:ok, struct()} | {:error, Error.t()}
  def to_nx(%TensorRef{} = ref, opts \\ []) do
    with :ok <- loaded(),
         {:ok, opts} <- Options.validate(opts, copy: true, names: nil, vectorized: nil),
         {:ok, type} <- type(ref.dtype),
         {:ok, vectors} <- vectors(opts[:vectorized] || ref.vectorized || [], ref.shape),
         {outer, inner} = Enum.split(ref.shape, length(vectors)),
         {:ok, names} <- names(opts[:names] || inner_names(ref.names, length(vectors)), inner),
         :ok <- elements(ref),
         {:ok, binary} <- ZeroCopy.to_binary(ref, copy: opts[:copy]),
         {:ok, flat} <- flat(binary, type) do
      names = Enum.map(outer, fn _dim -> nil end) ++ names
      shaped = apply(Nx, :reshape, [flat, List.to_tuple(ref.shape), [names: names]])
      {:ok, vectorize(shaped, Enum.zip(vectors, outer))}
    end
  end

  defp inner_names(nil, _count), do: nil
  defp inner_names(names, count), do: Enum.drop(names, count)

  # An Nx without vectorized axes has no such function.
  defp vectorize(tensor, []), do: tensor
  defp vectorize(tensor, axes), do: apply(Nx, :vectorize, [tensor, axes])

  # The types depend on Nx's version.
  defp flat(binary, type) do
    {:ok, apply(Nx, :from_binary, [binary, type])}
  rescue
    error in ArgumentError ->
      {:error, Error.new(:unsupported, "this Nx takes no #{inspect(type)}: #{error.message}")}
  end

  @doc """
  Make a tensor with the contents of an Nx tensor, which are copied once. Vectorized axes become its first
  dimensions, and `TensorRef.vectorized` keeps their names.

  Options are those of `Tmesh.ZeroCopy.from_binary/4`: `label`, `seal: false` and so on.

  Errors: `:unsupported` (Nx is not loaded, or tmesh has no such type), `:invalid` (no Nx tensor), and
  those of `from_binary/4`.
  """
  @spec from_nx(struct(), keyword()) :: {:ok, TensorRef.t()} | {:error, Error.t()}
  def from_nx(tensor, opts \\ []) do
    with {:ok, binary, shape, dtype} <- parts(tensor),
         {:ok, ref} <- ZeroCopy.from_binary(binary, shape, dtype, opts) do
      vectors = tensor |> vectorized_axes() |> Keyword.keys()
      names = texts(vectors ++ apply(Nx, :names, [tensor]))
      {:ok, %{ref | names: names, vectorized: texts(vectors)}}
    end
  end

  # Return the binary, shape and type of a tensor, with its vectorized axes as its first dimensions.
  @doc false
  @spec parts(struct()) ::
          {:ok, binary(), TensorRef.shape(), TensorRef.dtype()} | {:error, Error.t()}
  def parts(tensor) do
    with :ok <- loaded(),
         :ok <- tensor(tensor),
         {:ok, dtype} <- dtype(apply(Nx, :type, [tensor])) do
      tensor = devectorize(tensor, vectorized_axes(tensor))
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

  # Tensors of an Nx without vectorized axes have no such member.
  defp vectorized_axes(tensor), do: Map.get(tensor, :vectorized_axes, [])

  # Drop the names: a name may belong to both a vectorized and another axis.
  defp devectorize(tensor, []), do: tensor
  defp devectorize(tensor, _axes), do: apply(Nx, :devectorize, [tensor, [keep_names: false]])

  # Nx has no tensors without elements.
  defp elements(%TensorRef{byte_size: 0}),
    do: {:error, Error.new(:unsupported, "Nx has no tensors without elements")}

  defp elements(_ref), do: :ok

  defp type(dtype) do
    with :error <- Layout.to_nx(dtype),
         do:
           {:error,
            Error.new(
              :unsupported,
              "no type of Nx has its elements where #{dtype} has them: take the bytes with " <>
                "Tmesh.ZeroCopy.to_binary/2"
            )}
  end

  defp dtype(type) do
    with :error <- Layout.from_nx(type),
         do: {:error, Error.new(:unsupported, no_dtype(type))}
  end

  # In Nx's binaries a byte has two or more such elements, in an order of its own.
  defp no_dtype({kind, bits}) when kind in [:s, :u] and bits < 8,
    do:
      "Nx's type {#{inspect(kind)}, #{bits}} has several elements in a byte, which tmesh's int4 and uint4 lay out " <>
        "in another way: give Nx.as_type(tensor, {#{inspect(kind)}, 8})"

  defp no_dtype(type),
    do:
      "no dtype is the same as Nx's type #{inspect(type)}: give the tensor another type with Nx.as_type/2"

  defp texts(names) do
    if Enum.any?(names), do: Enum.map(names, &(&1 && Atom.to_string(&1)))
  end

  defp vectors(names, shape) when is_list(names) and length(names) <= length(shape) do
    with {:ok, atoms} <- Options.map_ok(names, &atom/1) do
      if Enum.all?(atoms) and Enum.uniq(atoms) == atoms,
        do: {:ok, atoms},
        else: no_vectors(names)
    end
  end

  defp vectors(names, _shape), do: no_vectors(names)

  defp no_vectors(names) do
    {:error,
     Error.new(
       :invalid,
       "vectorized must be a list of different names, of at most as many axes as there are: #{inspect(names)}"
     )}
  end

  defp names(nil, shape), do: {:ok, Enum.map(shape, fn _dim -> nil end)}

  defp names(names, shape) when is_list(names) and length(names) == length(shape) do
    with {:ok, atoms} <- Options.map_ok(names, &atom/1) do
      named = Enum.filter(atoms, & &1)

      if Enum.uniq(named) == named,
        do: {:ok, atoms},
        else: {:error, Error.new(:invalid, "two axes have one name: #{inspect(names)}")}
    end
  end

  defp names(names, _shape),
    do:
      {:error,
       Error.new(
         :invalid,
         "names must be a list with one for each axis that is not vectorized: #{inspect(names)}"
       )}

  # Names from elsewhere make no atoms.
  defp atom(name) when is_atom(name), do: {:ok, name}

  defp atom(name) when is_binary(name) do
    {:ok, String.to_existing_atom(name)}
  rescue
    ArgumentError ->
      {:error,
       Error.new(
         :unsupported,
         "the axis #{inspect(name)} is no atom of this VM: give to_nx names: or vectorized: in place of the ref's"
       )}
  end

  defp atom(name), do: {:error, Error.new(:invalid, "#{inspect(name)} is no name of an axis")}
end
