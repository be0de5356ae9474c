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
  | `:float8_e5m2`, `:float8_e4m3fn` | `{:f, 8}`, `{:f8_e4m3fn, 8}` (of Nx 0.9 and 0.11 on) |
  | `:complex64`, `:complex128` | `{:c, 64}`, `{:c, 128}` |

  Names of axes are strings in the ref (`TensorRef.names`), travel with its description, and are
  Nx's atoms again in `to_nx/2`; in a call of `Tmesh.Worker`, where nothing has a place for them, they
  are lost. A vectorized tensor is refused: `Nx.devectorize/2` makes its vectorized axes dimensions
  like others, and `Nx.vectorize/2` brings them back at the other end.

  The tests run against a stand-in with the functions and shapes that Nx documents, for Nx itself
  cannot be had where they run.
  """

  import Tmesh.Bang

  alias Tmesh.{Error, Options, ZeroCopy}
  alias Tmesh.ZeroCopy.{Layout, TensorRef}

  @doc """
  The tensor behind a ref as an Nx tensor.

  Options:

    * `copy` - as for `Tmesh.ZeroCopy.to_binary/2`: a sealed and contiguous tensor is not copied, any
      other is, once, which `copy: false` refuses
    * `names` - of the axes, as Nx takes them, in place of the ref's

  Errors: `:unsupported` (Nx is not loaded, or has no such type; a name that is no atom of this VM),
  `:invalid` (`names` does not fit), and those of `to_binary/2`.
  """
  @spec to_nx(TensorRef.t(), copy: boolean(), names: [atom()]) ::
          {:ok, struct()} | {:error, Error.t()}
  def to_nx(%TensorRef{} = ref, opts \\ []) do
    with :ok <- loaded(),
         {:ok, opts} <- Options.validate(opts, copy: true, names: nil),
         {:ok, type} <- type(ref.dtype),
         {:ok, names} <- names(opts[:names] || ref.names, ref.shape),
         :ok <- elements(ref),
         {:ok, binary} <- ZeroCopy.to_binary(ref, copy: opts[:copy]),
         {:ok, flat} <- flat(binary, type) do
      {:ok, apply(Nx, :reshape, [flat, List.to_tuple(ref.shape), [names: names]])}
    end
  end

  # Which types there are is up to Nx's version.
  defp flat(binary, type) do
    {:ok, apply(Nx, :from_binary, [binary, type])}
  rescue
    error in ArgumentError ->
      {:error, Error.new(:unsupported, "this Nx takes no #{inspect(type)}: #{error.message}")}
  end

  @doc """
  A new tensor with the contents of an Nx tensor, which are copied once.

  Options are those of `Tmesh.ZeroCopy.from_binary/4`: `label`, `seal: false` and so on.

  Errors: `:unsupported` (Nx is not loaded, tmesh has no such type, or the tensor is vectorized),
  `:invalid` (no Nx tensor), and those of `from_binary/4`.
  """
  @spec from_nx(struct(), keyword()) :: {:ok, TensorRef.t()} | {:error, Error.t()}
  def from_nx(tensor, opts \\ []) do
    with {:ok, binary, shape, dtype} <- parts(tensor),
         {:ok, ref} <- ZeroCopy.from_binary(binary, shape, dtype, opts) do
      {:ok, %TensorRef{ref | names: texts(apply(Nx, :names, [tensor]))}}
    end
  end

  bang to_nx(ref :: TensorRef.t(), opts :: [copy: boolean(), names: [atom()]] \\ []) :: struct()
  bang from_nx(tensor :: struct(), opts :: keyword() \\ []) :: TensorRef.t()

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

  # Tensors of a Nx that knows no vectorized axes have no such member.
  defp tensor(%{__struct__: Nx.Tensor} = tensor) do
    case Map.get(tensor, :vectorized_axes, []) do
      [] ->
        :ok

      axes ->
        {:error,
         Error.new(
           :unsupported,
           "the tensor is vectorized (#{inspect(axes)}): Nx.devectorize/1 makes it one that can be shared"
         )}
    end
  end

  defp tensor(_other), do: {:error, Error.new(:invalid, "from_nx takes an Nx tensor")}

  # Nx has no tensors without elements.
  defp elements(%TensorRef{byte_size: 0}),
    do: {:error, Error.new(:unsupported, "Nx has no tensors without elements")}

  defp elements(_ref), do: :ok

  defp type(dtype) do
    with :error <- Layout.to_nx(dtype),
         do: {:error, Error.new(:unsupported, "Nx has no #{dtype}")}
  end

  defp dtype(type) do
    with :error <- Layout.from_nx(type),
         do: {:error, Error.new(:unsupported, "tmesh has no #{inspect(type)}")}
  end

  defp texts(names) do
    if Enum.any?(names), do: Enum.map(names, &(&1 && Atom.to_string(&1)))
  end

  # What came from elsewhere makes no atoms.
  defp names(nil, shape), do: {:ok, Enum.map(shape, fn _dim -> nil end)}

  defp names(names, shape) when is_list(names) and length(names) == length(shape) do
    names
    |> Enum.reduce_while({:ok, []}, fn name, {:ok, done} ->
      case atom(name) do
        {:ok, atom} -> {:cont, {:ok, [atom | done]}}
        error -> {:halt, error}
      end
    end)
    |> case do
      {:ok, done} -> {:ok, Enum.reverse(done)}
      error -> error
    end
  end

  defp names(names, _shape),
    do:
      {:error,
       Error.new(:invalid, "names must be a list with one for each axis: #{inspect(names)}")}

  defp atom(name) when is_atom(name), do: {:ok, name}

  defp atom(name) when is_binary(name) do
    {:ok, String.to_existing_atom(name)}
  rescue
    ArgumentError ->
      {:error,
       Error.new(
         :unsupported,
         "the axis #{inspect(name)} is no atom of this VM: give names: yourself"
       )}
  end

  defp atom(name), do: {:error, Error.new(:invalid, "#{inspect(name)} is no name of an axis")}
end
