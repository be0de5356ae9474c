# SPDX-License-Identifier: MIT
defmodule Tmesh.IdiomsTest do
  @moduledoc false
  # Properties of every module, and Elixir's own protocols.
  use Tmesh.Case, backend: :any

  alias Tmesh.{Arena, Channel}

  {:ok, modules} = :application.get_key(:tmesh, :modules)
  @modules modules

  test "whatever gives {:error, error} has a variant that raises it, with the same arities" do
    fallible =
      for module <- @modules,
          documented?(module),
          Code.ensure_loaded?(module),
          {:ok, specs} = Code.Typespec.fetch_specs(module),
          {{name, arity}, types} <- specs,
          name not in [:start_link, :exception],
          documented?(module, name),
          Enum.any?(types, &fallible?(module, name, &1)),
          do: {module, name, arity}

    assert length(fallible) > 40

    without =
      for {module, name, arity} <- fallible,
          not function_exported?(module, :"#{name}!", arity),
          do: Exception.format_mfa(module, name, arity)

    assert without == []
  end

  defp documented?(module),
    do: match?({:docs_v1, _, _, _, %{}, _, _}, Code.fetch_docs(module))

  defp documented?(module, name) do
    {:docs_v1, _, _, _, _, _, docs} = Code.fetch_docs(module)
    Enum.any?(docs, &match?({{:function, ^name, _}, _, _, %{}, _}, &1))
  end

  defp fallible?(_module, name, type) do
    text = name |> Code.Typespec.spec_to_quoted(type) |> Macro.to_string()
    [_head, returned] = String.split(text, "::", parts: 2) |> Enum.take(-2)
    not String.ends_with?("#{name}", "!") and returned =~ ~r/\{:error, (Tmesh\.)?Error\.t\(\)\}/
  end

  test "one that raises" do
    assert_raise Error, ~r/negative/, fn -> ZeroCopy.allocate!([-1], :uint8) end
    assert_raise Error, fn -> TensorRef.from_json!("{}") end
    assert {:ok, %Arena{}} = {:ok, Arena.create!(label: "arena")}
    out = Channel.create!(:send)
    into = Channel.open!(out.token, :recv)
    assert Channel.send!(out, "a") == :ok
    assert Channel.recv!(into) == "a"
    assert_raise Error, fn -> Channel.recv!(into, 0) end
  end

  test "a time that no wait can have is an error, and an argument of another kind raises" do
    {:ok, out} = Channel.create(:send)
    {:ok, into} = Channel.open(out.token, :recv)
    ref = ZeroCopy.allocate!([1], :uint8)
    stream = start_supervised!(Tmesh.Stream)

    for timeout <- [-1, 1.5, nil, :never],
        call <- [
          &Tmesh.flush/1,
          &Channel.send(out, "a", &1),
          &Channel.recv(into, &1),
          &Channel.call(out, into, "a", &1),
          &Channel.flush(out, &1),
          &ZeroCopy.reclaim(ref, &1),
          &ZeroCopy.wait(ref, 1, &1),
          &ZeroCopy.recv(0, timeout: &1),
          &Tmesh.Stream.push_infeed(stream, 1, &1),
          &Tmesh.Stream.pop_infeed(stream, &1),
          &Tmesh.Stream.push_outfeed(stream, 1, &1),
          &Tmesh.Stream.pop_outfeed(stream, &1),
          &Tmesh.Net.Pages.sequence(stream, 1, &1),
          &Tmesh.Engine.connect("none", timeout: &1),
          &Tmesh.Worker.execute("numpy.sum", [1], timeout: &1)
        ] do
      assert {:error, %Error{type: :invalid, message: message}} = call.(timeout)
      assert message =~ "timeout"
    end

    assert {:error, %Error{type: :timeout}} = Channel.recv(into, 0)
    assert {:error, %Error{type: :invalid}} = Tmesh.Net.Pages.sequence(stream, 0)

    for call <- [
          fn -> Channel.recv(nil) end,
          fn -> ZeroCopy.to_binary(nil) end,
          fn -> ZeroCopy.release(nil) end,
          fn -> Tmesh.Worker.stop_pool(nil) end
        ],
        do: assert_raise(FunctionClauseError, call)
  end

  test "waits have no limit unless one is given" do
    for {module, names} <- [
          {Channel, [:send, :recv, :call]},
          {Tmesh.Stream, [:push_infeed, :pop_infeed, :push_outfeed, :pop_outfeed]}
        ],
        {:docs_v1, _, _, _, _, _, docs} = Code.fetch_docs(module),
        {{:function, name, _arity}, _, [signature], _, _} <- docs,
        name in Enum.flat_map(names, &[&1, :"#{&1}!"]) do
      assert signature =~ "timeout \\\\ :infinity"
    end
  end

  describe "Nx's forms" do
    test "of shapes and types are taken in the place of ours" do
      for {type, dtype} <- [
            {{:f, 32}, :float32},
            {:f32, :float32},
            {{:s, 8}, :int8},
            {{:u, 16}, :uint16},
            {:u64, :uint64},
            {{:bf, 16}, :bfloat16},
            {{:c, 64}, :complex64},
            {{:f, 8}, :float8_e5m2},
            {{:f8_e4m3fn, 8}, :float8_e4m3fn},
            {:f8_e4m3fn, :float8_e4m3fn}
          ] do
        assert %TensorRef{shape: [2, 3], dtype: ^dtype} = ZeroCopy.allocate!({2, 3}, type)
      end

      assert %TensorRef{shape: [4], dtype: :uint8} = ZeroCopy.from_binary!("abcd", {4}, {:u, 8})
      assert %TensorRef{shape: []} = ZeroCopy.from_binary!("a", {}, :u8)
    end

    test "that there are not, are not" do
      for {shape, type} <- [{{2}, {:f, 31}}, {{2}, {:u, 1}}, {{:a}, {:f, 32}}, {%{}, :f32}] do
        assert {:error, %Error{type: :invalid}} = ZeroCopy.allocate(shape, type)
      end
    end
  end

  describe "inspect" do
    test "shows a tensor's label and state, and never its token" do
      ref = ZeroCopy.from_binary!("abcd", [4], :uint8, label: "pixels")
      assert inspect(ref) == ~s(#Tmesh.ZeroCopy.TensorRef<:uint8 [4] :cpu, label: "pixels", sealed>)
      {:ok, named} = ZeroCopy.grant(ref, :read)
      refute inspect(named) =~ named.token
      refute inspect(named, structs: true, limit: :infinity) =~ named.token
      :ok = ZeroCopy.release(ref)
      assert inspect(ref) == "#Tmesh.ZeroCopy.TensorRef<:uint8 [4] :cpu, released>"
      other = ZeroCopy.allocate!([97, 98], :float32)
      assert inspect(other) =~ ":float32 [97, 98] :cpu, not sealed>"
      described = other |> TensorRef.to_map!() |> TensorRef.from_map!()
      assert inspect(described) =~ ", not open>"
    end

    test "of the others shows no handle and no token" do
      channel = Channel.create!(:recv)
      refute inspect(channel) =~ channel.token
      for term <- [channel, Arena.create!()], do: refute(inspect(term) =~ "Reference")
    end

    test "of an arena and a bundle shows the label, also of a bundle that another process opens" do
      assert inspect(Arena.create!(label: "small")) == ~s(#Tmesh.Arena<label: "small", ...>)
      made = Tmesh.Bundle.put!(%{"a" => {"abcd", {4}, :u8}}, label: "weights")

      for bundle <- [made, made |> Tmesh.Bundle.to_json!() |> Tmesh.Bundle.open!()] do
        assert bundle.label == "weights"
        assert inspect(bundle) =~ ~s(label: "weights")
      end
    end

    test "survives what is no ref" do
      for handle <- [:none, make_ref(), 1],
          do: assert(inspect(%{ZeroCopy.allocate!([1], :int8) | handle: handle}) =~ "TensorRef<")
    end
  end

  describe "a channel" do
    setup do
      out = Channel.create!(:send)
      {:ok, out: out, into: Channel.open!(out.token, :recv)}
    end

    test "that receives is an enumerable of messages, which takes no more than is asked for",
         %{out: out, into: into} do
      ref = ZeroCopy.from_binary!("abcd", [4], :uint8)
      assert Enum.into(["1", ref, {ref, "3"}, "4"], out) == out
      assert ["1", %TensorRef{}, {%TensorRef{}, "3"}] = Enum.take(into, 3)
      assert Channel.recv!(into) == "4"
      # Garbage collection closes the sending end, and tensors in transit are lost with it.
      :ok = Channel.close(out)
    end

    test "ends with the other side", %{out: out, into: into} do
      for x <- 1..5, do: Channel.send!(out, <<x>>)
      :ok = Channel.close(out)
      assert into |> Stream.map(fn <<x>> -> x * x end) |> Enum.to_list() == [1, 4, 9, 16, 25]
      assert Enum.to_list(into) == []
    end

    test "can be zipped with another, and stopped", %{out: out, into: into} do
      other = Channel.create!(:send)
      others = Channel.open!(other.token, :recv)
      for x <- ["a", "b", "c"], do: Channel.send!(out, x)
      for x <- ["1", "2"], do: Channel.send!(other, x)
      :ok = Channel.close(other)
      assert others |> Stream.zip(into) |> Enum.to_list() == [{"1", "a"}, {"2", "b"}]
      assert Enum.find(into, &(&1 == "c")) == "c"
    end

    test "raises what is no end", %{out: out, into: into} do
      :ok = Channel.close(into)
      assert_raise Error, fn -> Enum.to_list(into) end
      assert_raise Error, fn -> Enum.take(out, 1) end
      assert_raise Error, fn -> Enum.into([:not_a_message], out) end
    end
  end
end
