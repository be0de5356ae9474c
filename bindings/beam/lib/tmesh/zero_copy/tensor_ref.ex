# SPDX-License-Identifier: MIT
defmodule Tmesh.ZeroCopy.TensorRef do
  @moduledoc """
  A tensor: its description, and the handle that holds its memory.

    * `id` - 16 hex digits that identify the region, as in `tmeshctl` and `Tmesh.regions/0`
    * `shape` - a list of at most 8 dimensions; `[]` is a scalar
    * `dtype` - see `t:dtype/0`
    * `device` - `:cpu` or `{:cuda, n}`
    * `token` - opens the region for a process that has it and the permission. So `inspect/1` shows the region's
      label instead. A new tensor has no token, because memory that no other process can hold is reused faster. It gets
      one when it is first handed over, by `to_map/1`, `to_json/1` or `Tmesh.ZeroCopy.grant/2`
    * `byte_size` - bytes of the elements
    * `strides` - in **elements**, one for each dimension
    * `offset` - bytes from the start of the region to the first element
    * `names` - the axis names of an Nx tensor (`Tmesh.Nx`): a list of strings and `nil`s, or `nil` without any.
      They travel with the description, and mean nothing to other languages
    * `vectorized` - the names of the vectorized axes of an Nx tensor, which are the first axes: a list of strings,
      or `nil`. It travels as `names` does
    * `handle` - opaque; `nil` in a ref that is only a description, such as one from `from_map/1`

  A description travels as a map or as JSON, the same for all of tmesh's languages, and carries no handle. The
  receiver opens it with `Tmesh.ZeroCopy.open/2`, while the sender still holds the tensor.

  ## Lifetime

  The handle holds the tensor until `Tmesh.ZeroCopy.release/1`, or until the last process with the ref has ended or
  has collected it as garbage. Release large tensors, because the collector sees only a few words and may take its
  time. Release a ref after its peer is done, not before. A variable that is not used any more holds nothing:
  `Tmesh.ZeroCopy.tie/2` can hold the tensor for a process instead.
  """

  use Tmesh.Bang, ~w(from_map/1 to_map/2 to_json/2 from_json/1)
  alias Tmesh.{Error, Janitor, Native, Options}
  alias Tmesh.Worker.Payload

  @dtypes ~w(bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64
             bfloat16 float8_e4m3fn float8_e5m2 complex64 complex128 int4 uint4 float4_e2m1fn)a
  @members ~w(v id token offset byte_size shape dtype strides device)

  @type dtype :: unquote(Enum.reduce(Enum.reverse(@dtypes), &{:|, [], [&1, &2]}))

  @typedoc "A type of Nx, or its short name: `{:f, 32}` or `:f32`."
  @type nx_type :: {atom(), pos_integer()} | atom()

  @type shape :: [non_neg_integer()]
  @type device :: :cpu | {:cuda, non_neg_integer()}

  @type t :: %__MODULE__{
          id: String.t(),
          shape: shape(),
          dtype: dtype(),
          device: device(),
          token: String.t() | nil,
          byte_size: non_neg_integer(),
          strides: [integer()],
          offset: non_neg_integer(),
          names: [String.t() | nil] | nil,
          vectorized: [String.t(), ...] | nil,
          handle: Native.handle() | nil
        }

  @enforce_keys [:id, :shape, :dtype, :device, :token, :byte_size, :strides, :offset]
  defstruct @enforce_keys ++ [:names, :vectorized, :handle]

  @doc "All dtypes."
  @spec dtypes() :: [dtype(), ...]
  def dtypes, do: @dtypes

  @typedoc """
  `hold` - hold the memory until a process has opened the description, or for this many milliseconds, at most a day
  (`true`: 60,000; `false`). Use it to make a tensor, hand over its description and release it:

      def handle_call(:batch, _from, state),
        do: {:reply, next_batch() |> TensorRef.to_json!(hold: true), state}

  Otherwise the memory stays while a ref or binary of this VM holds it. On the module sealed memory is held also
  after this VM ends. On memfd it ends with this VM: call `Tmesh.flush/1` before, which waits until all was opened, or
  let the VM's end wait (`TMESH_EXIT_WAIT`).
  """
  @type hold_option :: {:hold, boolean() | pos_integer()}

  @doc """
  Return the description as a map with string keys, for any encoder.

  Errors: `:closed` (a tensor without a token was released), `:too_many_files`, `:limit_exceeded`, as in
  `to_json/2`.

      iex> {:ok, ref} = Tmesh.ZeroCopy.allocate([2, 3], :int16)
      iex> map = Tmesh.ZeroCopy.TensorRef.to_map!(ref)
      iex> {map["shape"], map["dtype"], map["strides"], map["byte_size"], map["device"]}
      {[2, 3], "int16", [3, 1], 12, "cpu"}
  """
  @spec to_map(t(), [hold_option()]) :: {:ok, %{String.t() => term()}} | {:error, Error.t()}
  def to_map(%__MODULE__{} = ref, opts \\ []) do
    with {:ok, ref} <- handed_over(ref, opts), do: {:ok, described(ref)}
  end

  defp described(ref) do
    with_axes = for {key, value} <- axes(ref), into: %{}, do: {key, value}

    Map.merge(with_axes, %{
      "v" => 1,
      "id" => ref.id,
      "token" => ref.token,
      "offset" => ref.offset,
      "byte_size" => ref.byte_size,
      "shape" => ref.shape,
      "dtype" => Atom.to_string(ref.dtype),
      "strides" => ref.strides,
      "device" => device_name(ref.device)
    })
  end

  # Add the members that only Elixir writes, if there are any.
  defp axes(%__MODULE__{names: names, vectorized: vectorized}),
    do: for({key, value} <- [{"names", names}, {"vectorized", vectorized}], value, do: {key, value})

  @doc """
  Read a description from a map of `to_map/1`, or from decoded JSON.

  You may pass any map: one that no tensor can have gives `:protocol`. Only the token may be missing. Other members
  are allowed and ignored.

      iex> {:error, error} = Tmesh.ZeroCopy.TensorRef.from_map(%{"v" => 1, "dtype" => "float31"})
      iex> {error.type, error.message}
      {:protocol, "not a ref: a member is missing or of another type"}
  """
  @spec from_map(map()) :: {:ok, t()} | {:error, Error.t()}
  def from_map(%{} = map) do
    case @members |> Enum.map(&Map.get(map, &1)) |> List.to_tuple() |> Native.ref_from_members() do
      {:ok, native} -> native |> from_native() |> with_axes(map)
      {:error, reason} -> {:error, Error.from_native(reason)}
    end
  end

  def from_map(_other), do: malformed()

  defp with_axes(%__MODULE__{shape: shape} = ref, map) do
    {names, vectorized} = {map["names"], map["vectorized"]}

    if (names == nil or names?(names, shape)) and
         (vectorized == nil or vectorized?(vectorized, shape)),
       do: {:ok, %__MODULE__{ref | names: names, vectorized: vectorized}},
       else: malformed()
  end

  defp names?(names, shape) when is_list(names) and length(names) == length(shape),
    do: Enum.all?(names, &(&1 == nil or name?(&1)))

  defp names?(_other, _shape), do: false

  defp vectorized?([_ | _] = names, shape) when length(names) <= length(shape),
    do: Enum.all?(names, &name?/1) and Enum.uniq(names) == names

  defp vectorized?(_other, _shape), do: false

  defp name?(name), do: is_binary(name) and String.valid?(name)

  # The longest text that the library reads.
  @json_bytes 767

  @doc """
  Return the description as JSON, on one line.

  Errors:

    * `:closed` - a tensor without a token was released
    * `:invalid` - the names of axes are too long
    * `:limit_exceeded` - too much memory is held and was not opened
    * `:too_many_files`

      iex> json = Tmesh.ZeroCopy.from_binary!("abc", [3], :uint8) |> Tmesh.ZeroCopy.TensorRef.to_json!(hold: 5_000)
      iex> :erlang.garbage_collect()
      iex> Tmesh.ZeroCopy.to_binary!(Tmesh.ZeroCopy.open!(json))
      "abc"
  """
  @spec to_json(t(), [hold_option()]) :: {:ok, String.t()} | {:error, Error.t()}
  def to_json(%__MODULE__{} = ref, opts \\ []) do
    with {:ok, ref} <- handed_over(ref, opts),
         {:ok, native} <- to_native(ref) do
      case Native.ref_encode(native) do
        {:ok, json} -> json_axes(json, axes(ref))
        {:error, reason} -> {:error, Error.from_native(reason)}
      end
    end
  end

  defp json_axes(json, []), do: {:ok, json}

  defp json_axes(json, axes) do
    members =
      for {key, names} <- axes do
        texts = Enum.map(names, &if(&1, do: Payload.string(&1), else: "null"))
        [~s(,"#{key}":[), Enum.intersperse(texts, ","), "]"]
      end

    json = IO.iodata_to_binary([binary_part(json, 0, byte_size(json) - 1), members, "}"])

    if byte_size(json) <= @json_bytes,
      do: {:ok, json},
      else: {:error, Error.new(:invalid, "the names of the axes are too long for a ref")}
  end

  @doc "Read a description from JSON of `to_json/1` or of any other of tmesh's languages."
  @spec from_json(String.t()) :: {:ok, t()} | {:error, Error.t()}
  def from_json(json) do
    with {:ok, native} <- Native.ref_decode(json),
         # Decode it again only if it has members that the library does not know.
         {:ok, map} <-
           if(json =~ ~r/names|vectorized/, do: Native.json_decode(json), else: {:ok, %{}}) do
      native |> from_native() |> with_axes(map)
    else
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
      token: if(token != "", do: token),
      byte_size: byte_size,
      strides: strides,
      offset: offset
    }
  end

  # Make a ref without a token, which costs less.
  @doc false
  @spec unnamed(Native.handle(), Native.ref()) :: t()
  def unnamed(handle, native), do: %__MODULE__{from_native(native) | handle: handle}

  # Give the ref a token of its own, to read, if it is to hold the memory.
  defp handed_over(ref, opts) do
    case Options.hold(opts) do
      {:ok, nil} -> named(ref)
      {:ok, hold} -> named(ref, :read, hold)
      error -> error
    end
  end

  # Return the ref with its id and token.
  @doc false
  @spec named(t(), :read | :write, Native.hold()) :: {:ok, t()} | {:error, Error.t()}
  def named(%__MODULE__{handle: handle} = ref, rights, hold) do
    case Janitor.retry(fn -> Native.ref(handle, rights, hold) end) do
      {:ok, native} ->
        %__MODULE__{token: token} = from_native(native)
        {:ok, %__MODULE__{ref | token: token}}

      {:error, reason} ->
        {:error, Error.from_native(reason)}
    end
  end

  @doc false
  @spec named(t()) :: {:ok, t()} | {:error, Error.t()}
  def named(%__MODULE__{token: nil, handle: handle} = ref) do
    case Native.name(handle) do
      {:ok, {_id, token}} -> {:ok, %__MODULE__{ref | token: token}}
      {:error, reason} -> {:error, Error.from_native(reason)}
    end
  end

  def named(ref), do: {:ok, ref}

  defp hex(id), do: Base.encode16(<<id::64>>, case: :lower)

  # Check here only what the NIF does not.
  @doc false
  @spec to_native(t()) :: {:ok, Native.ref()} | {:error, Error.t()}
  def to_native(%__MODULE__{} = ref) do
    with {:ok, id} <- parse_id(ref.id) do
      {:ok,
       {id, ref.token, ref.offset, ref.byte_size, ref.shape, ref.dtype, ref.strides, ref.device}}
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

  defp malformed do
    {:error, Error.new(:protocol, "not a ref: a member is missing or of another type")}
  end
end

defimpl Inspect, for: Tmesh.ZeroCopy.TensorRef do
  import Inspect.Algebra

  alias Tmesh.Native

  # Never show the token: it opens the region for any reader of the log.
  def inspect(ref, opts) do
    what = [to_doc(ref.dtype, opts), " ", to_doc(ref.shape, %{opts | charlists: :as_lists})]
    where = [" ", to_doc(ref.device, opts)]

    concat(["#Tmesh.ZeroCopy.TensorRef<"] ++ what ++ where ++ told(ref, opts) ++ [">"])
  end

  defp told(%{handle: nil}, _opts), do: [", not open"]

  defp told(%{handle: handle}, _opts) when not is_reference(handle), do: [", no handle"]

  defp told(%{handle: handle} = ref, opts) do
    case Native.local(handle) do
      :ok -> state_of(handle, opts)
      {:error, _why} -> elsewhere(ref)
    end
  end

  # Whether that node still holds it is unknown here.
  defp elsewhere(%{token: token, handle: handle}) do
    from = if node(handle) != node(), do: [" by ", Atom.to_string(node(handle))], else: []
    if token, do: [", granted" | from], else: [", opened elsewhere" | from]
  end

  defp state_of(handle, opts) do
    case Native.info(handle) do
      {:ok, info} -> label(info.label, opts) ++ state(info)
      {:error, _closed} -> [", released"]
    end
  end

  defp label("", _opts), do: []
  defp label(label, opts), do: [", label: ", to_doc(label, opts)]

  defp state(%{revoked: true}), do: [", revoked"]
  defp state(%{sealed: true}), do: [", sealed"]
  defp state(_writable), do: [", not sealed"]
end
