# SPDX-License-Identifier: MIT
defmodule Tmesh.Worker.Payload do
  @moduledoc false
  # Convert terms to the JSON of docs/reference/worker.md and back.

  alias Tmesh.{Arrow, Config, DLPack, Error, ZeroCopy}
  alias Tmesh.Arrow.TableRef
  alias Tmesh.DLPack.GPUTensorRef
  alias Tmesh.Worker.Writable
  alias Tmesh.ZeroCopy.{AutoDetect, TensorRef}

  @placeholder "__tmesh__"
  @snakepit "__snakepit_zero_copy__"

  # docs/reference/worker.md allows 64 levels. The message, a placeholder, its ref and the ref's shape are levels,
  # too.
  @max_depth 60

  @floats %{"nan" => :nan, "infinity" => :infinity, "neg_infinity" => :neg_infinity}

  @typedoc """
  The JSON of a payload, and the tensors that must live until the call is over. `made` of them belong to the call,
  which releases them then. It also has the number of bytes copied into the message because shared memory is off.
  """
  @type encoded :: %{
          json: iodata(),
          made: [TensorRef.t()],
          held: [TensorRef.t() | GPUTensorRef.t()],
          inline: boolean(),
          inline_bytes: non_neg_integer()
        }

  @doc "Encode a payload as JSON, its tensors as refs. An error leaves nothing behind."
  @spec encode(term()) :: {:ok, encoded()} | {:error, Error.t()}
  def encode(payload) do
    state = %{made: [], held: [], inline: not Config.get!(:enabled), inline_bytes: 0}

    case value(payload, 0, state) do
      {:ok, json, state} ->
        {:ok, Map.put(state, :json, json)}

      {:error, error, made} ->
        release(made)
        {:error, error}
    end
  rescue
    # The configuration is wrong.
    error in Error -> {:error, error}
  end

  @doc "Copy a binary or Nx tensor into a tensor of its own."
  @spec put(binary() | struct()) :: {:ok, TensorRef.t()} | {:error, Error.t()}
  def put(binary) when is_binary(binary),
    do: ZeroCopy.from_binary(binary, [byte_size(binary)], :uint8, label: "payload")

  def put(tensor), do: Tmesh.Nx.from_nx(tensor, label: "payload")

  @doc "Release the tensors that were made for a call."
  @spec release([TensorRef.t() | GPUTensorRef.t()]) :: :ok
  def release(refs), do: Enum.each(refs, &ZeroCopy.release/1)

  @doc "Decode a value from a worker. Its tensors are opened; an error leaves none open."
  @spec decode(term()) :: {:ok, term()} | {:error, Error.t()}
  def decode(value) do
    case term(value, []) do
      {:ok, term, _opened} ->
        {:ok, term}

      {:error, error, opened} ->
        release(opened)
        {:error, error}
    end
  end

  ## To JSON

  defp value(nil, _depth, state), do: {:ok, "null", state}
  defp value(true, _depth, state), do: {:ok, "true", state}
  defp value(false, _depth, state), do: {:ok, "false", state}

  defp value(float, _depth, state) when float in [:nan, :infinity, :neg_infinity] do
    {:ok, [~s({"__tmesh__":"float","value":"), Atom.to_string(float), ~s("})], state}
  end

  defp value(atom, _depth, state) when is_atom(atom),
    do: {:ok, string(Atom.to_string(atom)), state}

  defp value(integer, _depth, state)
       when is_integer(integer) and integer >= -0x8000_0000_0000_0000 and
              integer <= 0x7FFF_FFFF_FFFF_FFFF,
       do: {:ok, Integer.to_string(integer), state}

  defp value(float, _depth, state) when is_float(float), do: {:ok, Float.to_string(float), state}

  defp value(binary, _depth, state) when is_binary(binary) do
    cond do
      not state.inline and AutoDetect.should_use_zero_copy?(binary) -> bytes(binary, state)
      String.valid?(binary) -> {:ok, string(binary), count(binary, state)}
      true -> {:ok, base64("bytes", [], binary), count(binary, state)}
    end
  end

  defp value(%kind{} = ref, _depth, state) when kind in [TensorRef, GPUTensorRef],
    do: tensor(ref, "", state)

  defp value(%Writable{ref: %GPUTensorRef{} = ref}, _depth, state),
    do: tensor(ref, ~s(,"writable":true), state)

  defp value(%Writable{ref: ref}, _depth, state) do
    case ZeroCopy.grant(ref, :write) do
      {:ok, ref} -> tensor(ref, ~s(,"writable":true), state)
      {:error, error} -> refuse(error, state)
    end
  end

  defp value(%TableRef{} = table, _depth, state), do: table(table, state)
  defp value(%{__struct__: Nx.Tensor} = tensor, _depth, state), do: nx(tensor, state)

  defp value(%{__struct__: other}, _depth, state) do
    refuse("a payload has a %#{inspect(other)}{}, which cannot be sent", state)
  end

  defp value(term, depth, state) when depth == @max_depth and (is_map(term) or is_list(term)) do
    refuse("a payload is nested deeper than #{@max_depth} levels", state)
  end

  # This is a description already: none of its strings is data, however low the threshold is.
  defp value(%{@snakepit => true} = map, depth, state) do
    {ref, described} = Map.pop(map, "ref")

    with {:ok, json, within} <- described_ref(ref, depth, %{state | inline: true}),
         {:ok, members, within} <- members(described, depth, within) do
      state = %{within | inline: state.inline, inline_bytes: state.inline_bytes}
      {:ok, ["{", Enum.intersperse([[~s("ref":), json] | members], ","), "}"], state}
    end
  end

  defp value(map, depth, state) when is_map(map) do
    with {:ok, members, state} <- members(map, depth, state) do
      {:ok, ["{", Enum.intersperse(members, ","), "}"], state}
    end
  end

  defp value(list, depth, state) when is_list(list) do
    with {:ok, items, state} <- items(list, depth, state, []) do
      {:ok, ["[", Enum.intersperse(items, ","), "]"], state}
    end
  end

  defp value(other, _depth, state) do
    refuse("a payload has #{inspect(other, limit: 5)}, which cannot be sent", state)
  end

  defp described_ref(%kind{} = ref, _depth, state) when kind in [TensorRef, GPUTensorRef],
    do: plain(ref, state)

  defp described_ref(ref, depth, state), do: value(ref, depth + 1, state)

  defp items([item | rest], depth, state, done) do
    with {:ok, json, state} <- value(item, depth + 1, state) do
      items(rest, depth, state, [json | done])
    end
  end

  defp items([], _depth, state, done), do: {:ok, Enum.reverse(done), state}
  defp items(_improper, _depth, state, _done), do: refuse("a payload has an improper list", state)

  defp members(map, depth, state) do
    Enum.reduce_while(map, {:ok, [], MapSet.new(), state}, fn {key, item},
                                                              {:ok, done, keys, state} ->
      with {:ok, key} <- key(key, keys, state),
           {:ok, json, state} <- value(item, depth + 1, state) do
        {:cont, {:ok, [[string(key), ":", json] | done], MapSet.put(keys, key), state}}
      else
        error -> {:halt, error}
      end
    end)
    |> case do
      {:ok, members, _keys, state} -> {:ok, members, state}
      error -> error
    end
  end

  defp key(key, keys, state) when is_atom(key), do: key(Atom.to_string(key), keys, state)

  defp key(key, keys, state) when is_binary(key) do
    cond do
      key == @placeholder -> refuse("a payload has the reserved key #{key}", state)
      not String.valid?(key) -> refuse("a payload has a key that is not UTF-8", state)
      key in keys -> refuse("a payload has the key #{key} as a string and as an atom", state)
      true -> {:ok, key}
    end
  end

  defp key(key, _keys, state) do
    refuse("a payload has the key #{inspect(key, limit: 5)}: keys are strings or atoms", state)
  end

  defp bytes(binary, state) do
    with {:ok, ref} <- put(binary),
         {:ok, json, state} <- plain(ref, %{state | made: [ref | state.made]}) do
      {:ok, [~s({"__tmesh__":"bytes","ref":), json, "}"], state}
    else
      {:error, error} -> refuse(error, state)
      refused -> refused
    end
  end

  defp tensor(ref, more, state) do
    with {:ok, json, state} <- plain(ref, state) do
      {:ok, [~s({"__tmesh__":"tensor","ref":), json, more, "}"], state}
    end
  end

  defp table(%TableRef{ref: nil}, state) do
    refuse(Error.new(:closed, "the table is in no region of its own"), state)
  end

  defp table(%TableRef{ref: ref}, state) do
    if Config.get!(:arrow_enabled) do
      with {:ok, json, state} <- plain(ref, state),
           do: {:ok, [~s({"__tmesh__":"table","ref":), json, "}"], state}
    else
      refuse(
        Error.new(:unsupported, "config :tmesh, :zero_copy, arrow_enabled is false: no tables"),
        state
      )
    end
  end

  # Encode the ref itself, and hold its tensor for as long as the worker may open it.
  defp plain(ref, state) do
    case json(ref) do
      {:ok, json} -> {:ok, json, %{state | held: [ref | state.held]}}
      {:error, error} -> refuse(error, state)
    end
  end

  defp json(%GPUTensorRef{} = ref), do: DLPack.export_json(ref)
  defp json(%TensorRef{device: :cpu} = ref), do: TensorRef.to_json(ref)

  # Encode only the description.
  defp json(%TensorRef{} = ref) do
    with :ok <- DLPack.enabled(), do: TensorRef.to_json(ref)
  end

  defp nx(tensor, state) do
    if not state.inline and AutoDetect.should_use_zero_copy?(tensor) do
      case put(tensor) do
        {:ok, ref} -> tensor(ref, "", %{state | made: [ref | state.made]})
        {:error, error} -> refuse(error, state)
      end
    else
      case Tmesh.Nx.parts(tensor) do
        {:ok, binary, shape, dtype} ->
          shape = Enum.map_join(shape, ",", &Integer.to_string/1)
          more = [~s("dtype":"#{dtype}","shape":[#{shape}],)]
          {:ok, base64("array", more, binary), count(binary, state)}

        {:error, error} ->
          refuse(error, state)
      end
    end
  end

  defp base64(kind, more, binary) do
    [~s({"__tmesh__":"), kind, ~s(",), more, ~s("base64":"), Base.encode64(binary), ~s("})]
  end

  # Count the bytes that would travel through shared memory if it were on.
  defp count(binary, %{inline: true} = state) do
    if byte_size(binary) > Config.get!(:threshold_bytes),
      do: %{state | inline_bytes: state.inline_bytes + byte_size(binary)},
      else: state
  end

  defp count(_binary, state), do: state

  @doc "Count the bytes of a worker's value in its message, if shared memory is off."
  @spec inline_bytes(term(), non_neg_integer()) :: non_neg_integer()
  def inline_bytes(%{@placeholder => kind, "base64" => text}, threshold) when is_binary(text) do
    bytes = text |> String.trim_trailing("=") |> byte_size() |> Kernel.*(3) |> div(4)
    if kind != "bytes" or bytes > threshold, do: bytes, else: 0
  end

  def inline_bytes(map, threshold) when is_map(map),
    do: map |> Map.values() |> inline_bytes(threshold)

  def inline_bytes(list, threshold) when is_list(list),
    do: list |> Enum.map(&inline_bytes(&1, threshold)) |> Enum.sum()

  def inline_bytes(_other, _threshold), do: 0

  @doc "Encode a string of valid UTF-8 as JSON."
  @spec string(String.t()) :: iolist()
  def string(text), do: [?", escape(text, text, 0, 0, []), ?"]

  # Join slices without escapes and the escapes between them.
  defp escape(<<byte, rest::binary>>, text, start, length, done)
       when byte < 0x20 or byte == ?" or byte == ?\\ do
    code = byte |> Integer.to_string(16) |> String.pad_leading(4, "0")
    done = [done, binary_part(text, start, length), "\\u", code]
    escape(rest, text, start + length + 1, 0, done)
  end

  defp escape(<<_byte, rest::binary>>, text, start, length, done),
    do: escape(rest, text, start, length + 1, done)

  defp escape(<<>>, text, start, length, done), do: [done, binary_part(text, start, length)]

  defp refuse(%Error{} = error, state), do: {:error, error, state.made}
  defp refuse(message, state), do: refuse(Error.new(:invalid, message), state)

  ## From JSON

  defp term(%{@placeholder => kind} = value, opened), do: rebuild(kind, value, opened)

  # A description of Snakepit. Its members beside the ref must be true.
  defp term(%{@snakepit => true, "kind" => "arrow"} = map, opened),
    do: rebuild("table", Map.take(map, ["ref"]), opened)

  defp term(%{@snakepit => true, "kind" => kind, "ref" => ref} = map, opened)
       when kind in ["dlpack", "tensor"] do
    case parse(ref) do
      {:ok, description} ->
        if described?(map, description), do: open(ref, opened), else: malformed(opened)

      {:error, error} ->
        {:error, error, opened}
    end
  end

  defp term(%{@snakepit => true}, opened), do: malformed(opened)

  defp term(map, opened) when is_map(map) do
    Enum.reduce_while(map, {:ok, %{}, opened}, fn {key, value}, {:ok, done, opened} ->
      case term(value, opened) do
        {:ok, term, opened} -> {:cont, {:ok, Map.put(done, key, term), opened}}
        error -> {:halt, error}
      end
    end)
  end

  defp term(list, opened) when is_list(list) do
    Enum.reduce_while(list, {:ok, [], opened}, fn value, {:ok, done, opened} ->
      case term(value, opened) do
        {:ok, term, opened} -> {:cont, {:ok, [term | done], opened}}
        error -> {:halt, error}
      end
    end)
    |> case do
      {:ok, done, opened} -> {:ok, Enum.reverse(done), opened}
      error -> error
    end
  end

  defp term(value, opened), do: {:ok, value, opened}

  defp described?(map, %TensorRef{dtype: dtype, shape: shape, byte_size: bytes, device: device}) do
    device = with {:cuda, n} <- device, do: "cuda:#{n}", else: (:cpu -> "cpu")

    map["dtype"] in [nil, Atom.to_string(dtype)] and map["shape"] in [nil, shape] and
      map["bytes"] in [nil, bytes] and map["device"] in [nil, device]
  end

  defp rebuild("tensor", %{"ref" => ref}, opened), do: open(ref, opened)

  defp rebuild("table", %{"ref" => ref}, opened) do
    with {:ok, tensor, opened} <- open_host(ref, opened) do
      tensor |> Arrow.import_table() |> built(opened)
    end
  end

  defp rebuild("table", %{"base64" => text}, opened) when is_binary(text) do
    case Base.decode64(text) do
      {:ok, stream} -> stream |> Arrow.import_table() |> built(opened)
      :error -> malformed(opened)
    end
  end

  defp rebuild("bytes", %{"ref" => ref}, opened) do
    with {:ok, tensor, [_tensor | opened]} <- open_host(ref, opened) do
      binary = ZeroCopy.to_binary(tensor)
      release([tensor])
      built(binary, opened)
    end
  end

  defp rebuild("bytes", %{"base64" => text}, opened) when is_binary(text) do
    case Base.decode64(text) do
      {:ok, binary} -> {:ok, binary, opened}
      :error -> malformed(opened)
    end
  end

  defp rebuild("array", %{"dtype" => dtype, "shape" => shape, "base64" => text}, opened)
       when is_binary(text) do
    with dtype when dtype != nil <- Enum.find(TensorRef.dtypes(), &(Atom.to_string(&1) == dtype)),
         {:ok, binary} <- Base.decode64(text),
         {:ok, ref} <- ZeroCopy.from_binary(binary, shape, dtype) do
      {:ok, ref, [ref | opened]}
    else
      {:error, error} -> {:error, error, opened}
      _malformed -> malformed(opened)
    end
  end

  defp rebuild("float", %{"value" => name}, opened) when is_map_key(@floats, name),
    do: {:ok, @floats[name], opened}

  defp rebuild(_kind, _value, opened), do: malformed(opened)

  # Elixir reads only host memory itself, so refuse a GPU, whatever a worker claims.
  defp open_host(ref, opened) do
    case open(ref, opened) do
      {:ok, %TensorRef{}, _opened} = host -> host
      {:ok, _gpu, opened} -> malformed(opened)
      error -> error
    end
  end

  defp open(ref, opened) do
    with {:ok, description} <- parse(ref),
         {:ok, tensor} <- open_on(description.device, description, ref) do
      {:ok, tensor, [tensor | opened]}
    else
      {:error, %Error{type: :not_found}} ->
        {:error, Error.new(:worker_down, "the worker ended before its result was opened"), opened}

      {:error, error} ->
        {:error, error, opened}
    end
  end

  defp open_on(:cpu, description, _ref), do: ZeroCopy.open(description)

  # The description lacks some members that a ref of GPU memory has.
  defp open_on({:cuda, _n}, _description, ref), do: DLPack.import_gpu_tensor(ref)

  defp parse(ref) when is_map(ref), do: TensorRef.from_map(ref)
  defp parse(ref), do: TensorRef.from_json(ref)

  defp built({:ok, term}, opened), do: {:ok, term, opened}
  defp built({:error, error}, opened), do: {:error, error, opened}

  defp malformed(opened) do
    {:error, Error.new(:protocol, "a worker's result has a malformed placeholder"), opened}
  end
end
