# SPDX-License-Identifier: MIT
defmodule Tmesh.Bundle do
  @moduledoc """
  Named tensors under one ref, such as a model's weights: one description to hand over, one open.

      {:ok, bundle} =
        Tmesh.Bundle.put(%{
          "weight" => {weights, {768, 768}, {:f, 32}},
          "bias" => bias_ref
        })

      {:ok, json} = Tmesh.Bundle.to_json(bundle)
      # Python: tmesh.open(json)["weight"]

      {:ok, bundle} = Tmesh.Bundle.open(json)
      weight = bundle["weight"]
      for {name, ref} <- bundle, do: {name, ref.shape}

  A bundle never changes. `bundle["name"]` is a `Tmesh.ZeroCopy.TensorRef` with a handle of its own, which stays
  valid after the bundle is released. For an unknown name it is `nil`. As an enumerable a bundle gives `{name,
  ref}`, in its order.

    * `names` - the names of its tensors
    * `byte_size` - of all tensors together
    * `metadata` - a text of its maker, "" without any
    * `label` - a name for people, "" without any
  """

  use Tmesh.Bang, ~w(put/2 open/2 send/3 recv/2 to_map/2 to_json/2)
  alias Tmesh.{Arena, Context, Error, Janitor, Native, Net, Options, Socket, ZeroCopy}
  alias Tmesh.ZeroCopy.TensorRef

  @enforce_keys [:native, :names, :byte_size, :metadata, :label]
  @derive {Inspect, only: [:names, :byte_size, :label]}
  defstruct @enforce_keys

  @type t :: %__MODULE__{
          native: Native.bundle(),
          names: [String.t()],
          byte_size: non_neg_integer(),
          metadata: String.t(),
          label: String.t()
        }

  @typedoc "A text. An atom stands for its text, also in `bundle[:name]`."
  @type name :: String.t() | atom()

  @typedoc """
  An open ref, whose region the bundle shares; the bytes, shape and dtype of a new tensor; or an Nx tensor. New
  tensors lie one after the other in few regions.
  """
  @type value ::
          TensorRef.t()
          | {binary(), TensorRef.shape() | tuple(), TensorRef.dtype() | TensorRef.nx_type()}
          | struct()

  @doc """
  Make a bundle of tensors, from a map by name (in the order of the names) or a list of `{name, value}`. Their
  regions are sealed.

  Options: `seal: false` leaves the regions as they are; `label`; `metadata` - text.

  Errors, beside those of `Tmesh.ZeroCopy.from_binary/4`:

    * `:invalid` - a name, a name twice, a value, or a ref in an arena without `seal: false`
    * `:busy` - a process has mapped a region for writing
    * `:access` - a region of another user that is not sealed

      iex> bundle = Tmesh.Bundle.put!(%{"a" => {"abcd", {2, 2}, :u8}, "b" => {"x", {1}, :u8}})
      iex> {bundle.names, bundle.byte_size, bundle["a"].shape, bundle["c"]}
      {["a", "b"], 5, [2, 2], nil}
  """
  @spec put(%{name() => value()} | [{name(), value()}], keyword()) ::
          {:ok, t()} | {:error, Error.t()}
  def put(tensors, opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, seal: true, label: "", metadata: ""),
         {:ok, context} <- Context.limited() do
      with_tensors(tensors, opts[:label], fn named ->
        entries = for {name, ref, made?} <- named, do: {name, ref.handle, made?}
        arguments = [context, entries, opts[:seal], opts[:label], opts[:metadata]]
        # The bundle holds their regions.
        made(Janitor.retry(fn -> apply(Native, :bundle_create, arguments) end))
      end)
    end
  end

  @doc """
  Open the bundle that a ref describes, as JSON or as a map.

  Options: `writable: true` asks for the right to write to its regions.

  Errors: `:protocol` (the ref is no bundle's: `Tmesh.ZeroCopy.open/2` opens a tensor), and those of
  `Tmesh.ZeroCopy.open/2`.
  """
  @spec open(String.t() | map(), writable: boolean()) :: {:ok, t()} | {:error, Error.t()}
  def open(ref, opts \\ [])

  def open(json, opts) when is_binary(json) do
    with {:ok, opts} <- Options.validate(opts, writable: false),
         {:ok, rights} <- Options.rights(opts[:writable]) do
      fn -> Native.bundle_open(Context.get(), json, rights) end |> Janitor.patiently() |> made()
    end
  end

  def open(%{"kind" => "bundle"} = map, opts) do
    case Tmesh.Worker.Payload.encode(map) do
      {:ok, %{json: json}} -> json |> IO.iodata_to_binary() |> open(opts) |> Net.name_home(map)
      {:error, error} -> {:error, %{error | type: :protocol}}
    end
  end

  def open(_other, _opts), do: {:error, Error.new(:protocol, "not a bundle's ref")}

  @doc "Return the tensor of a name, or `:error`, as `bundle[name]` needs it."
  @spec fetch(t(), name()) :: {:ok, TensorRef.t()} | :error
  def fetch(%__MODULE__{native: native}, name) do
    case Native.bundle_tensor(native, text(name)) do
      {:ok, {handle, ref}} -> {:ok, TensorRef.unnamed(handle, ref)}
      {:error, {:enoent, _message}} -> :error
      {:error, reason} -> raise Error.from_native(reason)
    end
  end

  @doc "Do as `fetch/2`, but raise `KeyError` for an unknown name."
  @spec fetch!(t(), name()) :: TensorRef.t()
  def fetch!(%__MODULE__{names: names} = bundle, name) do
    case fetch(bundle, name) do
      {:ok, ref} -> ref
      :error -> raise KeyError, key: name, term: names
    end
  end

  @doc """
  Return the bundle's ref as JSON, for all of tmesh's languages. `hold` is that of
  `Tmesh.ZeroCopy.TensorRef.to_json/2`.
  """
  @spec to_json(t(), [TensorRef.hold_option()]) :: {:ok, String.t()} | {:error, Error.t()}
  def to_json(%__MODULE__{native: native}, opts \\ []) do
    with {:ok, hold} <- Options.hold(opts) do
      case Janitor.retry(fn -> Native.bundle_ref(native, :read, hold) end) do
        {:ok, json} -> {:ok, json}
        {:error, reason} -> {:error, Error.from_native(reason)}
      end
    end
  end

  @doc "Return the bundle's ref as a map with string keys, for any encoder."
  @spec to_map(t(), [TensorRef.hold_option()]) ::
          {:ok, %{String.t() => term()}} | {:error, Error.t()}
  def to_map(%__MODULE__{} = bundle, opts \\ []) do
    with {:ok, json} <- to_json(bundle, opts) do
      {:ok, _map} = Native.json_decode(json)
    end
  end

  @doc """
  Send the bundle through a connected Unix socket, to a process in any of tmesh's languages. It sends all regions,
  each with a handle of its own, and no token. The receiver must receive meanwhile, because a socket takes only a
  few hundred regions at once. After an error close the socket: a part of the bundle is in it.

  Options: `writable` - whether the receiver may write to its regions (false).

  Errors: those of `Tmesh.ZeroCopy.send/3`.
  """
  @spec send(t(), ZeroCopy.socket(), writable: boolean()) :: :ok | {:error, Error.t()}
  def send(%__MODULE__{native: native}, socket, opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, writable: false),
         {:ok, rights} <- Options.rights(opts[:writable]),
         {:ok, fd} <- Socket.fd(socket) do
      case Janitor.patiently(fn -> Native.bundle_hand_over(native, fd, rights) end) do
        :ok -> :ok
        {:error, reason} -> {:error, Error.from_native(reason)}
      end
    end
  end

  @doc """
  Receive the next bundle from a connected Unix socket, sent by `send/3`.

  Options: `timeout` - as in `Tmesh.ZeroCopy.recv/2`.

  Errors: `:protocol` (something else came), and those of `Tmesh.ZeroCopy.recv/2`.
  """
  @spec recv(ZeroCopy.socket(), timeout: timeout()) :: {:ok, t()} | {:error, Error.t()}
  def recv(socket, opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, timeout: :infinity),
         {:ok, fd} <- Socket.fd(socket),
         :ok <- Socket.readable(socket, opts[:timeout]),
         {:ok, context} <- Context.limited(),
         do: made(Janitor.patiently(fn -> Native.bundle_recv(context, fd) end))
  end

  @doc "Release the bundle. Tensors that were taken from it stay. You may release it again."
  @spec release(t()) :: :ok
  def release(%__MODULE__{native: native}) do
    :ok = Native.bundle_release(native)
  end

  # Return the result of `fun` for the `{name, ref, made?}` of each tensor. Tensors made for the call are released
  # then.
  @doc false
  @spec with_tensors(
          %{String.t() => value()} | [{String.t(), value()}],
          label :: String.t(),
          ([{term(), TensorRef.t(), made? :: boolean()}] -> result)
        ) :: result | {:error, Error.t()}
        when result: term()
  def with_tensors(tensors, label, fun) do
    with {:ok, pairs} <- pairs(tensors),
         {:ok, arena} <- Arena.create(label: label),
         {:ok, named, made} <- tensors(pairs, arena, [], []) do
      result = fun.(named)
      Enum.each(made, &ZeroCopy.release/1)
      result
    end
  end

  # Make a bundle of any supported value.
  @doc false
  @spec of(t() | Tmesh.Model.t() | %{String.t() => value()}) :: {:ok, t()} | {:error, Error.t()}
  def of(%__MODULE__{} = bundle), do: {:ok, bundle}
  def of(%Tmesh.Model{} = model), do: Tmesh.Model.bundle(model)
  def of(tensors), do: put(tensors)

  @doc false
  @spec made({:ok, Native.bundle()} | {:error, Native.reason()}) ::
          {:ok, t()} | {:error, Error.t()}
  def made({:ok, native}) do
    {:ok, {names, byte_size, metadata, label}} = Native.bundle_info(native)

    {:ok,
     %__MODULE__{
       native: native,
       names: names,
       byte_size: byte_size,
       metadata: metadata,
       label: label
     }}
  end

  def made({:error, reason}), do: {:error, Error.from_native(reason)}

  defp pairs(map) when is_map(map) and not is_struct(map), do: {:ok, Enum.sort(map)}
  defp pairs(list) when length(list) >= 0, do: {:ok, list}
  defp pairs(_other), do: {:error, Error.new(:invalid, "a bundle is a map of tensors by name")}

  # If one tensor cannot be made, release those made before.
  defp tensors([{name, value} | rest], arena, named, made) do
    case tensor(value, arena) do
      {:ok, ref} -> tensors(rest, arena, [{text(name), ref, true} | named], [ref | made])
      {:given, ref} -> tensors(rest, arena, [{text(name), ref, false} | named], made)
      {:error, error} -> refuse(%{error | message: "#{inspect(name)}: #{error.message}"}, made)
    end
  end

  defp tensors([], _arena, named, made), do: {:ok, Enum.reverse(named), made}

  defp tensors([other | _rest], _arena, _named, made),
    do: refuse(Error.new(:invalid, "#{inspect(other, limit: 5)} is no {name, tensor}"), made)

  defp refuse(error, made) do
    Enum.each(made, &ZeroCopy.release/1)
    {:error, error}
  end

  defp text(name) when is_atom(name), do: Atom.to_string(name)
  defp text(name), do: name

  defp tensor(%TensorRef{} = ref, _arena) do
    with {:ok, ref} <- ZeroCopy.here(ref), do: {:given, ref}
  end

  defp tensor({binary, shape, dtype}, arena),
    do: ZeroCopy.from_binary(binary, shape, dtype, arena: arena)

  defp tensor(%{__struct__: Nx.Tensor} = tensor, arena),
    do: Tmesh.Nx.from_nx(tensor, arena: arena)

  defp tensor(other, _arena) do
    {:error,
     Error.new(
       :invalid,
       "#{inspect(other, limit: 5)} is no ref, {binary, shape, dtype} or Nx tensor"
     )}
  end
end

defimpl Enumerable, for: [Tmesh.Bundle, Tmesh.Model] do
  def reduce(named, acc, fun) do
    named.names
    |> Stream.map(&{&1, @for.fetch!(named, &1)})
    |> Enumerable.reduce(acc, fun)
  end

  def count(named), do: {:ok, length(named.names)}
  def member?(_named, _pair), do: {:error, __MODULE__}
  def slice(_named), do: {:error, __MODULE__}
end
