# SPDX-License-Identifier: MIT
defmodule Tmesh.Engine.Tensor do
  @moduledoc """
  A device tensor: memory that graphs of one engine read and write. It is opaque except for the operations that its
  flags allow.

      x = Tmesh.Engine.Tensor.create!(engine, [2, 4], :float32, writable: true)
      y = Tmesh.Engine.Tensor.create!(engine, [2, 4], :float32, readable: true)
      :ok = Tmesh.Engine.Tensor.write!(x, elements)
      :ok = Tmesh.Engine.dispatch!(graph, %{"x" => x}, %{"y" => y})
      elements = Tmesh.Engine.Tensor.read!(y)

  It has `shape`, `dtype`, `byte_size`, `device` (`:cpu`), `backend` (the engine's kind: `"onnx"`) and the flags
  `readable`, `writable`, `exportable`. `rights` is `:read`, or `:write` if graphs may write, too. Its memory is a
  region, until `destroy/1` or until no process has it any more. After `destroy/1` every operation gives `:closed`,
  also the dispatch of a binding that has it.
  """

  import Bitwise
  use Tmesh.Bang, ~w(create/4 wrap/3 read/1 write/2 export/1)
  alias Tmesh.{Context, Engine, Error, Native, Options, ZeroCopy}
  alias Tmesh.ZeroCopy.{Layout, TensorRef}

  @enforce_keys [
    :native,
    :shape,
    :dtype,
    :byte_size,
    :device,
    :backend,
    :readable,
    :writable,
    :exportable,
    :rights
  ]
  @derive {Inspect, except: [:native]}
  defstruct @enforce_keys

  @type t :: %__MODULE__{
          native: Native.engine(),
          shape: TensorRef.shape(),
          dtype: TensorRef.dtype(),
          byte_size: non_neg_integer(),
          device: TensorRef.device(),
          backend: String.t(),
          readable: boolean(),
          writable: boolean(),
          exportable: boolean(),
          rights: :read | :write
        }

  @typedoc "Operations allowed beside running graphs: `read/1`, `write/2`, `export/1`. The default is `false`."
  @type flag :: {:readable, boolean()} | {:writable, boolean()} | {:exportable, boolean()}

  @readable 1
  @writable 2
  @exportable 4
  @flags [readable: false, writable: false, exportable: false]

  @doc """
  Make a device tensor of zeros in a region of its own. Graphs may read and write it.

  Errors: `:invalid` (shape, dtype, options), `:limit_exceeded`, `:no_memory`, `:too_many_files`.
  """
  @spec create(
          Engine.t(),
          TensorRef.shape() | tuple(),
          TensorRef.dtype() | TensorRef.nx_type(),
          [flag()]
        ) :: {:ok, t()} | {:error, Error.t()}
  def create(%{native: engine}, shape, dtype, opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, @flags),
         {:ok, flags} <- flags(opts),
         do: make(engine, shape, dtype, flags)
  end

  # Make it on an engine, given by the engine's native term.
  @doc false
  @spec make(
          Native.engine(),
          TensorRef.shape() | tuple(),
          TensorRef.dtype() | TensorRef.nx_type(),
          non_neg_integer()
        ) :: {:ok, t()} | {:error, Error.t()}
  def make(engine, shape, dtype, flags) do
    {shape, dtype} = {Layout.shape(shape), Layout.dtype(dtype)}

    with {:ok, _context} <- Context.limited(),
         {:ok, native} <-
           Engine.call(fn -> Native.engine_tensor(engine, shape, dtype, flags) end),
         do: describe(native)
  end

  @doc """
  Make a device tensor on a tensor's own memory, without a copy.

  Options: the flags, and `rights` - `:read`, or `:write` if graphs may write (`:read`).

  Errors: `:closed`, `:access`, `:sealed` (graphs cannot write there), `:invalid` (it has strides; options),
  `:stale`.
  """
  @spec wrap(Engine.t(), TensorRef.t(), [flag() | {:rights, :read | :write}]) ::
          {:ok, t()} | {:error, Error.t()}
  def wrap(%{native: engine}, %TensorRef{} = ref, opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, [rights: :read] ++ @flags),
         {:ok, writable} <- rights(opts[:rights]),
         {:ok, flags} <- flags(opts),
         {:ok, %TensorRef{handle: handle}} <- ZeroCopy.here(ref, writable: writable),
         {:ok, native} <-
           Engine.call(fn -> Native.engine_tensor_wrap(engine, handle, writable, flags) end),
         do: describe(native)
  end

  defp rights(rights) when rights in [:read, :write], do: {:ok, rights == :write}
  defp rights(_other), do: {:error, Error.new(:invalid, "rights are :read or :write")}

  defp flags(opts) do
    bits = [readable: @readable, writable: @writable, exportable: @exportable]

    if Enum.all?(bits, fn {name, _bit} -> is_boolean(opts[name]) end),
      do: {:ok, for({name, bit} <- bits, opts[name], reduce: 0, do: (flags -> flags ||| bit))},
      else:
        {:error, Error.new(:invalid, "readable, writable and exportable are each true or false")}
  end

  defp describe(native) do
    with {:ok, info} <- Engine.call(fn -> Native.engine_tensor_info(native) end) do
      {flags, info} = Map.pop!(info, :flags)

      info =
        Map.merge(info, %{
          native: native,
          readable: (flags &&& @readable) != 0,
          writable: (flags &&& @writable) != 0,
          exportable: (flags &&& @exportable) != 0
        })

      {:ok, struct!(__MODULE__, info)}
    end
  end

  @doc """
  Return a copy of all elements, in C order and native byte order. The copy is counted (`Tmesh.stats/0`).

  Errors: `:access` (not `readable`), `:closed` (it was destroyed), `:limit_exceeded`, `:no_memory`.
  """
  @spec read(t()) :: {:ok, binary()} | {:error, Error.t()}
  def read(%__MODULE__{native: native}) do
    with {:ok, _context} <- Context.limited(),
         do: Engine.call(fn -> Native.engine_tensor_read(native) end)
  end

  @doc """
  Copy all elements from a binary of exactly as many bytes. The copy is counted.

  Errors: `:access` (not `writable`), `:closed` (it was destroyed), `:invalid` (another number of bytes), `:sealed`.
  """
  @spec write(t(), binary()) :: :ok | {:error, Error.t()}
  def write(%__MODULE__{native: native}, binary),
    do: Engine.call(fn -> Native.engine_tensor_write(native, binary) end)

  @doc """
  Return a tensor of the same memory, for others to open.

  Errors: `:access` (not `exportable`), `:closed` (it was destroyed).
  """
  @spec export(t()) :: {:ok, TensorRef.t()} | {:error, Error.t()}
  def export(%__MODULE__{native: native}) do
    with {:ok, {handle, ref}} <- Engine.call(fn -> Native.engine_tensor_export(native) end),
         do: {:ok, TensorRef.unnamed(handle, ref)}
  end

  @doc "Release its memory, once no run and no binding has it any more. You may repeat it."
  @spec destroy(t()) :: :ok
  def destroy(%__MODULE__{native: native}), do: Native.engine_tensor_destroy(native)
end
