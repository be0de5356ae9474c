# SPDX-License-Identifier: MIT
defmodule Tmesh.Arrow.Type do
  @moduledoc false
  # Arrow's types as terms (Tmesh.Arrow documents them), and in the metadata of IPC messages.

  alias Tmesh.Arrow.Flatbuffer

  @units [:second, :millisecond, :microsecond, :nanosecond]
  @integers %{
    int8: {8, true},
    int16: {16, true},
    int32: {32, true},
    int64: {64, true},
    uint8: {8, false},
    uint16: {16, false},
    uint32: {32, false},
    uint64: {64, false}
  }
  @integer_names Map.new(@integers, fn {name, key} -> {key, name} end)
  @floats [:float16, :float32, :float64]
  # Types of the union that have no parameters.
  @plain %{
    1 => :null,
    4 => :binary,
    5 => :utf8,
    6 => :bool,
    19 => :large_binary,
    20 => :large_utf8,
    23 => :binary_view,
    24 => :utf8_view
  }
  @plain_tags Map.new(@plain, fn {tag, type} -> {type, tag} end)
  @unsupported %{
    11 => "intervals",
    14 => "unions",
    22 => "run-end encoding",
    25 => "list views",
    26 => "large list views"
  }

  # The depth exceeds that of any table. A long name counts as several fields, because many fields may point to one
  # name.
  @max_depth 64
  @max_fields 65_536
  @name_bytes 1024

  @type field :: {name :: String.t(), Tmesh.Arrow.type(), nullable :: boolean()}

  @doc "Return the bits of one element in the buffer of values, or nil if it is no array of numbers."
  @spec bits(Tmesh.Arrow.type()) :: pos_integer() | nil
  def bits(type) when is_map_key(@integers, type), do: elem(@integers[type], 0)
  def bits(:bool), do: 1
  def bits(:float16), do: 16
  def bits(:float32), do: 32
  def bits(:float64), do: 64
  def bits(:date32), do: 32
  def bits(:date64), do: 64
  def bits({:time32, _unit}), do: 32
  def bits({:time64, _unit}), do: 64
  def bits({:timestamp, _unit, _zone}), do: 64
  def bits({:duration, _unit}), do: 64
  def bits({:decimal, bits, _precision, _scale}), do: bits
  def bits({:fixed_size_binary, bytes}), do: bytes * 8
  def bits({:dictionary, index, _values, _id}), do: bits(index)
  def bits(_other), do: nil

  @doc "Return whether a column of this type can be made."
  @spec writable?(term()) :: boolean()
  def writable?(type)
      when is_map_key(@integers, type) or type in @floats or
             type in [:null, :bool, :utf8, :large_utf8, :binary, :large_binary, :date32, :date64],
      do: true

  def writable?({:time32, unit}), do: unit in [:second, :millisecond]
  def writable?({:time64, unit}), do: unit in [:microsecond, :nanosecond]
  def writable?({:timestamp, unit, nil}), do: unit in @units
  def writable?({:timestamp, unit, zone}), do: unit in @units and text?(zone)
  def writable?({:duration, unit}), do: unit in @units

  def writable?({:decimal, bits, precision, scale}) when is_integer(precision),
    do:
      bits in [128, 256] and precision in 1..div(bits * 3, 10) and is_integer(scale) and
        abs(scale) <= precision

  def writable?({:fixed_size_binary, bytes}), do: bytes in 1..0x7FFF_FFFF
  def writable?({kind, item}) when kind in [:list, :large_list], do: writable?(item)
  def writable?({:fixed_size_list, item, size}), do: size in 1..0x7FFF_FFFF and writable?(item)

  # An improper list has no length.
  def writable?({:struct, fields}) when length(fields) >= 0 do
    Enum.all?(
      fields,
      &(match?({_name, _type}, &1) and text?(elem(&1, 0)) and writable?(elem(&1, 1)))
    )
  end

  def writable?(_other), do: false

  defp text?(text), do: is_binary(text) and String.valid?(text)

  @doc "Return the fields below a type, in order."
  @spec children(Tmesh.Arrow.type()) :: [field()]
  def children({kind, item}) when kind in [:list, :large_list], do: [{"item", item, true}]
  def children({:fixed_size_list, item, _size}), do: [{"item", item, true}]
  def children({:struct, fields}), do: for({name, type} <- fields, do: {name, type, true})

  def children({:map, key, value}),
    do: [{"entries", {:struct, [{"key", key}, {"value", value}]}, false}]

  def children(_other), do: []

  @formats %{
    null: "n",
    bool: "b",
    int8: "c",
    int16: "s",
    int32: "i",
    int64: "l",
    uint8: "C",
    uint16: "S",
    uint32: "I",
    uint64: "L",
    float16: "e",
    float32: "f",
    float64: "g",
    binary: "z",
    large_binary: "Z",
    binary_view: "vz",
    utf8: "u",
    large_utf8: "U",
    utf8_view: "vu",
    date32: "tdD",
    date64: "tdm"
  }
  @unit_letters %{second: "s", millisecond: "m", microsecond: "u", nanosecond: "n"}

  @doc "Return the type in the form of Arrow's C Data Interface."
  @spec format(Tmesh.Arrow.type()) :: String.t()
  def format(type) when is_map_key(@formats, type), do: @formats[type]
  def format({kind, unit}) when kind in [:time32, :time64], do: "tt#{@unit_letters[unit]}"
  def format({:timestamp, unit, zone}), do: "ts#{@unit_letters[unit]}:#{zone}"
  def format({:duration, unit}), do: "tD#{@unit_letters[unit]}"
  def format({:decimal, 128, precision, scale}), do: "d:#{precision},#{scale}"
  def format({:decimal, bits, precision, scale}), do: "d:#{precision},#{scale},#{bits}"
  def format({:fixed_size_binary, bytes}), do: "w:#{bytes}"
  def format({:list, _item}), do: "+l"
  def format({:large_list, _item}), do: "+L"
  def format({:fixed_size_list, _item, size}), do: "+w:#{size}"
  def format({:struct, _fields}), do: "+s"
  def format({:map, _key, _value}), do: "+m"
  def format({:dictionary, index, _values, _id}), do: format(index)

  @doc "Encode a schema of fields as metadata."
  @spec encode_schema([field()]) :: Flatbuffer.tree()
  def encode_schema(fields), do: {:table, %{1 => {:tables, Enum.map(fields, &encode_field/1)}}}

  defp encode_field({name, type, nullable}) do
    {tag, members} = encode_type(type)

    {:table,
     %{
       0 => {:string, name},
       1 => {:bool, nullable},
       2 => {:i8, tag},
       3 => {:table, members},
       5 => {:tables, type |> children() |> Enum.map(&encode_field/1)}
     }}
  end

  defp encode_type(type) when is_map_key(@plain_tags, type), do: {@plain_tags[type], %{}}

  defp encode_type(type) when is_map_key(@integers, type) do
    {bits, signed} = @integers[type]
    {2, %{0 => {:i32, bits}, 1 => {:bool, signed}}}
  end

  defp encode_type(type) when type in @floats,
    do: {3, %{0 => {:i16, Enum.find_index(@floats, &(&1 == type))}}}

  defp encode_type({:decimal, bits, precision, scale}),
    do: {7, %{0 => {:i32, precision}, 1 => {:i32, scale}, 2 => {:i32, bits}}}

  defp encode_type(:date32), do: {8, %{0 => {:i16, 0}}}
  defp encode_type(:date64), do: {8, %{0 => {:i16, 1}}}
  defp encode_type({:time32, unit}), do: {9, %{0 => {:i16, number(unit)}, 1 => {:i32, 32}}}
  defp encode_type({:time64, unit}), do: {9, %{0 => {:i16, number(unit)}, 1 => {:i32, 64}}}
  defp encode_type({:timestamp, unit, nil}), do: {10, %{0 => {:i16, number(unit)}}}

  defp encode_type({:timestamp, unit, zone}),
    do: {10, %{0 => {:i16, number(unit)}, 1 => {:string, zone}}}

  defp encode_type({:list, _item}), do: {12, %{}}
  defp encode_type({:struct, _fields}), do: {13, %{}}
  defp encode_type({:fixed_size_binary, bytes}), do: {15, %{0 => {:i32, bytes}}}
  defp encode_type({:fixed_size_list, _item, size}), do: {16, %{0 => {:i32, size}}}
  defp encode_type({:duration, unit}), do: {18, %{0 => {:i16, number(unit)}}}
  defp encode_type({:large_list, _item}), do: {21, %{}}

  defp number(unit), do: Enum.find_index(@units, &(&1 == unit))

  @doc "Decode the fields of an untrusted schema; throw as Flatbuffer does."
  @spec decode_schema(Flatbuffer.table()) :: [field()]
  def decode_schema(schema) do
    if Flatbuffer.number(schema, 0, 16) != 0, do: unsupported("big-endian data")
    {fields, _count} = decode_fields(Flatbuffer.tables(schema, 1), 0, 0)
    fields
  end

  defp decode_fields(tables, depth, count) do
    if depth > @max_depth, do: Flatbuffer.malformed("fields are nested too deep")
    count = count + length(tables)
    if count > @max_fields, do: Flatbuffer.malformed("too many fields")
    Enum.map_reduce(tables, count, &decode_field(&1, depth, &2))
  end

  defp decode_field(field, depth, count) do
    {children, count} = decode_fields(Flatbuffer.tables(field, 5), depth + 1, count)
    tag = Flatbuffer.number(field, 2, 8)
    parameters = Flatbuffer.table(field, 3) || Flatbuffer.malformed("a field has no type")
    type = decode_type(tag, parameters, children)

    type =
      case Flatbuffer.table(field, 4) do
        nil ->
          type

        encoding ->
          index = Flatbuffer.table(encoding, 1)
          index = if index, do: decode_type(2, index, []), else: :int32
          {:dictionary, index, type, Flatbuffer.number(encoding, 0, 64)}
      end

    name = Flatbuffer.string(field, 0) || ""
    count = count + div(byte_size(name) + zone_bytes(type), @name_bytes)
    if count > @max_fields, do: Flatbuffer.malformed("too many fields with names as long")
    {{name, type, Flatbuffer.number(field, 1, 8) != 0}, count}
  end

  defp zone_bytes({:timestamp, _unit, zone}) when zone != nil, do: byte_size(zone)
  defp zone_bytes({:dictionary, _index, words, _id}), do: zone_bytes(words)
  defp zone_bytes(_other), do: 0

  defp decode_type(tag, _parameters, _children) when is_map_key(@plain, tag), do: @plain[tag]

  defp decode_type(2, int, _children) do
    key = {Flatbuffer.number(int, 0, 32), Flatbuffer.number(int, 1, 8) != 0}
    @integer_names[key] || Flatbuffer.malformed("integers of no known width")
  end

  defp decode_type(3, float, _children) do
    case Flatbuffer.number(float, 0, 16) do
      index when index in 0..2 -> Enum.at(@floats, index)
      _other -> Flatbuffer.malformed("floats of no known width")
    end
  end

  defp decode_type(7, decimal, _children) do
    case Flatbuffer.number(decimal, 2, 32, 128) do
      bits when bits in [32, 64, 128, 256] ->
        {:decimal, bits, Flatbuffer.number(decimal, 0, 32), Flatbuffer.number(decimal, 1, 32)}

      _other ->
        Flatbuffer.malformed("decimals of no known width")
    end
  end

  defp decode_type(8, date, _children),
    do: if(Flatbuffer.number(date, 0, 16, 1) == 0, do: :date32, else: :date64)

  defp decode_type(9, time, _children) do
    unit = unit(time, 1)

    case Flatbuffer.number(time, 1, 32, 32) do
      32 -> {:time32, unit}
      64 -> {:time64, unit}
      _other -> Flatbuffer.malformed("times of no known width")
    end
  end

  defp decode_type(10, timestamp, _children),
    do: {:timestamp, unit(timestamp, 0), Flatbuffer.string(timestamp, 1)}

  defp decode_type(12, _list, [{_name, item, _null}]), do: {:list, item}

  defp decode_type(13, _struct, fields),
    do: {:struct, for({name, type, _null} <- fields, do: {name, type})}

  defp decode_type(15, fixed, _children),
    do: {:fixed_size_binary, size(Flatbuffer.number(fixed, 0, 32))}

  defp decode_type(16, list, [{_name, item, _null}]),
    do: {:fixed_size_list, item, size(Flatbuffer.number(list, 0, 32))}

  defp decode_type(17, _map, [{_name, {:struct, [{_key, key}, {_value, value}]}, _null}]),
    do: {:map, key, value}

  defp decode_type(18, duration, _children), do: {:duration, unit(duration, 1)}
  defp decode_type(21, _list, [{_name, item, _null}]), do: {:large_list, item}

  defp decode_type(tag, _parameters, _children) when is_map_key(@unsupported, tag),
    do: unsupported(@unsupported[tag])

  defp decode_type(_tag, _parameters, _children), do: Flatbuffer.malformed("an unknown type")

  defp unit(table, default) do
    case Flatbuffer.number(table, 0, 16, default) do
      index when index in 0..3 -> Enum.at(@units, index)
      _other -> Flatbuffer.malformed("an unknown unit of time")
    end
  end

  defp size(size) when size >= 0, do: size
  defp size(_negative), do: Flatbuffer.malformed("a negative size")

  @doc false
  @spec unsupported(String.t()) :: no_return()
  def unsupported(what), do: throw({:unsupported, "Tmesh.Arrow reads no #{what}"})
end
