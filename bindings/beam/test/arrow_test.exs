# SPDX-License-Identifier: MIT
defmodule Tmesh.ArrowTest do
  use Tmesh.Case, backend: :any
  alias Tmesh.Arrow
  alias Tmesh.Arrow.{ArrayRef, TableRef}

  doctest Tmesh.Arrow

  @now ~U[2026-01-02 03:04:05.678901Z]
  @columns Tmesh.ArrowColumns.all()

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
      # It is no binary of the VM's own, but a part of the region.
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

      for ref <- [json, TensorRef.to_map!(table.ref), elem(TensorRef.from_json(json), 1)] do
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

    test "what native code releases is let go of at once" do
      # The janitor does not look without a message.
      configure(cleanup_interval_ms: 0, region_pool_mb: 0)
      send(Tmesh.Janitor, :sweep)

      for thread <- [false, true] do
        live = stat(:regions_live)

        # The binaries end with the process that made them.
        {address, reference} =
          in_process(fn ->
            {:ok, table} = Arrow.from_columns(%{"n" => Enum.to_list(1..100_000)})
            {:ok, stream} = Arrow.stream_pointer(table)
            :ok = Arrow.release(table)
            stream
          end)

        assert GenServer.call(Tmesh.Janitor, :sweep, 60_000) == :ok
        assert stat(:regions_live) > live
        assert {"=+s(n=l ) ", _sum} = Tmesh.ArrowConsumer.consume(address, false, thread)
        eventually(fn -> stat(:regions_live) <= live end, 600)
        assert is_reference(reference)
      end
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

    test "a stream that no process takes is released" do
      live = stat(:regions_live)

      in_process(fn ->
        # More bytes than the emulator would copy.
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

      # Numbers have no offsets: only the length of their buffer can be checked.
      {:ok, numbers} = Arrow.from_columns(%{"n" => [1, 2, 3]})
      [[array]] = numbers.batches

      for lie <-
            [%{array | length: 4}, %{array | buffers: ["", ""]}, %{array | buffers: [<<>>, <<1>>]}] ++
              [%{array | buffers: [<<>>, <<0::128>>]}] do
        assert {:error, %Error{type: :protocol}} =
                 Arrow.stream_pointer(%{numbers | batches: [[lie]]})
      end

      # Neither have bitmaps, nor the children.
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

      # If nothing is null, no index belongs to a null.
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

      # Nine bytes each time. The third and the fourth are one character.
      places = for i <- 0..999, do: {9 * i, size - 9 * i}
      {{:ok, list}, work} = work(fn -> Arrow.to_list(views.(places)) end)
      assert List.last(list) == binary_part(text, 9 * 999, size - 9 * 999)
      assert work < 1_000_000

      for cut <- [{3, 20}, {0, 3 + 18}, {0, size + 1}] do
        assert {:error, %Error{type: :protocol}} = Arrow.to_list(views.([cut]))
      end

      # If a buffer is not all text, each view is checked, while they are few.
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

    # Return the result of a function, and its reductions.
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

    # Counts that fill bytes of bitmaps, words and lines, and one more or less.
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
end
