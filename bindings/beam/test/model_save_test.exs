# SPDX-License-Identifier: MIT
defmodule Tmesh.ModelSaveTest do
  use Tmesh.Case, backend: :any

  alias Tmesh.{Bundle, Model, Telemetry}

  import Tmesh.ModelFiles

  @floats for(x <- 1..6, into: <<>>, do: <<x * 1.0::float-32-little>>)

  # Not ExUnit's own folder, which would be among the sources.
  setup do
    folder = Path.join(System.tmp_dir!(), "tmesh-#{System.pid()}-#{System.unique_integer()}")
    File.mkdir!(folder)
    on_exit(fn -> File.rm_rf!(folder) end)
    %{folder: folder, path: Path.join(folder, "new.safetensors")}
  end

  defp tensors, do: %{"w" => {@floats, {2, 3}, {:f, 32}}, "b" => {"xyz", {3}, :uint8}}

  defp bytes(path) do
    model = Model.load!(path)
    bytes = Map.new(model, fn {name, ref} -> {name, ZeroCopy.to_binary!(ref)} end)
    Model.release(model)
    bytes
  end

  test "a map of bytes and refs", %{path: path} do
    ref = ZeroCopy.from_binary!("abcd", [2, 2], :uint8)
    assert Model.save(Map.put(tensors(), "r", ref), path, metadata: %{"format" => "pt"}) == :ok
    assert bytes(path) == %{"w" => @floats, "b" => "xyz", "r" => "abcd"}
    model = Model.load!(path)
    assert Model.metadata!(model) == %{"format" => "pt"}
    assert %{type: "F32", shape: [2, 3], dtype: :float32} = model.entries["w"]
    # The widest elements come first.
    assert hd(model.names) == "w"
    assert ZeroCopy.to_binary!(ref) == "abcd"
  end

  test "a bundle and a model", %{folder: folder, path: path} do
    bundle = Bundle.put!(tensors())
    assert Model.save!(bundle, path) == :ok
    model = Model.load!(path)
    again = Path.join(folder, "again.safetensors")
    assert Model.save!(model, again) == :ok
    assert File.read!(again) == File.read!(path)
    # Both stay usable.
    assert bundle.names == ["b", "w"] and ZeroCopy.to_binary!(model["b"]) == "xyz"
    assert Model.save(%{}, path) == :ok and bytes(path) == %{}
    assert ZeroCopy.to_binary!(model["w"]) == @floats
  end

  test "several files with an index", %{folder: folder, path: path} do
    many = for i <- 1..5, into: %{}, do: {"t#{i}", {String.duplicate(<<i>>, 100), {100}, :uint8}}
    assert Model.save(many, path, max_shard_bytes: 200) == :ok
    index = "new.safetensors.index.json"
    shards = for i <- 1..3, do: "new-0000#{i}-of-00003.safetensors"
    assert Enum.sort(File.ls!(folder)) == Enum.sort([index | shards])
    assert %{"t5" => <<5, _::binary-99>>} = all = bytes(Path.join(folder, index))
    assert map_size(all) == 5
    elsewhere = Path.join(folder, "model.bin")
    assert {:error, %Error{type: :invalid}} = Model.save(many, elsewhere, max_shard_bytes: 200)
  end

  test "an error leaves what was there", %{folder: folder, path: path} do
    :ok = Model.save!(tensors(), path)
    released = ZeroCopy.from_binary!("a", [1], :uint8)
    :ok = ZeroCopy.release(released)
    closed = Bundle.put!(tensors())
    :ok = Bundle.release(closed)

    for {tensors, type} <- [
          {[{"a", {"a", [1], :uint8}}, {"a", {"b", [1], :uint8}}], :invalid},
          {%{"__metadata__" => {"a", [1], :uint8}}, :invalid},
          {%{"" => {"a", [1], :uint8}}, :invalid},
          {%{"a\0b" => {"a", [1], :uint8}}, :invalid},
          {%{<<255>> => {"a", [1], :uint8}}, :invalid},
          {%{String.duplicate("x", 5000) => {"a", [1], :uint8}}, :invalid},
          {%{5 => {"a", [1], :uint8}}, :invalid},
          {%{"a" => "no tensor"}, :invalid},
          {%{"a" => {"abc", [2], :uint8}}, :invalid},
          {%{"a" => {"a", [2], :int4}}, :unsupported},
          {%{"a" => released}, :closed},
          {closed, :closed},
          {:none, :invalid}
        ],
        do: assert({:error, %Error{type: ^type}} = Model.save(tensors, path))

    for opts <- [
          [metadata: %{"a" => 1}],
          [metadata: %{"a" => <<255>>}],
          [metadata: %{a: "b"}],
          [metadata: %{"a" => "b\0c"}],
          [metadata: [{"a", "b"}]],
          [max_shard_bytes: -1],
          [max_shard_bytes: "1"],
          [progress: :me],
          [colour: 1],
          :opts
        ],
        do: assert({:error, %Error{type: :invalid}} = Model.save(tensors(), path, opts))

    for no_path <- [nil, "a\0b", String.duplicate("x", 5000)],
        do: assert({:error, %Error{type: :invalid}} = Model.save(tensors(), no_path))

    nowhere = Path.join(folder, "no/where.safetensors")
    assert {:error, %Error{type: :not_found}} = Model.save(tensors(), nowhere)
    assert {:error, %Error{type: :exists}} = Model.save(tensors(), folder)
    assert File.ls!(folder) == ["new.safetensors"]
    assert bytes(path) == %{"w" => @floats, "b" => "xyz"}
    assert_raise Error, fn -> Model.save!(tensors(), nowhere) end
  end

  test "what tmesh has only the bytes of is not written as bytes", %{folder: folder, path: path} do
    blocks = Path.join(folder, "q.gguf")
    File.write!(blocks, gguf([{"q", 8, [32], :binary.copy(<<0>>, 34)}]))
    model = Model.load!(blocks)

    for whole <- [model, Model.bundle!(model)] do
      assert {:error, %Error{type: :unsupported, message: message}} = Model.save(whole, path)
      assert message =~ "\"q\"" and message =~ "Q8_0"
    end

    refute File.exists?(path)
  end

  test "a process gets the progress, and the file is not there before its end", %{path: path} do
    big = %{"a" => ZeroCopy.allocate!([50_000_000], :uint8)}
    assert Model.save(big, path, progress: self()) == :ok
    assert_received {:tmesh_model, ^path, %{bytes_total: 50_000_000, waiting: false}}
  end

  test "a saving ends with the process that asked for it", %{folder: folder, path: path} do
    big = %{"a" => ZeroCopy.allocate!([300_000_000], :uint8)}
    # On a busy machine the save may end before its caller is killed.
    assert Enum.any?(1..20, fn _try ->
             test = self()
             {pid, monitor} = spawn_monitor(fn -> Model.save!(big, path, progress: test) end)
             assert_receive {:tmesh_model, ^path, %{}}, 60_000
             Process.exit(pid, :kill)
             assert_receive {:DOWN, ^monitor, :process, ^pid, _reason}, 60_000
             # An unfinished file has no name.
             assert File.ls!(folder) in [[], ["new.safetensors"]]
             eventually(fn -> not writing?() end)
             forget(path)
             File.rm(path) == {:error, :enoent}
           end)

    assert File.ls!(folder) == []
  end

  defp forget(path) do
    receive do
      {:tmesh_model, ^path, _progress} -> forget(path)
    after
      0 -> :ok
    end
  end

  defp writing? do
    Enum.any?(File.ls!("/proc/self/fd"), fn name ->
      case File.read_link("/proc/self/fd/#{name}") do
        {:ok, target} -> target =~ "tmesh-#{System.pid()}"
        {:error, :enoent} -> false
      end
    end)
  end

  test "more at once than may hold dirty schedulers", %{folder: folder} do
    paths = for i <- 1..30, do: Path.join(folder, "#{i}.safetensors")
    save = &Task.async(fn -> Model.save(%{"p" => {&1, {byte_size(&1)}, :uint8}}, &1) end)
    assert paths |> Enum.map(save) |> Task.await_many(:infinity) |> Enum.uniq() == [:ok]
    for path <- paths, do: assert(bytes(path) == %{"p" => path})
  end

  test "a span tells of it", %{path: path} do
    test = self()
    tell = fn [_, _, _, stage], _numbers, metadata, _ -> send(test, {stage, metadata}) end
    events = for stage <- [:start, :stop], do: [:tmesh, :model, :save, stage]
    :ok = Telemetry.attach("save", events, tell, nil)
    on_exit(fn -> Telemetry.detach("save") end)
    :ok = Model.save!(tensors(), path)
    assert_received {:start, %{path: ^path}}
    assert_received {:stop, %{path: ^path, result: :ok}}
  end
end
