# SPDX-License-Identifier: MIT
defmodule Tmesh.ArrowTest do
  use Tmesh.Case
  alias Tmesh.Arrow
  alias Tmesh.Arrow.{ArrayRef, Flatbuffer, TableRef}

  doctest Tmesh.Arrow

  @now ~U[2026-01-02 03:04:05.678901Z]
  @columns [
    {:null, [nil, nil, nil]},
    {:bool, [true, nil, false]},
    {:int8, [-128, nil, 127]},
    {:int16, [-32768, nil, 32767]},
    {:int32, [-2_147_483_648, nil, 2_147_483_647]},
    {:int64, [-9_223_372_036_854_775_808, nil, 9_223_372_036_854_775_807]},
    {:uint8, [0, nil, 255]},
    {:uint16, [0, nil, 65535]},
    {:uint32, [0, nil, 4_294_967_295]},
    {:uint64, [0, nil, 18_446_744_073_709_551_615]},
    {:float16, [1.5, :nan, :neg_infinity]},
    {:float32, [1.5, nil, :infinity]},
    {:float64, [0.1, :nan, -2.5]},
    {:utf8, ["", nil, "grüße"]},
    {:large_utf8, ["", nil, "grüße"]},
    {:binary, ["", nil, <<0, 255>>]},
    {:large_binary, ["", nil, <<0, 255>>]},
    {{:fixed_size_binary, 2}, ["ab", nil, <<0, 255>>]},
    {:date32, [~D[2026-01-02], nil, ~D[1900-02-28]]},
    {:date64, [~D[2026-01-02], nil, ~D[1900-02-28]]},
    {{:time32, :second}, [~T[03:04:05], nil, ~T[23:59:59]]},
    {{:time32, :millisecond}, [~T[03:04:05.678], nil, ~T[00:00:00.000]]},
    {{:time64, :microsecond}, [~T[03:04:05.678901], nil, ~T[00:00:00.000000]]},
    {{:timestamp, :microsecond, "UTC"}, [@now, nil, ~U[1900-01-01 00:00:00.000001Z]]},
    {{:timestamp, :second, nil}, [~N[2026-01-02 03:04:05], nil, ~N[1900-01-01 00:00:00]]},
    {{:timestamp, :nanosecond, nil}, [1, nil, -1]},
    {{:duration, :millisecond}, [5, nil, -5]},
    {{:decimal, 128, 10, 2}, [125, nil, -350]},
    {{:decimal, 256, 60, 2}, [125, nil, -350]},
    {{:list, :int64}, [[1, nil], nil, []]},
    {{:large_list, :utf8}, [["a"], nil, []]},
    {{:fixed_size_list, :int16, 2}, [[1, 2], nil, [3, nil]]},
    {{:list, {:list, :utf8}}, [[["a"], nil], nil, [[]]]},
    {{:struct, [{"x", :int64}, {"y", :utf8}]},
     [%{"x" => 1, "y" => nil}, nil, %{"x" => nil, "y" => "b"}]}
  ]

  @python System.get_env("TMESH_TEST_ARROW_PYTHON", "python3")
  @pyarrow match?({_output, 0}, System.cmd("sh", ["-c", "#{@python} -c 'import tmesh.arrow' 2>&1"]))
  if @pyarrow do
    @tag_python [python: true]
  else
    @tag_python [skip: "no Python with tmesh and pyarrow: make python-arrow"]
  end

  defp python, do: Peer.open(System.find_executable(@python), [support("arrow_peer.py")])
  defp support(name), do: Path.expand("support/#{name}", __DIR__)
  defp term(text), do: text |> Code.eval_string() |> elem(0)

  describe "here" do
    test "every type comes back, as a whole, in part and empty" do
      for {type, values} <- @columns, values <- [values, Enum.take(values, 1), []] do
        assert {:ok, table} = Arrow.from_columns([{"c", {type, values}}])
        assert table.num_rows == length(values)
        assert Arrow.to_list(table, "c") == {:ok, values}, inspect(type)
        :ok = Arrow.release(table)
      end
    end

    test "types are inferred" do
      for {values, type} <- [
            {[1, nil], :int64},
            {[1, 2.5], :float64},
            {[:nan], :float64},
            {[true], :bool},
            {["a"], :utf8},
            {["a", <<255>>], :binary},
            {[nil], :null},
            {[], :null},
            {[~D[2026-01-02]], :date32},
            {[@now], {:timestamp, :microsecond, "UTC"}},
            {[~N[2026-01-02 03:04:05]], {:timestamp, :microsecond, nil}},
            {[~T[03:04:05]], {:time64, :microsecond}},
            {[[1], nil, [2.5]], {:list, :float64}},
            {[%{"a" => 1}, %{"b" => "x"}], {:struct, [{"a", :int64}, {"b", :utf8}]}}
          ] do
        {:ok, table} = Arrow.from_columns(%{"c" => values})
        assert [{"c", ^type, true}] = table.schema
      end
    end

    test "numbers in memory are taken as they are" do
      data = for x <- 1..1000, into: <<>>, do: <<x * 0.5::float-64-little>>
      copied = stat(:bytes_copied)
      {:ok, table} = Arrow.from_columns(%{"x" => {:float64, data}})
      assert stat(:bytes_copied) - copied < byte_size(data) + 2000
      assert {:ok, [%ArrayRef{buffers: ["", ^data], null_count: 0}]} = Arrow.column(table, "x")
    end

    test "columns keep the region after its release" do
      {:ok, table} = Arrow.from_columns(%{"x" => Enum.to_list(1..1000)}, label: "kept")
      assert %{sealed: true, label: "kept"} = ZeroCopy.info!(table.ref)
      copied = stat(:bytes_copied)
      {:ok, [array]} = Arrow.column(table, "x")
      assert [_bitmap, data] = array.buffers
      # It is no binary of the VM's own, but a part of what lies in the region.
      assert :binary.referenced_byte_size(data) < byte_size(data)
      :ok = Arrow.release(table)
      assert Arrow.to_list(array) == {:ok, Enum.to_list(1..1000)}
      assert stat(:bytes_copied) == copied
      assert {:error, %Error{type: :closed}} = Arrow.export_ipc(table)
    end

    test "a stream goes out and in as a binary" do
      {:ok, table} = Arrow.from_columns(%{"x" => [1, 2]})
      {:ok, stream} = Arrow.export_ipc(table)
      assert {:ok, %TableRef{ref: nil} = same} = Arrow.import_table(:binary.copy(stream))
      assert Arrow.to_columns(same) == {:ok, %{"x" => [1, 2]}}
      assert {:error, %Error{type: :closed}} = Arrow.export_ipc(same)
      assert :ok = Arrow.release(same)
    end

    test "a ref opens by itself, from a struct, a map or JSON" do
      {:ok, table} = Arrow.from_columns(%{"x" => [1]})
      {:ok, json} = TensorRef.to_json(table.ref)

      for ref <- [json, TensorRef.to_map(table.ref), elem(TensorRef.from_json(json), 1)] do
        assert {:ok, same} = Arrow.import_table(ref)
        assert Arrow.to_list(same, "x") == {:ok, [1]}
        :ok = Arrow.release(same)
      end

      :ok = Arrow.release(table)
    end
  end

  describe "stream_pointer/1" do
    test "native code reads the table in place and lets it go, in any order and thread" do
      live = stat(:regions_live)

      for orphans <- [false, true], thread <- [false, true] do
        {:ok, table} =
          Arrow.from_columns([
            {"n", Enum.to_list(1..1000)},
            {"l", {{:list, :int64}, [[5, nil]] ++ List.duplicate(nil, 999)}}
          ])

        copied = stat(:bytes_copied)
        {:ok, {address, reference}} = Arrow.stream_pointer(table)
        :ok = Arrow.release(table)

        assert Tmesh.ArrowConsumer.consume(address, orphans, thread) ==
                 {"=+s(n=l l=+l(item=l ) ) ", 500_505}

        assert stat(:bytes_copied) == copied
        assert is_reference(reference)
      end

      eventually(fn ->
        :erlang.garbage_collect() && Tmesh.Native.sweep() && stat(:regions_live) <= live
      end)
    end

    test "every type has its format" do
      {:ok, table} =
        Arrow.from_columns(for {{t, v}, i} <- Enum.with_index(@columns), do: {"c#{i}", {t, v}})

      {:ok, {address, _reference}} = Arrow.stream_pointer(table)
      {text, _sum} = Tmesh.ArrowConsumer.consume(address, false, false)

      formats =
        for word <- String.split(text), [_name, format] <- [String.split(word, "=")], do: format

      for format <-
            ~w{n b c s i l C S I L e f g u U z Z w:2 tdD tdm tts ttm ttu tsu:UTC tss: tsn: tDm} ++
              ["d:10,2", "d:60,2,256", "+l(item", "+L(item", "+w:2(item", "+s(x"] do
        assert Enum.any?(formats, &(&1 == format)) or text =~ format, format
      end

      :ok = Arrow.release(table)
    end

    test "a stream that nobody takes is let go" do
      live = stat(:regions_live)

      in_process(fn ->
        # More than the emulator would copy.
        {:ok, table} = Arrow.from_columns(%{"w" => List.duplicate("word", 100)})
        [[words]] = table.batches
        type = {:dictionary, :int8, :utf8, 0}

        indices = %ArrayRef{
          type: type,
          length: 1,
          null_count: 0,
          buffers: ["", <<0>>],
          children: [],
          dictionary: words
        }

        named = %{table | schema: [{"d", type, true}], batches: [[indices]]}

        for table <- [table, named],
            do: assert({:ok, {_address, _reference}} = Arrow.stream_pointer(table))

        :ok = Arrow.release(table)
      end)

      eventually(fn -> Tmesh.Native.sweep() && stat(:regions_live) <= live end)
    end

    test "what native code could not trust is refused" do
      {:ok, table} = Arrow.from_columns(%{"x" => ["abc", "def"]})
      [[array]] = table.batches
      [bitmap, _offsets, data] = array.buffers

      for offsets <- [
            <<0::32-little, 3::32-little, 99::32-little>>,
            <<0::32, 3::32-little, 1::32-little>>,
            <<0::32>>
          ] do
        lie = %{table | batches: [[%{array | buffers: [bitmap, offsets, data]}]]}
        assert {:error, %Error{type: :protocol}} = Arrow.stream_pointer(lie)
      end

      for lie <- [%{array | length: 1000}, %{array | buffers: [bitmap, "", data]}] do
        assert {:error, %Error{type: :protocol}} = Arrow.stream_pointer(%{table | batches: [[lie]]})
      end

      # Numbers have no offsets: only the length of their buffer speaks for them.
      {:ok, numbers} = Arrow.from_columns(%{"n" => [1, 2, 3]})
      [[array]] = numbers.batches

      for lie <-
            [%{array | length: 4}, %{array | buffers: ["", ""]}, %{array | buffers: [<<>>, <<1>>]}] ++
              [%{array | buffers: [<<>>, <<0::128>>]}] do
        assert {:error, %Error{type: :protocol}} =
                 Arrow.stream_pointer(%{numbers | batches: [[lie]]})
      end

      # Nor do bitmaps, nor what lies below.
      {:ok, bytes} = Arrow.from_list(Enum.to_list(1..9), :int8)
      {:ok, struct} = Arrow.from_list([%{"a" => 1}, %{"a" => 2}], {:struct, [{"a", :int8}]})
      {:ok, pairs} = Arrow.from_list([[1, 2], [3, 4]], {:fixed_size_list, :int8, 2})
      short = fn array -> %{array | children: Enum.map(array.children, &%{&1 | length: 1})} end
      values = List.last(bytes.buffers)
      {:ok, list} = Arrow.from_list([["abc"]], {:list, :utf8})
      {:ok, text} = Arrow.from_list([%{"a" => "abc"}], {:struct, [{"a", :utf8}]})
      beyond = fn child -> %{child | buffers: ["", <<0::32, 99::32-little>>, "abc"]} end
      below = fn array -> %{array | children: Enum.map(array.children, beyond)} end

      for lie <- [
            below.(list),
            below.(text),
            %{bytes | null_count: 1},
            %{bytes | null_count: 1, buffers: [<<255>>, values]},
            %{bytes | buffers: [<<255>>, values]},
            short.(struct),
            short.(pairs)
          ] do
        schema = [{"x", lie.type, true}]
        lie = %TableRef{schema: schema, num_rows: lie.length, batches: [[lie]]}
        assert {:error, %Error{type: :protocol}} = Arrow.stream_pointer(lie)
      end

      # That an index is a null's says nothing where nothing is null.
      type = {:dictionary, :int8, :utf8, 0}
      {:ok, words} = Arrow.from_list(["a"], :utf8)

      lie = %ArrayRef{
        type: type,
        length: 1,
        null_count: 0,
        buffers: [<<0>>, <<100>>],
        children: [],
        dictionary: words
      }

      table = %TableRef{schema: [{"d", type, true}], num_rows: 1, batches: [[lie]]}
      assert {:error, %Error{type: :protocol}} = Arrow.stream_pointer(table)
      negative = %{table | batches: [[%{lie | buffers: ["", <<-1>>]}]]}
      assert {:error, %Error{type: :protocol}} = Arrow.stream_pointer(negative)
      null = %{table | batches: [[%{lie | null_count: 1}]]}
      assert {:ok, {_address, _reference}} = Arrow.stream_pointer(null)

      for columns <- [%{"a\0b" => [1]}, %{"a" => {{:timestamp, :second, "UTC\0"}, [1]}}] do
        {:ok, table} = Arrow.from_columns(columns)
        assert {:error, %Error{type: :unsupported}} = Arrow.stream_pointer(table)
      end

      deep = Enum.reduce(1..200, :int8, fn _, type -> {:list, type} end)
      {:ok, array} = Arrow.from_list([nil], deep)
      table = %TableRef{schema: [{"d", deep, true}], num_rows: 1, batches: [[array]]}

      for batches <- [table.batches, []] do
        assert {:error, %Error{type: :invalid, message: message}} =
                 Arrow.stream_pointer(%{table | batches: batches})

        assert message =~ "deep"
      end
    end
  end

  describe "arrow_enabled: false" do
    test "refuses, and leaves what there is" do
      {:ok, table} = Arrow.from_columns(%{"x" => [1]})
      {:ok, stream} = Arrow.export_ipc(table)
      Application.put_env(:tmesh, :zero_copy, arrow_enabled: false)
      on_exit(fn -> Application.delete_env(:tmesh, :zero_copy) end)

      for result <- [
            Arrow.from_list([1], :int8),
            Arrow.from_columns(%{"x" => [1]}),
            Arrow.import_table(table.ref),
            Arrow.import_table(stream)
          ] do
        assert {:error, %Error{type: :unsupported, message: message}} = result
        assert message =~ "arrow_enabled"
      end

      assert Arrow.to_list(table, "x") == {:ok, [1]}
    end
  end

  describe "bad input" do
    test "values that are not of their type" do
      for {type, bad} <- [
            {:int8, 128},
            {:uint8, -1},
            {:int64, 1.5},
            {:float64, "x"},
            {:float32, 1.0e300},
            {:bool, 1},
            {:utf8, <<255>>},
            {:utf8, :a},
            {:binary, 5},
            {:date32, ~T[00:00:00]},
            {{:time32, :second}, ~T[00:00:00.5]},
            {{:timestamp, :second, nil}, @now},
            {{:timestamp, :second, "UTC"}, @now},
            {{:decimal, 128, 2, 0}, 100},
            {{:fixed_size_binary, 2}, "abc"},
            {{:list, :int64}, 1},
            {{:list, :int64}, ["a"]},
            {{:list, :int64}, [1 | 2]},
            {{:fixed_size_list, :int64, 1}, [1 | 2]},
            {{:fixed_size_list, :int64, 2}, [1]},
            {{:struct, [{"x", :int64}]}, %{"x" => "y"}},
            {:null, 1}
          ] do
        assert {:error, %Error{type: :invalid, message: message}} = Arrow.from_list([bad], type)
        assert byte_size(message) > 10
      end
    end

    test "types, columns and options that are none" do
      live = stat(:regions_live)

      for type <-
            [:int7, {:list, :x}, {:struct, [:x]}, {:fixed_size_list, :int8, 0}, nil, "int8"] ++
              [{:decimal, 128, 99, 0}, {:timestamp, :day, nil}, {:fixed_size_binary, -1}] ++
              [:utf8_view, {:dictionary, :int8, :utf8, 0}, {:struct, [{"a", :int8} | 5]}] do
        assert {:error, %Error{type: :invalid}} = Arrow.from_list([], type)
      end

      for columns <- [
            %{"a" => [1], "b" => [1, 2]},
            %{a: [1]},
            %{"a" => 5},
            %{"a" => [1, "x"]},
            %{"a" => [self()]},
            %{"a" => [%{x: 1}]},
            %{"a" => {:utf8, "abc"}},
            %{"a" => {:int64, "abc"}},
            %{<<255>> => [1]},
            %{"a" => [1 | 2]},
            %{"a" => [[1 | 2]]},
            %{"a" => {:int64, [1 | 2]}},
            [{"a", [1]} | 5],
            [:a],
            5
          ] do
        assert {:error, %Error{type: :invalid}} = Arrow.from_columns(columns), inspect(columns)
      end

      assert {:error, %Error{message: "column \"b\": has values of :int64 and :utf8"}} =
               Arrow.from_columns(%{"a" => [1], "b" => [1, "x"]})

      assert {:error, %Error{type: :invalid}} = Arrow.from_columns(%{"a" => [1]}, colour: 1)
      assert {:error, %Error{type: :invalid}} = Arrow.from_list([1 | 2], :int64)

      assert {:error, %Error{type: :unsupported}} =
               Arrow.from_columns(%{"a" => [1]}, device: {:cuda, 0})

      assert {:error, %Error{type: :not_found}} =
               Arrow.to_list(elem(Arrow.from_columns(%{"a" => [1]}), 1), "b")

      eventually(fn -> :erlang.garbage_collect() && stat(:regions_live) <= live + 1 end)
    end

    test "what holds no stream" do
      live = stat(:regions_live)

      for bad <- ["", "x", "abcdefgh", <<0xFFFFFFFF::32, 0x7FFFFFFF::32-little, 0::800>>] do
        assert {:error, %Error{type: :protocol}} = Arrow.import_table(bad)
      end

      ref = ZeroCopy.from_binary!("no stream at all", [16], :uint8)
      assert {:error, %Error{type: :protocol}} = Arrow.import_table(TensorRef.to_map(ref))
      open = ZeroCopy.allocate!([16], :uint8)
      assert {:error, %Error{type: :unsupported}} = Arrow.import_table(open)
      assert {:error, %Error{type: :protocol}} = Arrow.import_table(%{"v" => 2})
      assert {:error, %Error{type: :protocol}} = Arrow.import_table("{}")
      Enum.each([ref, open], &ZeroCopy.release!/1)
      eventually(fn -> stat(:regions_live) <= live end)
    end

    test "streams that are cut short" do
      stream = stream()

      for cut <- 1..(byte_size(stream) - 1), rem(cut, 7) == 0 or cut < 300 do
        assert {:error, %Error{type: :protocol}} =
                 stream |> binary_part(0, cut) |> Arrow.import_table(),
               "#{cut} bytes"
      end
    end

    test "streams that lie" do
      stream = stream()
      :rand.seed(:exsss, {4, 5, 6})

      refused =
        for _ <- 1..1500, reduce: 0 do
          refused ->
            lie =
              Enum.reduce(1..Enum.random([1, 1, 4]), stream, fn _, stream ->
                at = :rand.uniform(byte_size(stream)) - 1
                <<head::binary-size(at), _byte, tail::binary>> = stream
                byte = Enum.random([0, 1, 0x7F, 0x80, 0xFF, :rand.uniform(256) - 1])
                <<head::binary, byte, tail::binary>>
              end)

            with {:ok, table} <- Arrow.import_table(lie),
                 {:ok, _columns} <- Arrow.to_columns(table) do
              refused
            else
              {:error, %Error{type: type}}
              when type in [:protocol, :unsupported, :limit_exceeded] ->
                refused + 1
            end
        end

      assert refused > 200
    end

    test "a column that is longer than its buffers is refused at once" do
      fields = [{:table, %{0 => {:string, "n"}, 2 => {:i8, 2}, 3 => {:table, %{0 => {:i32, 64}}}}}]

      for {rows, nodes, buffers} <- [
            {3, [{3, 0}], [{0, 0}, {0, 0}]},
            {3, [{2, 0}], [{0, 0}, {0, 0}]},
            {0, [{0, 1}], [{0, 0}, {0, 0}]},
            {0, [{0, -1}], [{0, 0}, {0, 0}]},
            {0, [{-1, 0}], [{0, 0}, {0, 0}]},
            {0, [{0, 0}], [{0, 0}, {0, 8}]},
            {0, [{0, 0}], [{0, 0}, {-8, 8}]},
            {0, [{0, 0}], [{0, 0}]},
            {0, [], []},
            {0, [{0, 0}, {0, 0}], [{0, 0}, {0, 0}]}
          ] do
        batch = {:table, %{0 => {:i64, rows}, 1 => {:pairs, nodes}, 2 => {:pairs, buffers}}}

        assert {:error, %Error{type: :protocol}} =
                 batch |> stream_of(fields) |> Arrow.import_table()
      end

      batch = {:table, %{1 => {:pairs, [{0, 0}]}, 2 => {:pairs, [{0, 0}, {0, 0}]}}}
      assert {:ok, %TableRef{num_rows: 0}} = batch |> stream_of(fields) |> Arrow.import_table()
    end

    test "metadata that goes in circles, or deep, or promises much" do
      field = fn children ->
        {:table,
         %{0 => {:string, "f"}, 2 => {:i8, 13}, 3 => {:table, %{}}, 5 => {:tables, children}}}
      end

      deep = Enum.reduce(1..200, field.([]), fn _, inner -> field.([inner]) end)
      assert {:error, %Error{message: message}} = Arrow.import_table(schema_message([deep]))
      assert message =~ "deep"

      wide = field.(List.duplicate(field.([]), 70_000))
      assert {:error, %Error{message: message}} = Arrow.import_table(schema_message([wide]))
      assert message =~ "too many"

      huge =
        stream_of(
          {:table, %{0 => {:i64, 1_000_000_000_000}, 1 => {:pairs, [{1_000_000_000_000, 0}]}}},
          [{:table, %{0 => {:string, "n"}, 2 => {:i8, 1}, 3 => {:table, %{}}}}]
        )

      assert {:ok, table} = Arrow.import_table(huge)
      assert {:error, %Error{type: :limit_exceeded}} = Arrow.to_columns(table)
    end

    test "many columns of nothing are as much as one" do
      null = {:table, %{0 => {:string, "n"}, 2 => {:i8, 1}, 3 => {:table, %{}}}}
      n = 9_000_000
      batch = fn nodes -> {:table, %{0 => {:i64, n}, 1 => {:pairs, nodes}}} end

      {:ok, table} = Arrow.import_table(stream_of(batch.([{n, 0}, {n, 0}]), [null, null]))
      assert {:error, %Error{type: :limit_exceeded}} = Arrow.to_columns(table)

      struct =
        {:table,
         %{
           0 => {:string, "s"},
           2 => {:i8, 13},
           3 => {:table, %{}},
           5 => {:tables, [null, null]}
         }}

      {:table, members} = batch.([{n, 0}, {n, 0}, {n, 0}])
      batch = {:table, Map.put(members, 2, {:pairs, [{0, 0}]})}
      {:ok, table} = Arrow.import_table(stream_of(batch, [struct]))
      assert {:error, %Error{type: :limit_exceeded}} = Arrow.to_list(table, "s")
    end

    test "buffers that are one another" do
      int64 = {:table, %{0 => {:string, "n"}, 2 => {:i8, 2}, 3 => {:table, int(64)}}}

      table = fn places ->
        buffers = Enum.flat_map(places, &[{0, 0}, {&1, 8}])
        nodes = for _ <- places, do: {1, 0}
        batch = {:table, %{0 => {:i64, 1}, 1 => {:pairs, nodes}, 2 => {:pairs, buffers}}}

        schema_message(for _ <- places, do: int64) <>
          message(3, batch, 16) <> <<1::64-little, 2::64-little, 0xFFFFFFFF::32, 0::32>>
      end

      assert {:ok, good} = Arrow.import_table(table.([8, 0]))
      assert Arrow.to_list(good, "n") == {:ok, [2]}
      # Each within the body, but together they are more.
      assert {:error, %Error{type: :protocol}} = Arrow.import_table(table.([0, 0, 8]))
    end

    test "numbers below nothing, and what is not read here" do
      empty = %{0 => {:i64, 0}, 1 => {:pairs, [{0, 0}]}, 2 => {:pairs, [{0, 0}, {0, 0}, {0, 0}]}}
      encoding = {:table, %{0 => {:i64, 7}}}
      type = %{0 => {:string, "n"}, 3 => {:table, %{}}}
      text = {:table, Map.put(type, 2, {:i8, 5})}
      view = {:table, Map.put(type, 2, {:i8, 24})}
      word = {:table, Map.merge(type, %{2 => {:i8, 5}, 4 => encoding})}

      words = fn more ->
        message(2, {:table, Map.merge(%{0 => {:i64, 7}, 1 => {:table, empty}}, more)})
      end

      views = fn count ->
        {:table,
         %{empty | 2 => {:pairs, List.duplicate({0, 0}, 2 + count)}}
         |> Map.put(4, {:longs, [count]})}
      end

      for sound <- [
            stream_of({:table, %{}}, []),
            stream_of({:table, empty}, [text]),
            stream_of(views.(1), [view]),
            schema_message([word]) <> words.(%{}) <> the_end()
          ],
          do: assert({:ok, %TableRef{num_rows: 0}} = Arrow.import_table(sound))

      for {type, lie} <- [
            protocol: stream_of({:table, %{0 => {:i64, -1}}}, []),
            protocol: schema_message([]) <> message(3, {:table, %{}}, -8) <> the_end(),
            protocol: stream_of(views.(-1), [view]),
            unsupported: stream_of({:table, Map.put(empty, 3, {:table, %{}})}, [text]),
            unsupported: schema_message([word]) <> words.(%{2 => {:bool, true}}) <> the_end(),
            unsupported: message(1, {:table, %{1 => {:tables, []}}}, 0, 2) <> the_end()
          ],
          do: assert({:error, %Error{type: ^type}} = Arrow.import_table(lie))
    end

    test "a dictionary with words of two types" do
      words = fn tag, members ->
        encoding = {:table, %{0 => {:i64, 7}, 1 => {:table, int(8)}}}

        {:table, %{0 => {:string, "d"}, 2 => {:i8, tag}, 3 => {:table, members}, 4 => encoding}}
      end

      texts = words.(5, %{})
      assert {:ok, _table} = Arrow.import_table(schema_message([texts, texts]) <> the_end())
      liars = schema_message([texts, words.(2, int(8))]) <> the_end()
      assert {:error, %Error{type: :protocol, message: message}} = Arrow.import_table(liars)
      assert message =~ "dictionary"
    end

    test "a long name that many fields share" do
      field = fn name -> {:table, %{0 => {:string, name}, 2 => {:i8, 1}, 3 => {:table, %{}}}} end
      count = 20_001
      fields = List.duplicate(field.("n"), count - 1) ++ [field.(:binary.copy("x", 65_536))]
      metadata = schema_message(fields)

      # All places in the vector lead to the last field now.
      {at, 4} = :binary.match(metadata, <<count::32-little>>)
      bytes = 4 * count
      <<head::binary-size(at), _count::32, places::binary-size(bytes), tail::binary>> = metadata
      <<last::32-little>> = binary_part(places, bytes - 4, 4)
      shared = for i <- 1..count, into: <<>>, do: <<last + 4 * (count - i)::32-little>>
      liar = <<head::binary, count::32-little, shared::binary, tail::binary>> <> the_end()

      assert {:error, %Error{type: :protocol, message: message}} = Arrow.import_table(liar)
      assert message =~ "names"
      assert {:ok, _table} = Arrow.import_table(metadata <> the_end())
    end
  end

  describe "reading" do
    test "takes a dictionary's words once for all batches" do
      {:ok, words} = Arrow.from_list(Enum.map(1..20_000, &"word #{&1}"), :utf8)
      type = {:dictionary, :int16, :utf8, 0}

      part = %ArrayRef{
        type: type,
        length: 1,
        null_count: 0,
        buffers: ["", <<19_999::16-little>>],
        children: [],
        dictionary: words
      }

      table = %TableRef{
        schema: [{"d", type, true}],
        num_rows: 100,
        batches: List.duplicate([part], 100)
      }

      {{:ok, list}, work} = work(fn -> Arrow.to_list(table, "d") end)
      assert list == List.duplicate("word 20000", 100)
      assert work < 3_000_000
    end

    test "a wide table takes as long as its columns together" do
      columns = for i <- 1..5000, do: {"#{i}", {:int8, <<i::8>>}}
      {:ok, table} = Arrow.from_columns(columns)
      {{:ok, map}, work} = work(fn -> Arrow.to_columns(table) end)
      assert map_size(map) == 5000 and map["300"] == [300 - 256]
      assert work < 3_000_000
      :ok = Arrow.release(table)
    end

    test "looks once through what many views of text share" do
      text = :binary.copy("grüße, ", 10_000)
      size = byte_size(text)

      views = fn places ->
        %ArrayRef{
          type: :utf8_view,
          length: length(places),
          null_count: 0,
          buffers: [
            "",
            for({at, bytes} <- places, into: <<>>, do: <<bytes::32-little, 0::64, at::32-little>>),
            text
          ],
          children: []
        }
      end

      # Nine bytes each time, of which the third and the fourth are one character.
      places = for i <- 0..999, do: {9 * i, size - 9 * i}
      {{:ok, list}, work} = work(fn -> Arrow.to_list(views.(places)) end)
      assert List.last(list) == binary_part(text, 9 * 999, size - 9 * 999)
      assert work < 1_000_000

      for cut <- [{3, 20}, {0, 3 + 18}, {0, size + 1}] do
        assert {:error, %Error{type: :protocol}} = Arrow.to_list(views.([cut]))
      end

      # In a buffer that is not all text each view is looked through, while they are few.
      %ArrayRef{buffers: [bitmap, headers, text]} = array = views.(places)
      spoilt = fn array -> %{array | buffers: [bitmap, headers, text <> <<255>>]} end
      assert {:error, %Error{type: :limit_exceeded}} = Arrow.to_list(spoilt.(array))
      few = views.(Enum.take(places, 5))
      few = %{few | buffers: List.replace_at(few.buffers, 2, text <> <<255>>)}
      assert {:ok, [^text | _rest]} = Arrow.to_list(few)
    end

    test "where a null is may be anything" do
      cut = <<"a", 255, "b">>
      view = fn size, text, block, at -> <<size::32-little, text::binary-4, block::32, at::32>> end

      for {type, buffers} <- [
            {:utf8, [<<0::32, 1::32-little, 2::32-little, 3::32-little>>, cut]},
            {:large_utf8, [<<0::64, 1::64-little, 2::64-little, 3::64-little>>, cut]},
            {:utf8_view,
             [view.(1, "a\0\0\0", 0, 0), view.(20, "xxxx", -1, -1), view.(1, "b\0\0\0", 0, 0)]}
          ] do
        buffers = if type == :utf8_view, do: [IO.iodata_to_binary(buffers), <<255>>], else: buffers

        array = %ArrayRef{
          type: type,
          length: 3,
          null_count: 1,
          buffers: [<<5>> | buffers],
          children: []
        }

        table = %TableRef{schema: [{"t", type, true}], num_rows: 3, batches: [[array]]}
        assert Arrow.to_list(table, "t") == {:ok, ["a", nil, "b"]}
        assert {:ok, {_address, _reference}} = Arrow.stream_pointer(table)

        for lie <- [%{array | null_count: 0}, %{array | buffers: [<<7>> | buffers]}] do
          assert {:error, %Error{type: :protocol}} = Arrow.to_list(%{table | batches: [[lie]]}, "t")
        end
      end
    end

    # What a function gives, and how much it did.
    defp work(fun) do
      {:reductions, before} = Process.info(self(), :reductions)
      result = fun.()
      {:reductions, done} = Process.info(self(), :reductions)
      {result, done - before}
    end
  end

  describe "with pyarrow" do
    @describetag @tag_python

    test "Python reads every type, in place" do
      peer = python()

      for {type, values} <- @columns, values <- [values, []] do
        {:ok, table} = Arrow.from_columns([{"c", {type, values}}])
        {:ok, json} = TensorRef.to_json(table.ref)
        answer = Peer.call(peer, "get " <> json)
        assert term(answer) == %{"c" => values}, "#{inspect(type)}: #{answer}"
        :ok = Arrow.release(table)
      end
    end

    # As many as fill bytes of bitmaps, words and lines, and one more or less.
    test "Python reads any number of values of every type" do
      peer = python()
      :rand.seed(:exsss, {1, 2, 3})

      for {type, some} <- @columns, count <- [7, 8, 9, 63, 64, 65, 300] do
        values = for _ <- 1..count, do: Enum.random(some)
        {:ok, table} = Arrow.from_columns([{"c", {type, values}}])
        {:ok, json} = TensorRef.to_json(table.ref)
        assert term(Peer.call(peer, "get " <> json)) == %{"c" => values}, inspect({type, count})
        assert Arrow.to_list(table, "c") == {:ok, values}
        :ok = Arrow.release(table)
      end
    end

    test "Python sees the types" do
      {:ok, table} =
        Arrow.from_columns(for {{t, v}, i} <- Enum.with_index(@columns), do: {"#{i}", {t, v}})

      {:ok, json} = TensorRef.to_json(table.ref)
      schema = python() |> Peer.call("schema " <> json)

      for piece <-
            ~w{null bool int8 uint64 halffloat float double string large_string binary
                      large_binary fixed_size_binary[2] date32[day] date64[ms] time32[s] time64[us]
                      duration[ms] decimal128(10 decimal256(60} ++
              ["timestamp[us, tz=UTC]", "timestamp[s]", "list<item: int64>"] ++
              ["fixed_size_list<item: int16>[2]", "struct<x: int64, y: string>"] do
        assert schema =~ piece, piece
      end

      :ok = Arrow.release(table)
    end

    test "Elixir reads every type, in place" do
      peer = python()

      for name <- peer |> Peer.call("names") |> String.split(), name != "doubles" do
        [json, text] = peer |> Peer.call("put #{name}") |> String.split("\t")
        copied = stat(:bytes_copied)
        assert {:ok, table} = Arrow.import_table(json), name
        assert {:ok, columns} = Arrow.to_columns(table), name
        assert columns == term(text), name
        assert stat(:bytes_copied) == copied
        :ok = Arrow.release(table)
      end
    end

    test "and back to pandas and Polars" do
      peer = python()
      {:ok, table} = Arrow.from_columns(%{"n" => [1.5, 2.5, 3.0], "s" => ["a", "b", nil]})
      {:ok, json} = TensorRef.to_json(table.ref)
      assert Peer.call(peer, "frame " <> json) == "7.0 7.0"
      :ok = Arrow.release(table)
    end

    test "a compressed table is refused by name" do
      json = python() |> Peer.call("compressed")
      assert {:error, %Error{type: :unsupported, message: message}} = Arrow.import_table(json)
      assert message =~ "compressed"
    end
  end

  defp stream do
    columns =
      for {{type, values}, i} <- Enum.with_index(@columns), do: {"column #{i}", {type, values}}

    {:ok, table} = Arrow.from_columns(columns)
    {:ok, stream} = Arrow.export_ipc(table)
    stream = :binary.copy(stream)
    :ok = Arrow.release(table)
    stream
  end

  defp message(kind, header, body \\ 0, version \\ 4) do
    metadata =
      Flatbuffer.encode(
        {:table, %{0 => {:i16, version}, 1 => {:i8, kind}, 2 => header, 3 => {:i64, body}}}
      )

    <<0xFFFFFFFF::32, byte_size(metadata)::32-little, metadata::binary>>
  end

  defp schema_message(fields), do: message(1, {:table, %{1 => {:tables, fields}}})

  defp stream_of(batch, fields), do: schema_message(fields) <> message(3, batch) <> the_end()
  defp the_end, do: <<0xFFFFFFFF::32, 0::32>>
  defp int(bits), do: %{0 => {:i32, bits}, 1 => {:bool, true}}
end
