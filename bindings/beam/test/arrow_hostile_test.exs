# SPDX-License-Identifier: MIT
defmodule Tmesh.ArrowHostileTest do
  @moduledoc false
  # Values that are not of their type, and malformed streams.

  use Tmesh.Case, backend: :any
  alias Tmesh.Arrow
  alias Tmesh.Arrow.{Flatbuffer, TableRef}

  @now ~U[2026-01-02 03:04:05.678901Z]

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
      assert {:error, %Error{type: :protocol}} = Arrow.import_table(TensorRef.to_map!(ref))
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
      # Each buffer lies in the body, but together they are longer.
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

      # All positions in the vector refer to the last field now.
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

  defp stream do
    columns =
      for {{type, values}, i} <- Enum.with_index(Tmesh.ArrowColumns.all()),
          do: {"column #{i}", {type, values}}

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
