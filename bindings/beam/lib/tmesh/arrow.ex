# SPDX-License-Identifier: MIT
defmodule Tmesh.Arrow do
  @moduledoc """
  Arrow tables in shared memory: made here and used in place by pyarrow, pandas and Polars, and the
  other way round.

      {:ok, table} = Tmesh.Arrow.from_columns(%{"name" => ["Ann", "Bo"], "age" => [41, 7]})
      {:ok, json} = Tmesh.ZeroCopy.TensorRef.to_json(table.ref)
      # Python: tmesh.arrow.open_table(json), a pyarrow.Table over the same memory

      {:ok, table} = Tmesh.Arrow.import_table(json_from_python)
      {:ok, ages} = Tmesh.Arrow.to_list(table, "age")

  A table is a sealed region that holds an Arrow IPC stream. Making a table copies each value into it once.
  Importing one copies nothing: the buffers of its columns (`ArrayRef.buffers`) are binaries that point into the
  region and keep it, as `Tmesh.ZeroCopy` explains. Only `to_list/1` and similar functions turn them into terms.

  ## Types

  | type | values |
  | --- | --- |
  | `:null` | `nil` |
  | `:bool` | `true`, `false` |
  | `:int8` to `:int64`, `:uint8` to `:uint64` | integers |
  | `:float16`, `:float32`, `:float64` | numbers, `:nan`, `:infinity`, `:neg_infinity` |
  | `:utf8`, `:large_utf8` | strings |
  | `:binary`, `:large_binary`, `{:fixed_size_binary, bytes}` | binaries |
  | `:date32`, `:date64` | `Date` |
  | `{:time32 or :time64, unit}` | `Time` |
  | `{:timestamp, unit, zone or nil}` | `DateTime` (in UTC), `NaiveDateTime` where there is no zone |
  | `{:duration, unit}` | integers, in that unit |
  | `{:decimal, bits, precision, scale}` | integers: the value times 10^scale |
  | `{:list or :large_list, type}`, `{:fixed_size_list, type, size}` | lists |
  | `{:struct, [{name, type}]}` | maps with string keys |

  Any value may be `nil`. Units are `:second`, `:millisecond`, `:microsecond` and `:nanosecond`. Times in
  nanoseconds and dates beyond the calendar are integers, because nothing is rounded. Some types can be read, but
  not made here: `:utf8_view`, `:binary_view`, `{:map, key, value}` (lists of pairs) and `{:dictionary, index, type,
  id}` (the words themselves). Compressed batches, unions, intervals, run-end encoding and list views are
  `:unsupported`.

  `config :tmesh, :zero_copy, arrow_enabled: false` switches all of this off: `:unsupported`.

  ## Trust

  An imported stream may come from any process. A stream that is cut short, has wrong lengths or points elsewhere gives
  `:protocol`, at the import or when the column is read. No stream can make this VM read other memory, or make a
  list with more elements than its bytes can encode.

  The encoder and the reader are tmesh's own. Debian has no C library for Arrow that suits such a small part, and
  plain Elixir cannot harm the VM. Tests compare them with pyarrow in both directions.
  """

  use Tmesh.Bang,
      ~w(from_list/2 from_columns/2 import_table/1 export_ipc/1 to_list/1 to_list/2 column/2
         to_columns/1 stream_pointer/1 release/1)

  alias Tmesh.{Config, Error, Native, ZeroCopy}
  alias Tmesh.Arrow.{Column, Ipc, Type}
  alias Tmesh.ZeroCopy.TensorRef

  defmodule ArrayRef do
    @moduledoc """
    One column, or one part of it: Arrow's buffers, as binaries, and those of its children.

      * `type`, `length`, `null_count` - see `Tmesh.Arrow`
      * `buffers` - in Arrow's order for the type: the bitmap of values that are not null ("" if none is null),
        offsets, values
      * `children` - the columns below a list or a struct
      * `dictionary` - the words of a dictionary's indices, or `nil`
    """
    @type t :: %__MODULE__{
            type: Tmesh.Arrow.type(),
            length: non_neg_integer(),
            null_count: non_neg_integer(),
            buffers: [binary()],
            children: [t()],
            dictionary: t() | nil
          }

    @derive {Inspect, only: [:type, :length, :null_count]}
    @enforce_keys [:type, :length, :null_count, :buffers, :children]
    defstruct @enforce_keys ++ [:dictionary]
  end

  defmodule TableRef do
    @moduledoc """
    A table in a region.

      * `schema` - `{name, type, nullable}` for each column
      * `num_rows`
      * `batches` - for each record batch its columns, as `Tmesh.Arrow.ArrayRef`s
      * `ref` - the region, to hand to others (`Tmesh.ZeroCopy.TensorRef.to_map/1`, `to_json/1`) and
        to release; `nil` for a table that was imported from a binary
    """
    @type t :: %__MODULE__{
            schema: [{String.t(), Tmesh.Arrow.type(), boolean()}],
            num_rows: non_neg_integer(),
            batches: [[ArrayRef.t()]],
            ref: TensorRef.t() | nil
          }

    @derive {Inspect, only: [:schema, :num_rows]}
    @enforce_keys [:schema, :num_rows, :batches]
    defstruct @enforce_keys ++ [:ref]
  end

  @type unit :: :second | :millisecond | :microsecond | :nanosecond
  @typedoc "See the module's text."
  @type type :: atom() | tuple()
  @typedoc """
  The content of a column: values, whose type is inferred; values and their type; or a column from `from_list/2`. A
  binary with numbers in Arrow's form (little-endian, none null) and their type also works.
  """
  @type column :: [term()] | {type(), [term()] | binary()} | ArrayRef.t()

  @doc """
  Make a column of these values, for `from_columns/2`.

  Errors: `:invalid` (a value is not of that type, or would have to be rounded).

      iex> {:ok, array} = Tmesh.Arrow.from_list([1, nil, 3], :int32)
      iex> {array.length, array.null_count, array.buffers}
      {3, 1, [<<0b101>>, <<1::32-little, 0::32, 3::32-little>>]}
  """
  @spec from_list([term()], type()) :: {:ok, ArrayRef.t()} | {:error, Error.t()}
  def from_list(values, type) when is_list(values) do
    with :ok <- enabled(), do: catching(fn -> Column.encode(values, known(type)) end)
  end

  @doc """
  Make a table in a new, sealed region, from a map of columns (in the order of their names) or a list of `{name,
  column}`. See `t:column/0`.

  Options are those of `Tmesh.ZeroCopy.allocate/3`, such as `label`.

  Errors: `:invalid` (a value, a type, columns of different lengths), and those of `allocate/3`.

      iex> {:ok, table} = Tmesh.Arrow.from_columns(%{"x" => [1.5, nil], "y" => {:uint8, <<1, 2>>}})
      iex> {table.num_rows, table.schema}
      {2, [{"x", :float64, true}, {"y", :uint8, true}]}
      iex> Tmesh.Arrow.to_columns(table)
      {:ok, %{"x" => [1.5, nil], "y" => [1, 2]}}
  """
  @spec from_columns(%{String.t() => column()} | [{String.t(), column()}], [
          ZeroCopy.region_option()
        ]) :: {:ok, TableRef.t()} | {:error, Error.t()}
  def from_columns(columns, opts \\ []) do
    with :ok <- enabled(),
         :ok <- on_host(opts),
         {:ok, {fields, arrays}} <- catching(fn -> columns(columns) end),
         {size, pieces} = Ipc.plan(fields, arrays),
         {:ok, ref} <- ZeroCopy.allocate([size], :uint8, opts),
         :ok <- fill(ref, pieces) do
      import_table(ref)
    end
  end

  @doc """
  Import the table in an Arrow IPC stream. The stream is a ref, open or not, as a struct, a map or JSON, or itself a
  binary. Nothing is copied, so a region must be sealed.

  Errors: `:protocol` (a malformed stream), `:unsupported` (a feature that is not read, or a region that is not
  sealed), and those of `Tmesh.ZeroCopy.open/2`.
  """
  @spec import_table(TensorRef.t() | map() | binary()) ::
          {:ok, TableRef.t()} | {:error, Error.t()}
  def import_table(%TensorRef{} = given) do
    with {:ok, ref} <- ZeroCopy.here(given) do
      case table_of(ref) do
        {:error, _error} = failed when ref != given ->
          :ok = ZeroCopy.release(ref)
          failed

        result ->
          result
      end
    end
  end

  def import_table(map) when is_map(map) do
    with {:ok, ref} <- TensorRef.from_map(map), do: import_table(ref)
  end

  def import_table("{" <> _rest = json) do
    with {:ok, ref} <- TensorRef.from_json(json), do: import_table(ref)
  end

  def import_table(stream) when is_binary(stream), do: from_stream(stream)

  @doc """
  Return the table's Arrow IPC stream, as a binary that points into its region. Use the stream for a file or a
  network. To a process of this machine, give `table.ref` instead.

  Errors: `:closed` (released, or imported from a binary).
  """
  @spec export_ipc(TableRef.t()) :: {:ok, binary()} | {:error, Error.t()}
  def export_ipc(%TableRef{ref: nil}),
    do: {:error, Error.new(:closed, "the table is in no region of its own")}

  def export_ipc(%TableRef{ref: ref}), do: ZeroCopy.to_binary(ref, copy: false)

  @doc """
  Return the values of a column.

  Errors: `:protocol` (its offsets, texts or indices are malformed), `:limit_exceeded` (more elements than its
  memory can hold).

      iex> {:ok, array} = Tmesh.Arrow.from_list([~D[2026-01-02], nil], :date32)
      iex> Tmesh.Arrow.to_list(array)
      {:ok, [~D[2026-01-02], nil]}
  """
  @spec to_list(ArrayRef.t()) :: {:ok, [term()]} | {:error, Error.t()}
  def to_list(%ArrayRef{} = array), do: catching(fn -> values([array]) end)

  @doc """
  Return the values of a table's column, of all batches.

  Errors: as `to_list/1`, and `:not_found`.
  """
  @spec to_list(TableRef.t(), String.t()) :: {:ok, [term()]} | {:error, Error.t()}
  def to_list(%TableRef{} = table, name) do
    with {:ok, arrays} <- column(table, name) do
      catching(fn -> values(arrays) end)
    end
  end

  @doc """
  Return a table's column, an array for each batch.

  Errors: `:not_found`.
  """
  @spec column(TableRef.t(), String.t()) :: {:ok, [ArrayRef.t()]} | {:error, Error.t()}
  def column(%TableRef{} = table, name) do
    case Enum.find_index(table.schema, &(elem(&1, 0) == name)) do
      nil -> {:error, Error.new(:not_found, "the table has no column #{inspect(name)}")}
      index -> {:ok, Enum.map(table.batches, &Enum.at(&1, index))}
    end
  end

  @doc """
  Return all values of a table, as a map of lists. If columns have the same name, the last one wins.

  Errors: as `to_list/1`.
  """
  @spec to_columns(TableRef.t()) :: {:ok, %{String.t() => [term()]}} | {:error, Error.t()}
  def to_columns(%TableRef{} = table) do
    names = for {name, _type, _null} <- table.schema, do: name

    columns =
      if table.batches == [],
        do: Enum.map(names, fn _name -> [] end),
        else: Enum.zip_with(table.batches, & &1)

    catching(fn ->
      :ok = table.batches |> Enum.concat() |> Column.check_nothings()
      names |> Enum.zip_with(columns, &{&1, Column.decode_all(&2)}) |> Map.new()
    end)
  end

  defp values(arrays) do
    :ok = Column.check_nothings(arrays)
    Column.decode_all(arrays)
  end

  @doc """
  Return the table as an `ArrowArrayStream` (Arrow's C Stream Interface), for native code in this VM that takes the
  address of one, such as Explorer's and ADBC's. Nothing is copied.

  Keep the reference until the consumer has moved the stream from that address. From then on the stream itself holds
  the memory. A consumer does not check its input, so every offset, text and index is checked first.

  Errors: `:protocol` (one of these is malformed), `:unsupported` (a name with a zero in it), `:invalid` (nested too
  deep).

      iex> {:ok, table} = Tmesh.Arrow.from_columns(%{"x" => [1, 2]})
      iex> {:ok, {address, _reference}} = Tmesh.Arrow.stream_pointer(table)
      iex> is_integer(address) and address > 0
      true
  """
  @spec stream_pointer(TableRef.t()) ::
          {:ok, {address :: pos_integer(), reference()}} | {:error, Error.t()}
  def stream_pointer(%TableRef{} = table) do
    with :ok <- enabled(),
         {:ok, {schema, batches}} <- catching(fn -> native(table) end),
         {:error, reason} <- Native.arrow_stream(schema, batches) do
      {:error, Error.from_native(reason)}
    end
  end

  defp native(%TableRef{schema: fields, batches: batches}) do
    # A batch is a struct without a name.
    schema = {"+s", "", 0, Enum.map(fields, &native_field/1), nil}

    {schema,
     for columns <- batches do
       length = if columns == [], do: 0, else: hd(columns).length
       :ok = Ipc.check_batch(length, columns)
       Enum.each(columns, &Column.verify/1)
       {length, 0, [""], Enum.map(columns, &native_array/1), nil}
     end}
  end

  @nullable 2

  defp native_field({name, type, nullable}) do
    format = Type.format(type)

    if String.contains?(name <> format, <<0>>),
      do: throw({:unsupported, "a C stream has no names with zeros in them"})

    words =
      with {:dictionary, _index, words, _id} <- type,
           do: native_field({"", words, true}),
           else: (_plain -> nil)

    children = type |> Type.children() |> Enum.map(&native_field/1)
    {format, name, if(nullable, do: @nullable, else: 0), children, words}
  end

  defp native_array(%ArrayRef{} = array) do
    {array.length, array.null_count, native_buffers(array),
     Enum.map(array.children, &native_array/1), array.dictionary && native_array(array.dictionary)}
  end

  # Views have one more buffer: the lengths of the buffers that they point into.
  defp native_buffers(%ArrayRef{type: type, buffers: [_bitmap, _views | blocks] = buffers})
       when type in [:utf8_view, :binary_view] do
    buffers ++ [for(block <- blocks, into: <<>>, do: <<byte_size(block)::64-native>>)]
  end

  defp native_buffers(array), do: array.buffers

  @doc "Release the table's region, as `Tmesh.ZeroCopy.release/1` does. Its columns stay valid."
  @spec release(TableRef.t()) :: :ok | {:error, Error.t()}
  def release(%TableRef{ref: nil}), do: :ok
  def release(%TableRef{ref: ref}), do: ZeroCopy.release(ref)

  defp table_of(ref) do
    with {:ok, stream} <- ZeroCopy.to_binary(ref, copy: false),
         {:ok, table} <- from_stream(stream) do
      {:ok, %{table | ref: ref}}
    end
  end

  defp from_stream(stream) do
    with :ok <- enabled() do
      catching(fn ->
        {fields, batches} = Ipc.decode(stream)

        %TableRef{
          schema: fields,
          num_rows: batches |> Enum.map(&elem(&1, 0)) |> Enum.sum(),
          batches: Enum.map(batches, &elem(&1, 1))
        }
      end)
    end
  end

  defp enabled do
    with {:ok, enabled} <- Config.get(:arrow_enabled) do
      if enabled,
        do: :ok,
        else: {:error, Error.new(:unsupported, "Arrow is switched off: arrow_enabled is false")}
    end
  end

  defp on_host(opts) do
    if Keyword.keyword?(opts) and match?({:cuda, _n}, opts[:device]),
      do: {:error, Error.new(:unsupported, "tables are made in host memory")},
      else: :ok
  end

  defp fill(ref, pieces) do
    with :ok <- write(ref, pieces), :ok <- ZeroCopy.seal(ref) do
      :ok
    else
      {:error, _error} = failed ->
        :ok = ZeroCopy.release(ref)
        failed
    end
  end

  defp write(ref, pieces) do
    Enum.reduce_while(pieces, :ok, fn {at, piece}, :ok ->
      case ZeroCopy.write(ref, at, piece) do
        :ok -> {:cont, :ok}
        {:error, _error} = failed -> {:halt, failed}
      end
    end)
  end

  defp columns(columns) when is_map(columns) and not is_struct(columns),
    do: columns |> Enum.sort() |> columns()

  defp columns(columns) when is_list(columns) do
    {fields, arrays} =
      columns
      |> Column.proper()
      |> Enum.map(fn
        {name, column} when is_binary(name) ->
          unless String.valid?(name), do: throw({:invalid, "a name that is no text"})
          array = named(name, fn -> array(column) end)
          {{name, array.type, true}, array}

        {name, _column} ->
          throw({:invalid, "a column's name is a string, such as \"age\", not #{inspect(name)}"})

        other ->
          throw({:invalid, "#{inspect(other, limit: 3)} is no {name, column}"})
      end)
      |> Enum.unzip()

    if arrays |> Enum.uniq_by(& &1.length) |> length() > 1,
      do: throw({:invalid, "the columns differ in length"})

    {fields, arrays}
  end

  defp columns(other), do: throw({:invalid, "#{inspect(other, limit: 3)} is no map of columns"})

  # Name the column that is wrong.
  defp named(name, fun) do
    fun.()
  catch
    {:invalid, why} -> throw({:invalid, "column #{inspect(name)}: #{why}"})
  end

  defp array(%ArrayRef{type: type} = array) do
    _type = known(type)
    array
  end

  defp array({type, values}) when is_list(values), do: Column.encode(values, known(type))
  defp array({type, binary}) when is_binary(binary), do: Column.from_binary(binary, known(type))

  defp array(values) when is_list(values),
    do: Column.encode(values, values |> Column.proper() |> Column.infer())

  defp array(other), do: throw({:invalid, "#{inspect(other, limit: 3)} is no column"})

  defp known(type) do
    if Type.writable?(type),
      do: type,
      else: throw({:invalid, "#{inspect(type)} is no type to make"})
  end

  defp catching(fun) do
    {:ok, fun.()}
  catch
    {:malformed, why} ->
      {:error, Error.new(:protocol, "no sound Arrow IPC stream: #{why}")}

    {type, why} when type in [:invalid, :unsupported, :limit_exceeded] ->
      {:error, Error.new(type, why)}
  end
end
