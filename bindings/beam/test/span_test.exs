# SPDX-License-Identifier: MIT
defmodule Tmesh.SpanTest do
  use Tmesh.Case, backend: :any

  alias Tmesh.Telemetry

  @spans for what <- [:put, :open, :copy],
             stage <- [:start, :stop, :exception],
             do: [:tmesh, :tensor, what, stage]

  setup do
    test = self()

    :ok =
      Telemetry.attach(
        "spans",
        @spans,
        fn [_, _, what, stage], numbers, metadata, _ ->
          send(test, {what, stage, numbers, metadata})
        end,
        nil
      )

    on_exit(fn -> Telemetry.detach("spans") end)
  end

  test "tensors that are put, opened and copied tell so, with their bytes" do
    ref = ZeroCopy.from_binary!("abcd", {2, 2}, {:u, 8}, seal: false)
    assert_received {:put, :start, %{system_time: _, bytes: 4}, %{dtype: :uint8, shape: [2, 2]}}
    assert_received {:put, :stop, %{duration: took, bytes: 4}, %{result: :ok, dtype: :uint8}}
    assert is_integer(took)

    same = ZeroCopy.open!(ref)
    assert_received {:open, :start, %{bytes: 4}, %{shape: [2, 2]}}
    assert_received {:open, :stop, %{duration: _, bytes: 4}, %{result: :ok}}

    assert ZeroCopy.to_binary!(same) == "abcd"
    assert_received {:copy, :start, %{bytes: 4}, %{dtype: :uint8}}
    assert_received {:copy, :stop, %{duration: _, bytes: 4}, %{result: :ok}}
  end

  test "what is read in place, or refused, is no copy" do
    sealed = ZeroCopy.from_binary!("abcd", [4], :uint8)
    assert ZeroCopy.to_binary!(sealed) == "abcd"
    writable = ZeroCopy.allocate!([4], :uint8)
    assert {:error, %Error{type: :unsupported}} = ZeroCopy.to_binary(writable, copy: false)
    refute_received {:copy, _, _, _}
  end

  test "a failure is a result, and an exception is an event" do
    assert {:error, _} = ZeroCopy.from_binary("abc", [4], :uint8)
    assert_received {:put, :stop, %{bytes: 3}, %{result: :invalid}}

    assert_raise RuntimeError, fn ->
      Telemetry.span([:tmesh, :tensor, :put], %{bytes: 0}, %{}, fn -> raise "oops" end)
    end

    assert_received {:put, :exception, %{duration: _, bytes: 0},
                     %{kind: :error, reason: %RuntimeError{}, stacktrace: [_ | _]}}
  end
end
