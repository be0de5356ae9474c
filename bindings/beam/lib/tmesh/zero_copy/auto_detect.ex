# SPDX-License-Identifier: MIT
defmodule Tmesh.ZeroCopy.AutoDetect do
  @moduledoc """
  Decide which terms travel through shared memory, and describe these for other carriers of arguments.

  `Tmesh.Worker` applies this to every value in a payload. Generated wrappers of Python functions, such as
  SnakeBridge's, may call through something else, such as Snakepit's gRPC. Then they use `with_shared/2`:

      def resize(image, width, height) do
        with {:ok, result} <-
               AutoDetect.with_shared(%{"image" => image, "size" => [width, height]}, fn arguments ->
                 Snakepit.execute("images.resize", arguments)
               end),
             do: result
      end

  In Python, `tmesh.open(argument["ref"])` is the tensor.
  """

  use Tmesh.Bang, ~w(with_shared/2)
  alias Tmesh.{Config, DLPack, Error}
  alias Tmesh.DLPack.GPUTensorRef
  alias Tmesh.Worker.Payload
  alias Tmesh.ZeroCopy.TensorRef

  @doc """
  Return whether `term` should travel in shared memory. Refs should, also of GPU memory. Binaries and Nx tensors
  should if they have more than `threshold_bytes` (`config :tmesh, :zero_copy`). No other term should, and none with
  `enabled: false`.

      iex> Tmesh.ZeroCopy.AutoDetect.should_use_zero_copy?(<<0::8_000_000>>)
      false
      iex> Tmesh.ZeroCopy.AutoDetect.should_use_zero_copy?(<<0::8_000_008>>)
      true
  """
  @spec should_use_zero_copy?(term()) :: boolean()
  def should_use_zero_copy?(term), do: Config.get!(:enabled) and shared?(term)

  @doc """
  Call `fun` with `term`, in which each value that `should_use_zero_copy?/1` accepts is replaced by a plain map:

      %{"__snakepit_zero_copy__" => true, "kind" => "dlpack", "ref" => %{"token" => ..., ...},
        "dtype" => "float32", "shape" => [2, 3], "device" => "cpu", "bytes" => 24,
        "owner" => "elixir", "copy" => false}

  Return `{:ok, result}`. Values are also replaced inside lists and maps. The tensors of the maps are held until
  `fun` returns, so `fun` must wait for the other side's answer. A description by itself holds nothing, and neither
  does a variable that is not used any more.

  Errors: those of making and naming tensors, and `:invalid` for a wrong configuration. Then `fun` is not called.

      iex> {:ok, ref} = Tmesh.ZeroCopy.from_binary("abcd", [2, 2], :uint8)
      iex> Tmesh.ZeroCopy.AutoDetect.with_shared([1, ref], fn [1, map] -> map["shape"] end)
      {:ok, [2, 2]}
  """
  @spec with_shared(term(), (term() -> result)) :: {:ok, result} | {:error, Error.t()}
        when result: term()
  def with_shared(term, fun) when is_function(fun, 1) do
    with {:ok, _enabled} <- Config.get(:enabled),
         {:ok, _bytes} <- Config.get(:threshold_bytes),
         do: call_shared(term, fun)
  end

  defp call_shared(term, fun) do
    case share(term, {[], []}) do
      {:ok, shared, {held, made}} ->
        # Hold the tensors in the process dictionary, whatever becomes of the variables.
        root = {__MODULE__, make_ref()}
        Process.put(root, held)

        try do
          {:ok, fun.(shared)}
        after
          Process.delete(root)
          Payload.release(made)
        end

      {:error, error, {_held, made}} ->
        Payload.release(made)
        {:error, error}
    end
  end

  defp share(%kind{} = ref, {held, made}) when kind in [TensorRef, GPUTensorRef] do
    with {:shared, true} <- {:shared, should_use_zero_copy?(ref)},
         {:ok, map} <- to_map(ref) do
      {:ok, describe(map, ref), {[ref | held], made}}
    else
      {:shared, false} -> {:ok, ref, {held, made}}
      {:error, error} -> {:error, error, {held, made}}
    end
  end

  defp share(term, done) when is_list(term), do: share_all(term, [], done)

  defp share(%{__struct__: other} = term, done) when other != Nx.Tensor, do: {:ok, term, done}

  defp share(map, done) when is_map(map) and not is_struct(map) do
    with {:ok, values, done} <- share_all(Map.values(map), [], done),
         do: {:ok, map |> Map.keys() |> Enum.zip(values) |> Map.new(), done}
  end

  defp share(term, done) do
    if should_use_zero_copy?(term), do: put(term, done), else: {:ok, term, done}
  end

  defp put(term, {held, made} = done) do
    case Payload.put(term) do
      {:ok, ref} -> share(ref, {held, [ref | made]})
      {:error, error} -> {:error, error, done}
    end
  end

  defp share_all([term | rest], shared, done) do
    with {:ok, term, done} <- share(term, done), do: share_all(rest, [term | shared], done)
  end

  defp share_all([], shared, done), do: {:ok, Enum.reverse(shared), done}

  defp share_all(improper, _shared, done) do
    {:error, Error.new(:invalid, "an improper list ends with #{inspect(improper, limit: 5)}"), done}
  end

  defp to_map(%GPUTensorRef{} = ref), do: DLPack.export_gpu_tensor(ref)

  defp to_map(ref), do: TensorRef.to_map(ref)

  defp describe(map, ref) do
    map
    |> Map.take(["dtype", "shape", "device"])
    |> Map.merge(%{
      "__snakepit_zero_copy__" => true,
      "kind" => "dlpack",
      "ref" => map,
      "bytes" => ref.byte_size,
      "owner" => "elixir",
      "copy" => false
    })
  end

  defp shared?(%kind{}) when kind in [TensorRef, GPUTensorRef], do: true
  defp shared?(binary) when is_binary(binary), do: large?(byte_size(binary))

  # A struct of a library that may not be installed.
  defp shared?(%{__struct__: Nx.Tensor, shape: shape, type: {_kind, bits}})
       when is_tuple(shape) and is_integer(bits),
       do: large?(div(Tuple.product(shape) * bits + 7, 8))

  defp shared?(_other), do: false

  defp large?(bytes), do: bytes > Config.get!(:threshold_bytes)
end
