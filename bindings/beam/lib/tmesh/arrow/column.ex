# SPDX-License-Identifier: MIT
defmodule Tmesh.Arrow.Column do
  @moduledoc false
  # Convert between lists of terms and Arrow's buffers. encode/2 throws {:invalid, why}. decode/1 takes untrusted
  # columns, reads nothing beyond their buffers, and throws {:malformed, why}.

  import Bitwise
  alias Tmesh.Arrow.{ArrayRef, Flatbuffer, Type}

  # A column whose elements take no memory can have any number of them. A list of terms cannot, so limit them.
  @max_without_memory 16_777_216
  @float_kinds %{float16: {16, 5, 10}, float32: {32, 8, 23}, float64: {64, 11, 52}}
  @seconds %{second: 1, millisecond: 1_000, microsecond: 1_000_000, nanosecond: 1_000_000_000}
  @unix_day :calendar.date_to_gregorian_days(1970, 1, 1)

  @doc "Infer the type of a column for these values."
  @spec infer([term()]) :: Tmesh.Arrow.type()
  def infer(values) do
    case values |> Enum.reject(&is_nil/1) |> Enum.map(&kind/1) |> Enum.uniq() |> Enum.sort() do
      [] -> :null
      [kind] when is_atom(kind) and kind not in [:list, :map] -> kind
      [:float64, :int64] -> :float64
      [:binary, :utf8] -> :binary
      [:list] -> {:list, values |> Enum.reject(&is_nil/1) |> Enum.concat() |> infer()}
      [:map] -> infer_struct(Enum.reject(values, &is_nil/1))
      [{:timestamp, _unit, _zone} = type] -> type
      [{:time64, _unit} = type] -> type
      kinds -> invalid("has values of #{Enum.map_join(kinds, " and ", &inspect/1)}")
    end
  end

  defp kind(value) when is_boolean(value), do: :bool
  defp kind(value) when is_integer(value), do: :int64
  defp kind(value) when is_float(value) or value in [:nan, :infinity, :neg_infinity], do: :float64
  defp kind(value) when is_binary(value), do: if(String.valid?(value), do: :utf8, else: :binary)
  defp kind(%Date{}), do: :date32
  defp kind(%Time{}), do: {:time64, :microsecond}
  defp kind(%DateTime{}), do: {:timestamp, :microsecond, "UTC"}
  defp kind(%NaiveDateTime{}), do: {:timestamp, :microsecond, nil}

  defp kind(value) when is_list(value) do
    _proper = proper(value)
    :list
  end

  defp kind(value) when is_map(value) and not is_struct(value), do: :map
  defp kind(value), do: invalid("no type of Arrow is known for #{inspect(value, limit: 3)}")

  @doc "Return a proper list, or throw."
  @spec proper(list()) :: list()
  def proper(values) do
    if List.improper?(values), do: invalid("an improper list"), else: values
  end

  defp infer_struct(maps) do
    names = maps |> Enum.flat_map(&Map.keys/1) |> Enum.uniq() |> Enum.sort()

    unless Enum.all?(names, &is_binary/1), do: invalid("the keys of maps must be strings")
    {:struct, for(name <- names, do: {name, maps |> Enum.map(&Map.get(&1, name)) |> infer()})}
  end

  @doc "Make a column of these values; nil is null."
  @spec encode([term()], Tmesh.Arrow.type()) :: %ArrayRef{}
  def encode(values, type) do
    length = values |> proper() |> length()
    nulls = Enum.count(values, &is_nil/1)
    {buffers, children} = put(type, values)

    %ArrayRef{
      type: type,
      length: length,
      null_count: nulls,
      buffers: bitmap(type, values, nulls) ++ buffers,
      children: children
    }
  end

  # If nothing is null, the bitmap is left out, which is an empty buffer.
  defp bitmap(:null, _values, _nulls), do: []
  defp bitmap(_type, _values, 0), do: [""]
  defp bitmap(_type, values, _nulls), do: [bits(values, &(&1 != nil))]

  @doc "Make a column of numbers in Arrow's form in memory, none of them null."
  @spec from_binary(binary(), Tmesh.Arrow.type()) :: %ArrayRef{}
  def from_binary(binary, type) do
    bits = Type.bits(type)

    cond do
      bits == nil or type == :bool ->
        invalid("#{inspect(type)} is no array of whole bytes: give a list")

      rem(byte_size(binary) * 8, bits) != 0 ->
        invalid("#{byte_size(binary)} bytes are no whole number of #{inspect(type)}")

      true ->
        length = div(byte_size(binary) * 8, bits)
        %ArrayRef{type: type, length: length, null_count: 0, buffers: ["", binary], children: []}
    end
  end

  defp put(:null, values) do
    Enum.each(values, &(&1 == nil || invalid("a column of :null has only nil")))
    {[], []}
  end

  defp put(:bool, values) do
    Enum.each(values, &(&1 in [true, false, nil] || bad(&1, :bool)))
    {[bits(values, &(&1 == true))], []}
  end

  defp put(type, values) when type in [:utf8, :large_utf8, :binary, :large_binary] do
    text = type in [:utf8, :large_utf8]

    Enum.each(values, fn value ->
      unless is_nil(value) or (is_binary(value) and (not text or String.valid?(value))),
        do: bad(value, type)
    end)

    large = type in [:large_utf8, :large_binary]
    {[offsets(values, large, &byte_size(&1 || "")), join(values)], []}
  end

  defp put({kind, item} = type, values) when kind in [:list, :large_list] do
    Enum.each(values, &(is_nil(&1) or list?(&1) or bad(&1, type)))
    child = values |> Enum.flat_map(&(&1 || [])) |> encode(item)
    {[offsets(values, kind == :large_list, &length(&1 || []))], [child]}
  end

  defp put({:fixed_size_list, item, size} = type, values) do
    Enum.each(values, &(is_nil(&1) or (list?(&1) and length(&1) == size) or bad(&1, type)))
    empty = List.duplicate(nil, size)
    {[], [values |> Enum.flat_map(&(&1 || empty)) |> encode(item)]}
  end

  defp put({:struct, fields} = type, values) do
    Enum.each(values, &(is_nil(&1) or (is_map(&1) and not is_struct(&1)) or bad(&1, type)))

    {[], for({name, item} <- fields, do: values |> Enum.map(&(&1 || %{})[name]) |> encode(item))}
  end

  defp put(type, values) do
    {[
       for(
         value <- values,
         into: <<>>,
         do: if(value == nil, do: zero(type), else: one(type, value))
       )
     ], []}
  end

  defp zero(type), do: <<0::size(Type.bits(type))>>

  defp one(type, value) when is_map_key(@float_kinds, type), do: float(type, value)
  defp one(:date32, %Date{} = date), do: integer(:date32, 32, true, days(date))
  defp one(:date64, %Date{} = date), do: integer(:date64, 64, true, days(date) * 86_400_000)

  defp one({kind, unit} = type, %Time{} = time) when kind in [:time32, :time64] do
    {seconds, microseconds} = Time.to_seconds_after_midnight(time)
    integer(type, Type.bits(type), true, scale(type, seconds * 1_000_000 + microseconds, unit))
  end

  defp one({:timestamp, unit, zone} = type, %DateTime{} = time) when zone != nil,
    do: integer(type, 64, true, scale(type, DateTime.to_unix(time, :microsecond), unit))

  defp one({:timestamp, unit, nil} = type, %NaiveDateTime{} = time) do
    time = DateTime.from_naive!(time, "Etc/UTC")
    integer(type, 64, true, scale(type, DateTime.to_unix(time, :microsecond), unit))
  end

  defp one({:decimal, bits, precision, _scale} = type, value) when is_integer(value) do
    if abs(value) >= 10 ** precision, do: bad(value, type)
    <<value::size(bits)-little-signed>>
  end

  defp one({:fixed_size_binary, bytes}, value) when is_binary(value) and byte_size(value) == bytes,
    do: value

  defp one(type, value) when is_integer(value) do
    case Type.bits(type) do
      nil -> bad(value, type)
      bits -> integer(type, bits, not unsigned?(type), value)
    end
  end

  defp one(type, value), do: bad(value, type)

  defp unsigned?(type), do: type in [:uint8, :uint16, :uint32, :uint64]

  defp days(date), do: Date.to_gregorian_days(date) - @unix_day

  # Never round silently.
  defp scale(type, microseconds, unit) do
    parts = microseconds * @seconds[unit]

    if rem(parts, 1_000_000) != 0,
      do: invalid("#{microseconds} microseconds do not fit into #{inspect(type)} unrounded")

    div(parts, 1_000_000)
  end

  defp integer(type, bits, signed, value) do
    {low, high} =
      if signed, do: {-(1 <<< (bits - 1)), (1 <<< (bits - 1)) - 1}, else: {0, (1 <<< bits) - 1}

    if value < low or value > high, do: bad(value, type)
    <<value::size(bits)-little>>
  end

  defp float(type, value) when value in [:nan, :infinity, :neg_infinity] do
    {bits, exponent, mantissa} = @float_kinds[type]
    ones = (1 <<< exponent) - 1

    {sign, fraction} =
      case value do
        :nan -> {0, 1 <<< (mantissa - 1)}
        :infinity -> {0, 0}
        :neg_infinity -> {1, 0}
      end

    <<sign <<< (bits - 1) ||| ones <<< mantissa ||| fraction::size(bits)-little>>
  end

  defp float(type, value) when is_number(value) do
    {bits, _exponent, _mantissa} = @float_kinds[type]

    bytes = <<value::float-size(bits)-little>>
    # A number that is too large becomes an infinity, which is no float in Elixir.
    if finite(bytes) == :error, do: bad(value, type), else: bytes
  rescue
    ArgumentError -> bad(value, type)
  end

  defp float(type, value), do: bad(value, type)

  defp bits(values, set?) do
    values
    |> Enum.chunk_every(8)
    |> Enum.map(fn chunk ->
      chunk
      |> Enum.with_index()
      |> Enum.reduce(0, fn {v, i}, byte ->
        if set?.(v), do: byte ||| 1 <<< i, else: byte
      end)
    end)
    |> :erlang.list_to_binary()
  end

  defp offsets(values, large, size) do
    {offsets, last} = Enum.map_reduce(values, 0, fn value, at -> {at, at + size.(value)} end)
    if not large and last > 0x7FFF_FFFF, do: invalid("more than 2 GiB: use the :large_ type")
    bits = if large, do: 64, else: 32
    for offset <- offsets ++ [last], into: <<>>, do: <<offset::size(bits)-little>>
  end

  defp join(values), do: for(value <- values, value != nil, into: <<>>, do: value)

  defp list?(value), do: is_list(value) and not List.improper?(value)

  @spec bad(term(), term()) :: no_return()
  defp bad(value, type), do: invalid("#{inspect(value, limit: 5)} is no #{inspect(type)}")

  @spec invalid(String.t()) :: no_return()
  defp invalid(why), do: throw({:invalid, why})

  @doc """
  Check everything in a column that refers to other data, as decode/1 would. Numbers refer to nothing.
  """
  @spec verify(%ArrayRef{}) :: :ok
  def verify(%ArrayRef{type: type, children: children} = array) do
    case type do
      {:dictionary, _index, _values, _id} ->
        _words = values(type, array)
        verify(array.dictionary)

      {kind, _item} when kind in [:list, :large_list] ->
        verify_lists(array, kind == :large_list)

      {:map, _key, _value} ->
        verify_lists(array, false)

      type when type in [:utf8, :large_utf8, :utf8_view, :binary, :large_binary, :binary_view] ->
        _texts = values(type, array)
        :ok

      _number_or_struct ->
        Enum.each(children, &verify/1)
    end
  end

  defp verify_lists(%ArrayRef{buffers: [_bitmap, offsets], children: [child]} = array, large) do
    _ranges = ranges(offsets, array.length, large, child.length)
    verify(child)
  end

  @doc "Return the values of the parts of a column. A dictionary that they share is read once."
  @spec decode_all([%ArrayRef{}]) :: [term()]
  def decode_all(arrays) do
    {values, _known} =
      Enum.flat_map_reduce(arrays, nil, fn
        %ArrayRef{dictionary: nil} = array, known ->
          {decode(array), known}

        %ArrayRef{dictionary: dictionary} = array, known ->
          known =
            if match?({^dictionary, _words}, known),
              do: known,
              else: {dictionary, words(dictionary)}

          {array |> pick(elem(known, 1)) |> masked(array), known}
      end)

    values
  end

  defp words(nil), do: Flatbuffer.malformed("a dictionary is missing")
  defp words(dictionary), do: dictionary |> decode() |> List.to_tuple()

  @doc "Check that a list of terms can be made of all these columns; throw if not."
  @spec check_nothings([%ArrayRef{}]) :: :ok
  def check_nothings(arrays) do
    if nothings(arrays) <= @max_without_memory,
      do: :ok,
      else: throw({:limit_exceeded, "lists of more than #{@max_without_memory} nothings"})
  end

  defp nothings(arrays) do
    for %ArrayRef{type: type, length: length} = array <- arrays, reduce: 0 do
      sum ->
        mine = if nothing?(type), do: length, else: 0
        sum + mine + nothings(array.children) + nothings(List.wrap(array.dictionary))
    end
  end

  defp nothing?(type),
    do:
      type in [:null, {:struct, []}, {:fixed_size_binary, 0}] or
        match?({:fixed_size_list, _, 0}, type)

  @doc "Return the values of a column."
  @spec decode(%ArrayRef{}) :: [term()]
  def decode(%ArrayRef{type: type} = array), do: type |> values(array) |> masked(array)

  defp masked(values, %ArrayRef{length: length} = array) do
    case valid_bits(array) do
      nil -> values
      bits -> Enum.zip_with(values, Enum.take(bits, length), &if(&2 == 1, do: &1))
    end
  end

  # With a null count of 0 the bitmap is not read.
  defp valid_bits(%ArrayRef{null_count: 0}), do: nil
  defp valid_bits(%ArrayRef{type: :null}), do: nil
  defp valid_bits(%ArrayRef{buffers: [bitmap | _rest], length: n}), do: unpack(bitmap, n)

  # The lowest bit comes first.
  defp unpack(bitmap, count) do
    for <<byte <- part(bitmap, 0, div(count + 7, 8))>>, shift <- 0..7, do: byte >>> shift &&& 1
  end

  defp values(:null, %ArrayRef{length: n}), do: nothing(n)

  defp values(:bool, %ArrayRef{buffers: [_bitmap, bits], length: n}),
    do: bits |> unpack(n) |> Enum.take(n) |> Enum.map(&(&1 == 1))

  defp values(type, %ArrayRef{buffers: [_bitmap, offsets, data]} = array)
       when type in [:utf8, :large_utf8, :binary, :large_binary] do
    text = type in [:utf8, :large_utf8]

    offsets
    |> ranges(array.length, type in [:large_utf8, :large_binary], byte_size(data))
    |> map_valid(array, fn {at, size} -> data |> binary_part(at, size) |> text(text) end)
  end

  defp values(type, %ArrayRef{buffers: [_bitmap, views | blocks], length: n} = array)
       when type in [:utf8_view, :binary_view] do
    views = for <<view::binary-16 <- part(views, 0, n * 16)>>, do: view
    texts? = type == :utf8_view
    # Views may overlap, so each block is checked once, and not again with each view.
    blocks = Enum.map(blocks, &{&1, not texts? or String.valid?(&1)})
    unless Enum.all?(blocks, &elem(&1, 1)), do: check_overlap(views, array, blocks)
    blocks = List.to_tuple(blocks)
    map_valid(views, array, &view(&1, blocks, texts?))
  end

  defp values({kind, _item}, %ArrayRef{buffers: [_bitmap, offsets], children: [child]} = array)
       when kind in [:list, :large_list] do
    lists(offsets, array.length, kind == :large_list, child)
  end

  defp values(
         {:map, _key, _value},
         %ArrayRef{buffers: [_bitmap, offsets], children: [child]} = array
       ) do
    for entries <- lists(offsets, array.length, false, child) do
      Enum.map(entries, fn
        %{"key" => key, "value" => value} -> {key, value}
        nil -> Flatbuffer.malformed("an entry of a map is null")
      end)
    end
  end

  defp values({:fixed_size_list, _item, 0}, %ArrayRef{length: n}),
    do: n |> nothing() |> Enum.map(fn nil -> [] end)

  defp values({:fixed_size_list, _item, size}, %ArrayRef{children: [child], length: n}) do
    child |> decode() |> Enum.take(n * size) |> Enum.chunk_every(size)
  end

  defp values({:fixed_size_binary, 0}, %ArrayRef{length: n}),
    do: n |> nothing() |> Enum.map(fn nil -> "" end)

  defp values({:struct, []}, %ArrayRef{length: n}),
    do: n |> nothing() |> Enum.map(fn nil -> %{} end)

  defp values({:struct, fields}, %ArrayRef{children: children, length: n}) do
    names = Enum.map(fields, &elem(&1, 0))

    children
    |> Enum.map(&(&1 |> decode() |> Enum.take(n)))
    |> Enum.zip_with(&(names |> Enum.zip(&1) |> Map.new()))
  end

  defp values({:dictionary, _index, _values, _id}, %ArrayRef{dictionary: dictionary} = array),
    do: pick(array, words(dictionary))

  defp values(type, %ArrayRef{buffers: [_bitmap, data], length: n}) do
    bits = Type.bits(type)
    data = part(data, 0, div(n * bits, 8))
    number(type, data)
  end

  defp pick(%ArrayRef{type: {:dictionary, index, _values, _id}} = array, words) do
    count = tuple_size(words)

    map_valid(values(index, array), array, fn
      at when at >= 0 and at < count -> elem(words, at)
      _beyond -> Flatbuffer.malformed("an index beyond its dictionary")
    end)
  end

  # The data of a null may be anything: texts, views and indices are checked only at other places.
  defp map_valid(items, array, function) do
    case valid_bits(array) do
      nil ->
        Enum.map(items, function)

      bits ->
        Enum.zip_with(items, bits, fn
          item, 1 -> function.(item)
          _anything, 0 -> nil
        end)
    end
  end

  defp nothing(n) when n <= @max_without_memory, do: List.duplicate(nil, n)

  defp nothing(_n),
    do: throw({:limit_exceeded, "a list of more than #{@max_without_memory} nothings"})

  defp number(type, data) when type in [:uint8, :uint16, :uint32, :uint64] do
    unsigned(data, Type.bits(type))
  end

  defp number(type, data) when is_map_key(@float_kinds, type) do
    {bits, _exponent, _mantissa} = @float_kinds[type]
    for x <- chunks(data, div(bits, 8)), do: read_float(type, bits, x)
  end

  defp number({:fixed_size_binary, bytes}, data), do: chunks(data, bytes)
  defp number({:decimal, bits, _precision, _scale}, data), do: signed(data, bits)

  defp number(:date32, data), do: for(<<x::32-little-signed <- data>>, do: date(x))

  defp number(:date64, data),
    do: for(<<x::64-little-signed <- data>>, do: date(Integer.floor_div(x, 86_400_000)))

  defp number({kind, :nanosecond}, data) when kind in [:time64, :duration], do: number(:int64, data)

  defp number({kind, unit}, data) when kind in [:time32, :time64] do
    bits = if kind == :time32, do: 32, else: 64
    for x <- signed(data, bits), do: time(x, @seconds[unit])
  end

  defp number({:duration, _unit}, data), do: number(:int64, data)
  # Elixir's times end at the microsecond, and nothing is rounded.
  defp number({:timestamp, :nanosecond, _zone}, data), do: number(:int64, data)

  defp number({:timestamp, unit, zone}, data),
    do: for(<<x::64-little-signed <- data>>, do: timestamp(x, unit, zone))

  defp number(type, data), do: signed(data, Type.bits(type))

  # Sizes in patterns are literals: older Elixirs have no pin operator there, newer ones want it.
  for bits <- [8, 16, 32, 64] do
    defp unsigned(data, unquote(bits)), do: for(<<x::unquote(bits)-little <- data>>, do: x)
  end

  for bits <- [8, 16, 32, 64, 128, 256] do
    defp signed(data, unquote(bits)), do: for(<<x::unquote(bits)-little-signed <- data>>, do: x)
  end

  defp chunks(data, bytes),
    do: for(i <- 0..(div(byte_size(data), bytes) - 1)//1, do: binary_part(data, i * bytes, bytes))

  defp finite(<<x::float-16-little>>), do: {:ok, x}
  defp finite(<<x::float-32-little>>), do: {:ok, x}
  defp finite(<<x::float-64-little>>), do: {:ok, x}
  defp finite(_infinity), do: :error

  # Elixir's floats are finite.
  defp read_float(type, bits, bytes) do
    case finite(bytes) do
      {:ok, x} ->
        x

      :error ->
        x = :binary.decode_unsigned(bytes, :little)
        {_bits, _exponent, mantissa} = @float_kinds[type]

        cond do
          (x &&& (1 <<< mantissa) - 1) != 0 -> :nan
          x >>> (bits - 1) == 1 -> :neg_infinity
          true -> :infinity
        end
    end
  end

  # A date beyond the calendar is its bare number.
  defp date(days) when days in -719_528..2_932_896, do: Date.from_gregorian_days(days + @unix_day)
  defp date(days), do: days

  defp time(x, per_second) when x >= 0 and x < 86_400 * per_second do
    digits = per_second |> Integer.digits() |> length() |> Kernel.-(1)
    micro = div(rem(x, per_second) * 1_000_000, per_second)
    Time.from_seconds_after_midnight(div(x, per_second), {micro, digits})
  end

  defp time(x, _per_second), do: x

  defp timestamp(x, unit, zone) do
    case DateTime.from_unix(x, unit) do
      {:ok, time} -> if zone, do: time, else: DateTime.to_naive(time)
      {:error, _beyond} -> x
    end
  end

  defp lists(offsets, count, large, child) do
    items = decode(child)

    {lists, _rest} =
      offsets
      |> ranges(count, large, length(items))
      |> Enum.map_reduce({items, 0}, fn {at, size}, {items, here} ->
        {list, rest} = items |> Enum.drop(at - here) |> Enum.split(size)
        {list, {rest, at + size}}
      end)

    lists
  end

  # Return the range of each of `count` elements. They follow each other, and end within `limit`.
  defp ranges(_offsets, 0, _large, _limit), do: []

  defp ranges(offsets, count, large, limit) do
    bits = if large, do: 64, else: 32
    bytes = part(offsets, 0, (count + 1) * div(bits, 8))
    [first | rest] = signed(bytes, bits)
    if first < 0, do: Flatbuffer.malformed("a negative offset")

    {ranges, last} =
      Enum.map_reduce(rest, first, fn next, at ->
        if next < at, do: Flatbuffer.malformed("offsets go backwards")
        {{at, next - at}, next}
      end)

    if last > limit, do: Flatbuffer.malformed("an offset beyond its data")
    ranges
  end

  defp view(<<size::32-little, rest::binary-12>>, _blocks, text?) when size <= 12,
    do: rest |> binary_part(0, size) |> text(text?)

  defp view(<<size::32-little, _prefix::32, block::32-little, at::32-little>>, blocks, text?) do
    if block >= tuple_size(blocks), do: Flatbuffer.malformed("a view into no buffer")
    {block, sound} = elem(blocks, block)
    bytes = part(block, at, size)
    text(bytes, text? and not (sound and whole?(block, at) and whole?(block, at + size)))
  end

  # Return whether the cut splits no character of the text.
  defp whole?(text, at) when at < byte_size(text), do: (:binary.at(text, at) &&& 0xC0) != 0x80
  defp whole?(_text, _at), do: true

  # If a block is not valid text as a whole, its views are checked, but bytes that views share are not checked again
  # and again.
  defp check_overlap(views, array, blocks) do
    bytes =
      for {block, _sound} <- blocks, reduce: 16 * length(views), do: (n -> n + byte_size(block))

    seen =
      views
      |> map_valid(array, fn <<size::32-little, _::binary>> -> if size > 12, do: size, else: 0 end)
      |> Enum.reduce(0, &((&1 || 0) + &2))

    if seen > 16 * bytes,
      do: throw({:limit_exceeded, "views of #{seen} bytes into buffers that are not all text"})
  end

  defp text(bytes, false), do: bytes

  defp text(bytes, true),
    do: if(String.valid?(bytes), do: bytes, else: Flatbuffer.malformed("a text is not UTF-8"))

  defp part(buffer, at, size) when at + size <= byte_size(buffer), do: binary_part(buffer, at, size)
  defp part(_buffer, _at, _size), do: Flatbuffer.malformed("a column is longer than its buffer")
end
