# SPDX-License-Identifier: MIT
defmodule Tmesh.ModelFiles do
  @moduledoc false
  # Files of tensors, written by the formats' published rules.

  @doc "Make a safetensors file of `{name, dtype, shape, bytes}`, one after the other."
  def safetensors(tensors, metadata \\ nil) do
    {entries, _end} =
      Enum.map_reduce(tensors, 0, fn {name, dtype, shape, bytes}, at ->
        next = at + byte_size(bytes)
        {entry(name, dtype, shape, at, next), next}
      end)

    entries = if metadata, do: [~s("__metadata__":#{metadata}) | entries], else: entries
    header("{#{Enum.join(entries, ",")}}") <> for({_, _, _, bytes} <- tensors, into: "", do: bytes)
  end

  @doc "A member of its header."
  def entry(name, dtype, shape, first, next) do
    shape = Enum.join(shape, ",")
    ~s("#{name}":{"dtype":"#{dtype}","shape":[#{shape}],"data_offsets":[#{first},#{next}]})
  end

  @doc "A header of this JSON."
  def header(json), do: <<byte_size(json)::64-little, json::binary>>

  @doc "A GGUF file of `{name, type's number, dimensions with the fastest first, bytes}`."
  def gguf(tensors, texts \\ [], version \\ 3) do
    {infos, {_end, data}} =
      Enum.map_reduce(tensors, {0, ""}, fn {name, type, dims, bytes}, {at, data} ->
        bytes = padded(bytes)
        dims_bytes = for dim <- dims, into: "", do: <<dim::64-little>>
        info = text(name) <> <<length(dims)::32-little, dims_bytes::binary, type::32-little>>
        {<<info::binary, at::64-little>>, {at + byte_size(bytes), data <> bytes}}
      end)

    values = for {key, value} <- texts, do: [text(key), <<8::32-little>>, text(value)]
    counts = <<length(tensors)::64-little, length(texts)::64-little>>
    head = IO.iodata_to_binary(["GGUF", <<version::32-little>>, counts, values, infos])
    padded(head) <> data
  end

  defp text(text), do: <<byte_size(text)::64-little, text::binary>>
  defp padded(bytes), do: bytes <> :binary.copy(<<0>>, rem(32 - rem(byte_size(bytes), 32), 32))
end
