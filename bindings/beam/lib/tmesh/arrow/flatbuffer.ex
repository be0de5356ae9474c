# SPDX-License-Identifier: MIT
defmodule Tmesh.Arrow.Flatbuffer do
  @moduledoc false
  # FlatBuffers, as far as Arrow's metadata needs them.
  #
  # encode/1 lays a tree of terms out front to back, parents before children:
  #
  #     {:table, %{slot => value}}
  #     {:i8 | :i16 | :i32 | :i64 | :bool, number}
  #     {:string, text}
  #     {:tables, [table]}, {:longs, [integer]}, {:pairs, [{integer, integer}]}
  #
  # Every member has eight bytes of its own, and every object starts at a multiple of eight. So no object depends on the
  # alignment of another.
  #
  # The readers take untrusted bytes. They throw {:malformed, why}, never raise, and read nothing beyond the binary.
  # A caller that walks a tree limits its own depth and number of steps.

  import Bitwise

  @type tree :: {atom(), term()}
  @type table :: {binary(), position :: non_neg_integer()}

  @spec encode(tree()) :: binary()
  def encode(root) do
    # The root's offset takes four bytes, and four more align the rest.
    {object, at, _next} = place(root, 8)
    IO.iodata_to_binary([<<at::32-little, 0::32>>, object])
  end

  # Return the object's bytes from `start` on, the position for references to it, and the next free position.
  defp place({:table, members}, start) do
    slots = if members == %{}, do: 0, else: Enum.max(Map.keys(members)) + 1
    present = Enum.filter(0..(slots - 1)//1, &Map.has_key?(members, &1))
    vtable_bytes = 4 + 2 * slots
    at = start + pad(vtable_bytes)
    table_bytes = 8 + 8 * length(present)
    places = present |> Enum.with_index() |> Map.new(fn {slot, i} -> {slot, 8 + 8 * i} end)

    vtable = [
      <<vtable_bytes::16-little, table_bytes::16-little>>,
      for(slot <- 0..(slots - 1)//1, do: <<Map.get(places, slot, 0)::16-little>>)
    ]

    {inline, {children, next}} =
      Enum.map_reduce(present, {[], at + table_bytes}, fn slot, {children, next} ->
        member(members[slot], at + places[slot], children, next)
      end)

    table = [fill(vtable), <<at - start::32-little-signed, 0::32>>, inline]
    {[table | Enum.reverse(children)], at, next}
  end

  defp place({:string, text}, start) do
    bytes = [<<byte_size(text)::32-little>>, text, 0]
    {fill(bytes), start, start + pad(IO.iodata_length(bytes))}
  end

  defp place({:tables, tables}, start) do
    count = length(tables)
    head = pad(4 + 4 * count)

    {offsets, {children, next, _at}} =
      Enum.map_reduce(tables, {[], start + head, start + 4}, fn table, {children, next, here} ->
        {object, at, next} = place(table, next)
        {<<at - here::32-little>>, {[object | children], next, here + 4}}
      end)

    {[fill([<<count::32-little>>, offsets]) | Enum.reverse(children)], start, next}
  end

  # The elements follow their count at once and need alignment, so the count is moved.
  defp place({:longs, longs}, start) do
    elements = for long <- longs, into: <<>>, do: <<long::64-little-signed>>
    {[<<0::32, length(longs)::32-little>>, elements], start + 4, start + 8 + byte_size(elements)}
  end

  defp place({:pairs, pairs}, start) do
    elements = for {a, b} <- pairs, into: <<>>, do: <<a::64-little-signed, b::64-little-signed>>
    {[<<0::32, length(pairs)::32-little>>, elements], start + 4, start + 8 + byte_size(elements)}
  end

  defp member({:bool, value}, _here, children, next),
    do: {<<if(value, do: 1, else: 0), 0::56>>, {children, next}}

  defp member({:i8, value}, _here, children, next), do: {<<value, 0::56>>, {children, next}}

  defp member({:i16, value}, _here, children, next),
    do: {<<value::16-little-signed, 0::48>>, {children, next}}

  defp member({:i32, value}, _here, children, next),
    do: {<<value::32-little-signed, 0::32>>, {children, next}}

  defp member({:i64, value}, _here, children, next),
    do: {<<value::64-little-signed>>, {children, next}}

  defp member(tree, here, children, next) do
    {object, at, next} = place(tree, next)
    {<<at - here::32-little, 0::32>>, {[object | children], next}}
  end

  defp pad(bytes), do: div(bytes + 7, 8) * 8

  defp fill(iodata) do
    bytes = IO.iodata_length(iodata)
    [iodata, <<0::size((pad(bytes) - bytes) * 8)>>]
  end

  @doc "Return the root table of a buffer."
  @spec root(binary()) :: table()
  def root(buffer), do: {buffer, unsigned(buffer, 0, 32)}

  @doc "Return the number in a slot, or the default."
  @spec number(table(), non_neg_integer(), 8 | 16 | 32 | 64, integer()) :: integer()
  def number({buffer, _at} = table, slot, bits, default \\ 0) do
    case find(table, slot) do
      nil -> default
      at -> signed(buffer, at, bits)
    end
  end

  @doc "Return the text in a slot, or nil."
  @spec string(table(), non_neg_integer()) :: String.t() | nil
  def string({buffer, _at} = table, slot) do
    with at when at != nil <- follow(table, slot) do
      text = part(buffer, at + 4, unsigned(buffer, at, 32))
      if String.valid?(text), do: text, else: malformed("a name is not UTF-8")
    end
  end

  @doc "Return the table in a slot, or nil."
  @spec table(table(), non_neg_integer()) :: table() | nil
  def table({buffer, _at} = table, slot) do
    with at when at != nil <- follow(table, slot), do: {buffer, at}
  end

  @doc "Return the tables of the vector in a slot, or an empty list without a vector."
  @spec tables(table(), non_neg_integer()) :: [table()]
  def tables({buffer, _at} = table, slot) do
    elements(table, slot, 4, fn at -> {buffer, at + unsigned(buffer, at, 32)} end)
  end

  @doc "Return the pairs of longs of the vector of structs in a slot."
  @spec pairs(table(), non_neg_integer()) :: [{integer(), integer()}]
  def pairs({buffer, _at} = table, slot) do
    elements(table, slot, 16, fn at -> {signed(buffer, at, 64), signed(buffer, at + 8, 64)} end)
  end

  @doc "Return the longs of the vector in a slot."
  @spec longs(table(), non_neg_integer()) :: [integer()]
  def longs({buffer, _at} = table, slot) do
    elements(table, slot, 8, fn at -> signed(buffer, at, 64) end)
  end

  defp elements({buffer, _at} = table, slot, bytes, fun) do
    case follow(table, slot) do
      nil ->
        []

      at ->
        count = unsigned(buffer, at, 32)
        _all = part(buffer, at + 4, count * bytes)
        for i <- 0..(count - 1)//1, do: fun.(at + 4 + i * bytes)
    end
  end

  defp follow({buffer, _at} = table, slot) do
    with at when at != nil <- find(table, slot), do: at + unsigned(buffer, at, 32)
  end

  # Return the position of a slot's member, or nil if the table lacks it.
  defp find({buffer, at}, slot) do
    vtable = at - signed(buffer, at, 32)
    entry = 4 + 2 * slot

    with true <- entry + 2 <= unsigned(buffer, vtable, 16),
         offset when offset != 0 <- unsigned(buffer, vtable + entry, 16) do
      at + offset
    else
      _absent -> nil
    end
  end

  defp unsigned(buffer, at, bits),
    do: buffer |> part(at, div(bits, 8)) |> :binary.decode_unsigned(:little)

  defp signed(buffer, at, bits) do
    value = unsigned(buffer, at, bits)
    if value < 1 <<< (bits - 1), do: value, else: value - (1 <<< bits)
  end

  defp part(buffer, at, bytes) when at >= 0 and at + bytes <= byte_size(buffer),
    do: binary_part(buffer, at, bytes)

  defp part(_buffer, _at, _bytes), do: malformed("it points beyond its end")

  @doc false
  @spec malformed(String.t()) :: no_return()
  def malformed(why), do: throw({:malformed, why})
end
