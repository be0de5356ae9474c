# SPDX-License-Identifier: MIT
defmodule Tmesh.ZeroCopy.TensorRef do
  @moduledoc """
  A tensor: its description, and the handle that holds its memory.

    * `id` - 16 hex digits that identify the region; `nil` like the token
    * `shape` - a list of at most 8 dimensions; `[]` is a scalar
    * `dtype` - see `t:dtype/0`
    * `device` - `:cpu` or `{:cuda, n}`
    * `shm_name` - the token: it opens the region for whoever has it and is allowed to, so it is
      not shown by `inspect/1`. A new tensor has none: it is named when it is first handed over, by
      `to_map/1`, `to_json/1` or `Tmesh.ZeroCopy.grant/2`, because memory that nobody else can hold
      is reused faster
    * `byte_size` - bytes of the elements
    * `strides` - in **elements**, one for each dimension
    * `offset` - bytes from the start of the region to the first element
    * `handle` - opaque; `nil` in a ref that is only a description, such as one from `from_map/1`

  A description travels as a map or as JSON, the same for all of tmesh's languages, and carries no
  handle: whoever receives it opens it with `Tmesh.ZeroCopy.open/2`, while the sender still holds
  the tensor.

  ## Lifetime

  The handle holds the tensor until `Tmesh.ZeroCopy.release/1`, or until the last process that has
  the ref has ended or collected it as garbage. The collector sees only a few words and may take
  its time: release what is large. A variable that is not used any more holds nothing, so release a
  ref after its peer is done, not before, or have `Tmesh.ZeroCopy.keep/2` hold the tensor for a
  process.
  """

  alias Tmesh.{Error, Janitor, Native}

  @dtypes ~w(bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64
             bfloat16 float8_e4m3fn float8_e5m2 complex64 complex128 int4 uint4 float4_e2m1fn)a
  @dtype_names Map.new(@dtypes, &{Atom.to_string(&1), &1})

  @type dtype ::
          :bool
          | :int8
          | :int16
          | :int32
          | :int64
          | :uint8
          | :uint16
          | :uint32
          | :uint64
          | :float16
          | :float32
          | :float64
          | :bfloat16
          | :float8_e4m3fn
          | :float8_e5m2
          | :complex64
          | :complex128
          | :int4
          | :uint4
          | :float4_e2m1fn

  @type shape :: [non_neg_integer()]
  @type device :: :cpu | {:cuda, non_neg_integer()}

  @type t :: %__MODULE__{
          id: String.t() | nil,
          shape: shape(),
          dtype: dtype(),
          device: device(),
          shm_name: String.t() | nil,
          byte_size: non_neg_integer(),
          strides: [integer()],
          offset: non_neg_integer(),
          handle: Native.handle() | nil
        }

  @derive {Inspect, except: [:shm_name, :handle]}
  @enforce_keys [:id, :shape, :dtype, :device, :shm_name, :byte_size, :strides, :offset]
  defstruct @enforce_keys ++ [:handle]

  @doc "All dtypes."
  @spec dtypes() :: [dtype(), ...]
  def dtypes, do: @dtypes

  @doc """
  The description as a map with string keys, for any encoder. Raises `Tmesh.Error` when a new
  tensor cannot be named, because it was released or no descriptor is free.

      iex> {:ok, ref} = Tmesh.ZeroCopy.allocate([2, 3], :int16)
      iex> map = Tmesh.ZeroCopy.TensorRef.to_map(ref)
      iex> {map["shape"], map["dtype"], map["strides"], map["byte_size"], map["device"]}
      {[2, 3], "int16", [3, 1], 12, "cpu"}
  """
  @spec to_map(t()) :: %{String.t() => term()}
  def to_map(%__MODULE__{} = ref) do
    ref =
      case named(ref) do
        {:ok, ref} -> ref
        {:error, error} -> raise error
      end

    %{
      "v" => 1,
      "id" => ref.id,
      "token" => ref.shm_name,
      "offset" => ref.offset,
      "byte_size" => ref.byte_size,
      "shape" => ref.shape,
      "dtype" => Atom.to_string(ref.dtype),
      "strides" => ref.strides,
      "device" => device_name(ref.device)
    }
  end

  @doc """
  The description in a map as `to_map/1` makes it, or as it was decoded from JSON.

  Anything may be handed to it: a map that no tensor can have gives `:protocol`. Other members are
  allowed and ignored.

      iex> Tmesh.ZeroCopy.TensorRef.from_map(%{"v" => 1, "dtype" => "float31"})
      {:error, %Tmesh.Error{type: :protocol, message: "not a ref: a member is missing or of another type"}}
  """
  @spec from_map(map()) :: {:ok, t()} | {:error, Error.t()}
  def from_map(%{
        "v" => 1,
        "id" => <<id::binary-size(16)>>,
        "token" => token,
        "offset" => offset,
        "byte_size" => byte_size,
        "shape" => shape,
        "dtype" => dtype,
        "strides" => strides,
        "device" => device
      })
      when is_map_key(@dtype_names, dtype) do
    with {:ok, number} <- parse_id(id),
         {:ok, device} <- parse_device(device) do
      native = {number, token, offset, byte_size, shape, @dtype_names[dtype], strides, device}

      case Native.ref_encode(native) do
        {:ok, _json} -> {:ok, from_native(native)}
        {:error, {_errno, message}} -> {:error, Error.new(:protocol, message)}
      end
    end
  end

  def from_map(_other), do: malformed()

  @doc "The description as JSON, on one line."
  @spec to_json(t()) :: {:ok, String.t()} | {:error, Error.t()}
  def to_json(%__MODULE__{} = ref) do
    with {:ok, ref} <- named(ref),
         {:ok, native} <- to_native(ref),
         {:error, reason} <- Native.ref_encode(native),
         do: {:error, Error.from_native(reason)}
  end

  @doc "The description in JSON from `to_json/1` or any other of tmesh's languages."
  @spec from_json(String.t()) :: {:ok, t()} | {:error, Error.t()}
  def from_json(json) do
    case Native.ref_decode(json) do
      {:ok, native} -> {:ok, from_native(native)}
      {:error, reason} -> {:error, Error.from_native(reason)}
    end
  end

  @doc false
  @spec from_native(Native.ref()) :: t()
  def from_native({id, token, offset, byte_size, shape, dtype, strides, device}) do
    %__MODULE__{
      id: hex(id),
      shape: shape,
      dtype: dtype,
      device: device,
      shm_name: if(token != "", do: token),
      byte_size: byte_size,
      strides: strides,
      offset: offset
    }
  end

  # Of a tensor that has no name yet: who never asks for one does not pay for it.
  @doc false
  @spec unnamed(Native.handle(), Native.ref()) :: t()
  def unnamed(handle, {_id, _token, offset, byte_size, shape, dtype, strides, device}) do
    %__MODULE__{
      id: nil,
      shape: shape,
      dtype: dtype,
      device: device,
      shm_name: nil,
      byte_size: byte_size,
      strides: strides,
      offset: offset,
      handle: handle
    }
  end

  # The ref with its id and token.
  @doc false
  @spec named(t(), :read | :write) :: {:ok, t()} | {:error, Error.t()}
  def named(%__MODULE__{handle: handle} = ref, rights) do
    case Janitor.retry(fn -> Native.ref(handle, rights) end) do
      {:ok, native} ->
        %__MODULE__{id: id, shm_name: token} = from_native(native)
        {:ok, %__MODULE__{ref | id: id, shm_name: token}}

      {:error, reason} ->
        {:error, Error.from_native(reason)}
    end
  end

  @doc false
  @spec named(t()) :: {:ok, t()} | {:error, Error.t()}
  def named(%__MODULE__{shm_name: nil, handle: handle} = ref) do
    case Native.name(handle) do
      {:ok, {id, token}} -> {:ok, %__MODULE__{ref | id: hex(id), shm_name: token}}
      {:error, reason} -> {:error, Error.from_native(reason)}
    end
  end

  def named(ref), do: {:ok, ref}

  defp hex(id), do: Base.encode16(<<id::64>>, case: :lower)

  # The NIF checks the rest.
  @doc false
  @spec to_native(t()) :: {:ok, Native.ref()} | {:error, Error.t()}
  def to_native(%__MODULE__{} = ref) do
    with {:ok, id} <- parse_id(ref.id) do
      {:ok,
       {id, ref.shm_name, ref.offset, ref.byte_size, ref.shape, ref.dtype, ref.strides, ref.device}}
    end
  end

  defp parse_id(<<_::binary-size(16)>> = id) do
    case Base.decode16(id, case: :mixed) do
      {:ok, <<number::64>>} -> {:ok, number}
      :error -> malformed()
    end
  end

  defp parse_id(_other), do: malformed()

  defp device_name(:cpu), do: "cpu"
  defp device_name({:cuda, n}), do: "cuda:#{n}"

  defp parse_device("cpu"), do: {:ok, :cpu}

  defp parse_device("cuda:" <> digits) do
    case Integer.parse(digits) do
      {n, ""} when n >= 0 -> {:ok, {:cuda, n}}
      _other -> malformed()
    end
  end

  defp parse_device(_other), do: malformed()

  defp malformed do
    {:error, Error.new(:protocol, "not a ref: a member is missing or of another type")}
  end
end
