# SPDX-License-Identifier: MIT
defmodule Tmesh.ArenaTest do
  use ExUnit.Case

  alias Tmesh.{Arena, Error, ZeroCopy}

  doctest Arena

  test "any process may use it" do
    {:ok, arena} = Arena.create(bytes: 4096)

    refs =
      1..8
      |> Enum.map(fn i ->
        Task.async(fn ->
          for _ <- 1..100,
              do: {i, ZeroCopy.from_binary!(<<i::64>>, [8], :uint8, arena: arena)}
        end)
      end)
      |> Task.await_many(:infinity)

    for {i, ref} <- List.flatten(refs), do: assert(ZeroCopy.to_binary!(ref) == <<i::64>>)
  end

  test "a large one is made on a dirty scheduler, small ones where their process runs" do
    {:ok, arena} = Arena.create()

    {:ok, roomy} = Arena.create(bytes: 8_000_000)
    make = fn bytes -> fn -> ZeroCopy.allocate([bytes], :uint8, arena: arena) end end

    put = fn bytes ->
      data = :binary.copy("x", bytes)
      fn -> ZeroCopy.from_binary(data, [bytes], :uint8, arena: arena) end
    end

    for {what, fun, dirty} <- [
          {"100 bytes", make.(100), false},
          {"200,000 bytes", make.(200_000), false},
          {"2,000,000 bytes", make.(2_000_000), true},
          {"100 bytes copied", put.(100), false},
          {"100,000 bytes copied", put.(100_000), true},
          {"a large region", fn -> ZeroCopy.allocate([1], :uint8, arena: roomy) end, true}
        ] do
      maker = Task.async(fn -> receive do: (:go -> fun.()) end)
      :erlang.trace(maker.pid, true, [:running])
      send(maker.pid, :go)
      assert {:ok, _ref} = Task.await(maker, :infinity)
      # Traces come at any time, and this message after all of them.
      told = :erlang.trace_delivered(maker.pid)
      assert moved?(maker.pid, told) == dirty, what
    end
  end

  # Return whether a traced process moved to another scheduler to make its tensor.
  defp moved?(pid, told) do
    receive do
      {:trace, ^pid, :out, {Tmesh.Native, name, _arity}} when name in [:create, :put] -> true
      {:trace, ^pid, _in_or_out, _where} -> moved?(pid, told)
      {:trace_delivered, ^pid, ^told} -> false
    end
  end

  test "refused" do
    {:ok, arena} = Arena.create()

    for opts <- [
          [seal: :perhaps, arena: arena],
          [arena: :none],
          [arena: make_ref()]
        ] do
      assert {:error, %Error{type: :invalid}} = ZeroCopy.from_binary("x", [1], :uint8, opts)
    end

    for opts <- [
          [bytes: -1],
          [bytes: 1.5],
          [label: :atom],
          [arena: arena],
          :none
        ] do
      assert {:error, %Error{type: :invalid}} = Arena.create(opts)
    end
  end
end
