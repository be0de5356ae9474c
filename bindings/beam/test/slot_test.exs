# SPDX-License-Identifier: MIT
defmodule Tmesh.SlotTest do
  use Tmesh.Case

  alias Tmesh.{Bundle, Slot}

  defp value(text), do: %{"a" => {text, {byte_size(text)}, :u8}}

  setup do
    slot = Slot.create!(label: "a slot")
    reader = Slot.open!(slot.token)
    # ExUnit keeps the context after the test, and a reader holds the value that it read last.
    on_exit(fn -> for one <- [reader, slot], do: Slot.close(one) end)
    %{slot: slot, reader: reader}
  end

  defp collected do
    for pid <- Process.list(), do: :erlang.garbage_collect(pid)
    Tmesh.Native.sweep()
  end

  test "a value has its generation, and its tensors by their names", %{slot: slot, reader: reader} do
    assert Slot.generation(slot) == {:ok, 0}
    assert Slot.publish(slot, value("one")) == {:ok, 1}
    assert %Slot.Value{generation: 1, bundle: %Bundle{names: ["a"]}} = one = Slot.read!(reader)
    assert ZeroCopy.to_binary!(one["a"], copy: false) == "one"
    assert one["b"] == nil
    assert Slot.publish!(slot, nil) == 2
    assert Slot.generation!(slot) == 2
  end

  test "while nothing is new the same value is given back, on the process's scheduler",
       %{slot: slot, reader: reader} do
    Slot.publish!(slot, value("one"))
    one = Slot.read!(reader)
    assert Slot.read!(reader, one) === one
    opened = stat(:regions_opened)
    for _ <- 1..1000, do: assert(Slot.read!(reader, one) === one)
    assert stat(:regions_opened) == opened
    Slot.publish!(slot, value("two"))
    assert %Slot.Value{generation: 2} = two = Slot.read!(reader, one)
    assert Slot.read!(reader, two) === two
    assert %Slot.Value{generation: 2} = Slot.read!(reader)
  end

  test "an old generation is freed with its last reader", %{slot: slot, reader: reader} do
    in_process(fn ->
      Slot.publish!(slot, value("one"))
      Slot.read!(reader)
      for x <- 1..50, do: Slot.publish!(slot, value("#{x}")) && Slot.read!(reader)
      :ok
    end)

    collected()
    live = stat(:regions_live)

    in_process(fn ->
      for x <- 1..50, do: Slot.publish!(slot, value("#{x}")) && Slot.read!(reader)
    end)

    eventually(fn -> collected() && stat(:regions_live) <= live end)
  end

  test "a watcher gets one message, also at once, and one of the end", %{slot: slot, reader: reader} do
    tag = reader.tag
    assert Slot.watch(reader) == :ok
    # A message may come that there is something to look at.
    receive(do: ({:tmesh_slot, ^tag} -> Slot.watch!(reader)), after: (100 -> :ok))
    Slot.publish!(slot, value("one"))
    assert_receive {:tmesh_slot, ^tag}
    refute_received {:tmesh_slot, ^tag}
    # The value was not read yet.
    Slot.watch!(reader)
    assert_receive {:tmesh_slot, ^tag}
    one = Slot.read!(reader)
    Slot.watch!(reader)
    Slot.publish!(slot, value("two"))
    assert_receive {:tmesh_slot, ^tag}
    assert %Slot.Value{generation: 2} = two = Slot.read!(reader, one)
    Slot.watch!(reader)
    :ok = Slot.close(slot)
    assert_receive {:tmesh_slot, ^tag}
    # The held value stays, and is the newest.
    assert Slot.read!(reader, two) === two
    assert ZeroCopy.to_binary!(two["a"]) == "two"
    # Otherwise a process that reads and watches in turn would do so without a pause.
    assert {:error, %Error{type: :gone}} = Slot.watch(reader)
    refute_received {:tmesh_slot, ^tag}
  end

  test "an unread value comes before the end", %{slot: slot, reader: reader} do
    tag = reader.tag
    Slot.publish!(slot, value("one"))
    :ok = Slot.close(slot)
    Slot.watch!(reader)
    assert_receive {:tmesh_slot, ^tag}
  end

  test "many read while one publishes: each value is of one generation", %{slot: slot} do
    pair = fn n -> %{"a" => {<<n::64>>, {8}, :u8}, "b" => {<<n::64>>, {8}, :u8}} end
    Slot.publish!(slot, pair.(1))

    readers =
      for _ <- 1..4 do
        Task.async(fn -> follow(Slot.open!(slot.token), nil, 0) end)
      end

    for n <- 2..100, do: assert(Slot.publish!(slot, pair.(n)) == n)
    for seen <- Task.await_many(readers, :infinity), do: assert(seen in 1..100)
  end

  defp follow(reader, last, seen) do
    value = Slot.read!(reader, last)
    <<n::64>> = ZeroCopy.to_binary!(value["a"])
    assert n == value.generation and ZeroCopy.to_binary!(value["b"]) == <<n::64>>
    if n == 100, do: seen + 1, else: follow(reader, value, min(seen + 1, 99))
  end

  test "it ends with the process that has it", %{reader: reader} do
    token = in_process(fn -> Slot.create!().token end)

    eventually(fn -> collected() && match?({:error, %Error{type: :not_found}}, Slot.open(token)) end)

    assert {:error, %Error{type: :not_found}} = Slot.read(reader)
  end

  test "what was closed says so", %{slot: slot, reader: reader} do
    Slot.publish!(slot, value("one"))
    Slot.watch!(reader)
    one = Slot.read!(reader)

    for one <- [reader, slot], do: assert(Slot.close(one) == :ok)

    for try <- [
          fn -> Slot.generation(slot) end,
          fn -> Slot.read(reader, one) end,
          fn -> Slot.watch(reader) end
        ],
        do: assert({:error, %Error{type: :closed}} = try.())

    assert ZeroCopy.to_binary!(one["a"]) == "one"
  end

  test "a slot's name is one" do
    for name <- ["a\nb", "a\0b", 5] do
      assert {:error, %Error{type: :invalid}} = Slot.create(name: name)
      assert {:error, %Error{type: :invalid}} = Slot.open_named(name)
    end

    assert {:error, %Error{type: :invalid}} = Slot.open_named(nil)
  end

  test "what is no slot, no value, no option", %{slot: slot} do
    for token <- [nil, 7, String.duplicate("x", 500)],
        do: assert({:error, %Error{type: :protocol}} = Slot.open(token))

    for no_value <- [7, "text", %{"a" => 1}, :none],
        do: assert({:error, %Error{type: :invalid}} = Slot.publish(slot, no_value))

    assert Slot.generation!(slot) == 0

    for opts <- [[label: 5], [label: String.duplicate("x", 64)], [max_ref: -1], [colour: 1], :opts],
        do: assert({:error, %Error{type: :invalid}} = Slot.create(opts))

    narrow = Slot.create!(max_ref: 64)
    assert {:error, %Error{type: :invalid}} = Slot.publish(narrow, value("one"))
    refute inspect(slot) =~ slot.token
  end
end
