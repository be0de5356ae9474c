# SPDX-License-Identifier: MIT
defmodule Tmesh.Arrow.Ipc do
  @moduledoc false
  # Arrow IPC streams: a schema, dictionaries, record batches, an end. Each message has metadata (flatbuffers) and a
  # body, the buffers one after the other. Nothing is copied: plan/2 returns the position of each piece, and decode/1
  # returns columns whose buffers are parts of the stream.

  alias Tmesh.Arrow.{ArrayRef, Flatbuffer, Type}

  @continuation 0xFFFF_FFFF
  @metadata_v4 3
  @metadata_v5 4
  @schema 1
  @dictionary 2
  @batch 3
  # Arrow recommends this alignment, so that a processor can load its vectors from any buffer.
  @align 64

  @doc """
  Plan the stream of one table with one batch: its size, and the pieces to write with their positions. Zeros fill the
  gaps.
  """
  @spec plan([Type.field()], [%ArrayRef{}]) ::
          {non_neg_integer(), [{non_neg_integer(), binary()}]}
  def plan(fields, columns) do
    head = message(@schema, Type.encode_schema(fields), 0)
    nodes = Enum.flat_map(columns, &nodes/1)
    buffers = Enum.flat_map(columns, &buffers/1)

    {places, body} =
      Enum.map_reduce(buffers, 0, fn buffer, at -> {at, at + pad(byte_size(buffer))} end)

    batch =
      {:table,
       %{
         0 => {:i64, rows(columns)},
         1 => {:pairs, nodes},
         2 => {:pairs, Enum.zip(places, Enum.map(buffers, &byte_size/1))}
       }}

    middle = message(@batch, batch, body)
    start = byte_size(head) + byte_size(middle)
    pieces = for {at, buffer} <- Enum.zip(places, buffers), buffer != "", do: {start + at, buffer}

    {start + body + 8,
     [{0, head <> middle}] ++ pieces ++ [{start + body, <<@continuation::32-little, 0::32>>}]}
  end

  defp rows([]), do: 0
  defp rows([%ArrayRef{length: length} | _rest]), do: length

  defp nodes(%ArrayRef{} = array),
    do: [{array.length, array.null_count} | Enum.flat_map(array.children, &nodes/1)]

  defp buffers(%ArrayRef{} = array),
    do: array.buffers ++ Enum.flat_map(array.children, &buffers/1)

  defp message(kind, header, body) do
    metadata =
      Flatbuffer.encode(
        {:table, %{0 => {:i16, @metadata_v5}, 1 => {:i8, kind}, 2 => header, 3 => {:i64, body}}}
      )

    fill = pad(8 + byte_size(metadata)) - 8 - byte_size(metadata)
    size = byte_size(metadata) + fill
    <<@continuation::32-little, size::32-little, metadata::binary, 0::size(fill * 8)>>
  end

  defp pad(bytes), do: div(bytes + @align - 1, @align) * @align

  @doc "Decode the fields and batches of an untrusted stream; throw as Flatbuffer does."
  @spec decode(binary()) :: {[Type.field()], [{non_neg_integer(), [%ArrayRef{}]}]}
  def decode(stream) do
    case next(stream, 0) do
      {@schema, header, _body, at} ->
        fields = Type.decode_schema(header)
        kinds = dictionaries(fields, %{})
        {fields, batches(stream, at, fields, kinds, %{}, [])}

      _other ->
        Flatbuffer.malformed("it does not begin with a schema")
    end
  end

  defp batches(stream, at, fields, kinds, known, done) do
    case next(stream, at) do
      :done ->
        Enum.reverse(done)

      {@batch, header, body, at} ->
        batch = batch(header, body, fields, known)
        batches(stream, at, fields, kinds, known, [batch | done])

      {@dictionary, header, body, at} ->
        {id, words} = dictionary(header, body, kinds, known)
        batches(stream, at, fields, kinds, Map.put(known, id, words), done)

      _other ->
        Flatbuffer.malformed("a message of another kind among the batches")
    end
  end

  defp from(stream, at) when at <= byte_size(stream),
    do: binary_part(stream, at, byte_size(stream) - at)

  defp from(_stream, _at), do: ""

  # Return the message at a position. A stream in Arrow may end between messages without an end marker, because the
  # end of its file marks the end. In a region this would be a table that lacks its last rows, so refuse it.
  defp next(stream, at) do
    case from(stream, at) do
      <<@continuation::32-little, 0::32, _rest::binary>> ->
        :done

      <<@continuation::32-little, size::32-little, metadata::binary-size(size), rest::binary>> ->
        message = Flatbuffer.root(metadata)

        if Flatbuffer.number(message, 0, 16) not in [@metadata_v4, @metadata_v5],
          do: Type.unsupported("metadata but of versions 4 and 5")

        bytes = Flatbuffer.number(message, 3, 64)

        if bytes < 0 or bytes > byte_size(rest),
          do: Flatbuffer.malformed("a body reaches beyond the end")

        header = Flatbuffer.table(message, 2) || Flatbuffer.malformed("a message without a header")

        {Flatbuffer.number(message, 1, 8), header, binary_part(rest, 0, bytes),
         at + 8 + size + bytes}

      _cut ->
        Flatbuffer.malformed("it is cut short, or no Arrow IPC stream")
    end
  end

  # Return the types of the words of all dictionaries, by id.
  defp dictionaries(fields, kinds) do
    Enum.reduce(fields, kinds, fn
      {_name, {:dictionary, _index, words, id}, _null}, kinds ->
        # Native code relies on the schema's type of the words.
        if Map.get(kinds, id, words) != words,
          do: Flatbuffer.malformed("one dictionary has words of two types")

        dictionaries(Type.children(words), Map.put(kinds, id, words))

      {_name, type, _null}, kinds ->
        dictionaries(Type.children(type), kinds)
    end)
  end

  defp dictionary(header, body, kinds, known) do
    id = Flatbuffer.number(header, 0, 64)
    type = Map.get(kinds, id) || Flatbuffer.malformed("a dictionary that no field has")
    if Flatbuffer.number(header, 2, 8) != 0, do: Type.unsupported("dictionaries that grow")
    data = Flatbuffer.table(header, 1) || Flatbuffer.malformed("a dictionary without words")
    {_length, [words]} = batch(data, body, [{"", type, true}], known)
    {id, words}
  end

  defp batch(header, body, fields, known) do
    if Flatbuffer.table(header, 3), do: Type.unsupported("compressed batches")
    length = Flatbuffer.number(header, 0, 64)
    if length < 0, do: Flatbuffer.malformed("a batch of negative length")

    buffers = for {at, bytes} <- Flatbuffer.pairs(header, 2), do: buffer(body, at, bytes)

    # Buffers do not overlap: otherwise a few bytes could be many columns.
    if buffers |> Enum.map(&byte_size/1) |> Enum.sum() > byte_size(body),
      do: Flatbuffer.malformed("buffers overlap")

    left = {
      Flatbuffer.pairs(header, 1),
      buffers,
      Flatbuffer.longs(header, 4),
      known
    }

    {columns, left} = Enum.map_reduce(fields, left, fn {_, type, _}, left -> column(type, left) end)

    case left do
      {[], [], [], _known} -> :ok
      _more -> Flatbuffer.malformed("a batch has more than its schema")
    end

    :ok = check_batch(length, columns)
    {length, columns}
  end

  defp buffer(body, at, bytes) when at >= 0 and bytes >= 0 and at + bytes <= byte_size(body),
    do: binary_part(body, at, bytes)

  defp buffer(_body, _at, _bytes), do: Flatbuffer.malformed("a buffer reaches beyond its body")

  defp column(type, {[{length, nulls} | nodes], buffers, counts, known}) do
    if length < 0 or nulls < 0 or nulls > length,
      do: Flatbuffer.malformed("a column of impossible length")

    {mine, buffers, counts} = take(type, buffers, counts)

    {children, left} =
      Enum.map_reduce(Type.children(type), {nodes, buffers, counts, known}, fn {_, type, _}, left ->
        column(type, left)
      end)

    {%ArrayRef{
       type: type,
       length: length,
       null_count: nulls,
       buffers: mine,
       children: children,
       dictionary: with({:dictionary, _, _, id} <- type, do: Map.get(known, id), else: (_ -> nil))
     }, left}
  end

  defp column(_type, _left), do: Flatbuffer.malformed("a batch has less than its schema")

  # Return the number of buffers of a type.
  defp take(type, buffers, [count | counts]) when type in [:utf8_view, :binary_view] do
    if count < 0, do: Flatbuffer.malformed("views into less than no buffers")
    {mine, buffers} = split(buffers, 2 + count)
    {mine, buffers, counts}
  end

  defp take(type, _buffers, []) when type in [:utf8_view, :binary_view],
    do: Flatbuffer.malformed("views without their count of buffers")

  defp take(type, buffers, counts) do
    {mine, buffers} = split(buffers, count(type))
    {mine, buffers, counts}
  end

  defp count(:null), do: 0
  defp count(type) when type in [:utf8, :large_utf8, :binary, :large_binary], do: 3
  defp count({:struct, _fields}), do: 1
  defp count({:fixed_size_list, _item, _size}), do: 1
  defp count(_other), do: 2

  defp split(buffers, count) do
    case Enum.split(buffers, count) do
      {mine, rest} when length(mine) == count -> {mine, rest}
      _fewer -> Flatbuffer.malformed("a column lacks buffers")
    end
  end

  @doc "Check that columns have that length, and buffers of enough bytes; throw if not."
  @spec check_batch(non_neg_integer(), [%ArrayRef{}]) :: :ok
  def check_batch(length, columns) do
    unless Enum.all?(columns, &(&1.length == length)),
      do: Flatbuffer.malformed("the columns of a batch differ in length")

    Enum.each(columns, &check_tree/1)
  end

  defp check_tree(%ArrayRef{type: type, children: children} = array) do
    check(type, array)
    Enum.each(children, &check_tree/1)
  end

  # Check lengths when a table is opened. Offsets are checked when they are used.
  defp check(:null, _array), do: :ok

  defp check(type, %ArrayRef{buffers: [bitmap | _rest], length: n} = array) do
    enough(array.null_count == 0 or byte_size(bitmap) * 8 >= n)
    enough(bitmap == "" or byte_size(bitmap) * 8 >= n)
    check_values(type, array)
  end

  defp check_values({:struct, _fields}, %ArrayRef{children: children, length: n}),
    do: enough(Enum.all?(children, &(&1.length >= n)))

  defp check_values({:fixed_size_list, _item, size}, %ArrayRef{children: [child], length: n}),
    do: enough(child.length >= n * size)

  defp check_values(type, %ArrayRef{buffers: [_bitmap, values | _rest], length: n}) do
    case type do
      text when text in [:utf8, :binary] -> enough(offsets?(values, n, 4))
      large when large in [:large_utf8, :large_binary] -> enough(offsets?(values, n, 8))
      view when view in [:utf8_view, :binary_view] -> enough(byte_size(values) >= n * 16)
      {:list, _item} -> enough(offsets?(values, n, 4))
      {:large_list, _item} -> enough(offsets?(values, n, 8))
      {:map, _key, _value} -> enough(offsets?(values, n, 4))
      number -> enough(byte_size(values) * 8 >= n * Type.bits(number))
    end
  end

  defp offsets?(_offsets, 0, _bytes), do: true
  defp offsets?(offsets, n, bytes), do: byte_size(offsets) >= (n + 1) * bytes

  defp enough(true), do: :ok
  defp enough(false), do: Flatbuffer.malformed("a column is longer than its buffers")
end
