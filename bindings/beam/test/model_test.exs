# SPDX-License-Identifier: MIT
defmodule Tmesh.ModelTest do
  use Tmesh.Case

  alias Tmesh.{Bundle, Model, Telemetry}

  import Tmesh.ModelFiles

  # The compiler must not warn of the missing Nx.
  @compile {:no_warn_undefined, Nx}

  @floats for(x <- 1..6, into: <<>>, do: <<x * 1.0::float-32-little>>)
  @halves <<0x3F80::16-little, 0x4000::16-little>>
  @two [{"layer.weight", "F32", [2, 3], @floats}, {"bias", "BF16", [2], @halves}]

  # Not ExUnit's own folder, which would be among the sources.
  setup do
    folder = Path.join(System.tmp_dir!(), "tmesh-#{System.pid()}-#{System.unique_integer()}")
    File.mkdir!(folder)
    on_exit(fn -> File.rm_rf!(folder) end)
    %{tmp_dir: folder}
  end

  defp file(%{tmp_dir: folder}, name, bytes) do
    path = Path.join(folder, name)
    File.write!(path, bytes)
    path
  end

  defp two(context), do: file(context, "model.safetensors", safetensors(@two, ~s({"format":"pt"})))

  defp nothing_left do
    eventually(fn ->
      for pid <- Process.list(), do: :erlang.garbage_collect(pid)
      Tmesh.Native.sweep()
      stat(:regions_live) == 0
    end)
  end

  test "metadata with a zero, and a file that never had a name", context do
    path = file(context, "zero.safetensors", safetensors(@two, ~S({"k":"a\u0000b"})))
    assert Model.metadata!(Model.load!(path)) == %{"k" => <<"a", 0, "b">>}
    {:ok, open} = :file.open(path, [:read, :raw])
    File.rm!(path)
    # One of the VM's own descriptors still leads to it.
    {links, 0} = System.cmd("find", ["/proc/#{System.pid()}/fd", "-lname", "*zero.safetensors*"])
    [link | _] = String.split(links)
    assert Model.metadata!(Model.load!(link)) == %{"k" => <<"a", 0, "b">>}
    :file.close(open)
  end

  test "safetensors: names, types and metadata as the file has them, bytes without a copy",
       context do
    path = two(context)
    copied = stat(:bytes_copied)
    assert {:ok, %Model{format: :safetensors} = model} = Model.load(path)
    assert model.names == ["layer.weight", "bias"] and Enum.count(model) == 2

    assert %{index: 1, type: "BF16", dtype: :bfloat16, shape: [2], byte_size: 4, file: 0} =
             model.entries["bias"]

    assert Model.metadata!(model) == %{"format" => "pt"}
    assert %TensorRef{shape: [2, 3], dtype: :float32, byte_size: 24} = ref = model["layer.weight"]
    assert %{sealed: true, label: "model.safetensors"} = ZeroCopy.info!(ref)
    assert ZeroCopy.to_binary!(ref, copy: false) == @floats
    assert {:error, %Error{type: :access}} = ZeroCopy.write(ref, 0, "x")
    refs = Map.new(model)
    assert Map.keys(refs) == ["bias", "layer.weight"]
    assert ZeroCopy.to_binary!(refs["bias"], copy: false) == @halves
    assert stat(:bytes_copied) == copied
    assert %{bytes: bytes, hash: nil, kept: nil, reason: reason} = model.report
    assert bytes >= 28 and is_binary(reason)
    assert model["none"] == nil and model[7] == nil and Model.fetch(model, "none") == :error
    assert_raise KeyError, fn -> Model.fetch!(model, "none") end
    assert inspect(model) =~ "layer.weight"
    assert %{hash: <<_::binary-size(32)>>} = Model.load!(path, hash: true, alone: true).report
  end

  test "several files by their index, and a folder", context do
    file(context, "a.safetensors", safetensors([hd(@two)]))
    file(context, "b.safetensors", safetensors(tl(@two)))
    map = ~s({"layer.weight":"a.safetensors","bias":"b.safetensors"})
    index = file(context, "model.safetensors.index.json", ~s({"weight_map":#{map}}))

    for path <- [index, context.tmp_dir] do
      model = Model.load!(path)
      assert {model.names, model.entries["bias"].file} == {["layer.weight", "bias"], 1}
      assert ZeroCopy.to_binary!(model["bias"]) == @halves
    end
  end

  test "GGUF: shapes with the fastest dimension last, blocks as bytes", context do
    blocks = :binary.copy(<<7>>, 2 * 34)
    tensors = [{"w", 0, [3, 2], @floats}, {"q", 8, [32, 2], blocks}]
    bytes = gguf(tensors, [{"general.name", "tiny"}, {"odd", <<0xFF>>}])
    model = Model.load!(file(context, "tiny.gguf", bytes))
    assert {model.format, model.names} == {:gguf, ["w", "q"]}
    assert %{"general.name" => "tiny", "odd" => "\uFFFD"} = Model.metadata!(model)
    assert %TensorRef{shape: [2, 3], dtype: :float32} = model["w"]
    assert %{type: "Q8_0", dtype: nil, shape: [2, 32]} = model.entries["q"]
    assert %TensorRef{shape: [2, 34], dtype: :uint8} = model["q"]
    assert ZeroCopy.to_binary!(model["q"], copy: false) == blocks
  end

  test "a later load reads nothing, as long as a tensor or a binary is there", context do
    path = two(context)
    model = Model.load!(path)
    assert model.report.bytes_read > 0 and model.report.shared
    assert %{bytes_read: 0, method: nil} = Model.load!(path).report

    # Everything is collected but the named values.
    binary =
      in_process(fn ->
        same = Model.load!(path)
        binary = ZeroCopy.to_binary!(same["bias"])
        :ok = Model.release(same)
        binary
      end)

    :ok = Model.release(model)
    :ok = Model.release(model)
    for pid <- Process.list(), do: :erlang.garbage_collect(pid)
    Tmesh.Native.sweep()
    assert %{bytes_read: 0} = in_process(fn -> Model.load!(path).report end)
    assert binary == @halves
  end

  test "it is gone with the last of them, and read again", context do
    path = two(context)
    assert in_process(fn -> ZeroCopy.to_binary!(Model.load!(path)["bias"]) == @halves end)
    nothing_left()
    assert in_process(fn -> Model.load!(path).report.bytes_read end) > 0
    nothing_left()
  end

  test "all binaries of a model share one mapping and one descriptor", context do
    tensors = for i <- 1..100, do: {"t#{i}", "U8", [1], <<i>>}
    model = Model.load!(file(context, "many.safetensors", safetensors(tensors)))
    before = open_files()
    binaries = for {_name, ref} <- model, do: ZeroCopy.to_binary!(ref, copy: false)
    assert IO.iodata_to_binary(binaries) == for(i <- 1..100, into: <<>>, do: <<i>>)
    assert open_files() - before <= 2
  end

  test "one bundle for others", context do
    model = Model.load!(two(context))
    bundle = Model.bundle!(model)
    :ok = Model.release(model)
    same = bundle |> Bundle.to_json!() |> Bundle.open!()
    assert same.names == ["layer.weight", "bias"] and same.metadata =~ "pt"
    assert ZeroCopy.to_binary!(same["layer.weight"]) == @floats
    :ok = Bundle.release(bundle)
  end

  test "a released model says so; tensors taken from it stay", context do
    model = Model.load!(two(context))
    ref = model["bias"]
    :ok = Model.release(model)
    assert ZeroCopy.to_binary!(ref) == @halves
    assert {:error, %Error{type: :closed}} = Model.metadata(model)
    assert {:error, %Error{type: :closed}} = Model.bundle(model)
    assert_raise Error, fn -> model["bias"] end
  end

  describe "a malformed file is refused, and nothing is left of it:" do
    entry = &entry/5
    whole = safetensors(@two)

    for {what, name, bytes, words} <- [
          {"nothing", "a.safetensors", "", ""},
          {"half a header", "a.safetensors", binary_part(whole, 0, 40), ""},
          {"half of its data", "a.safetensors", binary_part(whole, 0, byte_size(whole) - 3), ""},
          {"a header that never ends", "a.safetensors", <<-1::64, "{}">>, ""},
          {"no JSON", "a.safetensors", header("nonsense"), ""},
          {"a hole", "a.safetensors", header("{#{entry.("a", "U8", [1], 1, 2)}}") <> "ab", ""},
          {"an overlap", "a.safetensors",
           header("{#{entry.("a", "U8", [2], 0, 2)},#{entry.("b", "U8", [2], 1, 3)}}") <> "abc",
           ""},
          {"a name twice", "a.safetensors",
           header("{#{entry.("a", "U8", [1], 0, 1)},#{entry.("a", "U8", [1], 1, 2)}}") <> "ab", ""},
          {"too few bytes", "a.safetensors", header("{#{entry.("a", "F32", [2], 0, 4)}}") <> "abcd",
           "a"},
          {"a shape that overflows", "a.safetensors",
           header("{#{entry.("a", "U8", [4_294_967_296, 4_294_967_296], 0, 1)}}") <> "a", "a"},
          {"a negative shape", "a.safetensors", header("{#{entry.("a", "U8", [-1], 0, 1)}}") <> "a",
           ""},
          {"an index that leads elsewhere", "m.index.json",
           ~s({"weight_map":{"a":"../a.safetensors"}}), ""},
          {"a GGUF that ends early", "a.gguf", binary_part(gguf([{"w", 0, [6], @floats}]), 0, 40),
           ""},
          {"a GGUF of blocks that do not fit", "a.gguf",
           gguf([{"w", 8, [33], :binary.copy(<<0>>, 68)}]), "w"}
        ] do
      @tag what: {name, bytes, words}
      test what, %{what: {name, bytes, words}} = context do
        files = open_files()
        path = file(context, name, bytes)
        assert {:error, %Error{type: :protocol, message: message}} = Model.load(path)
        assert message =~ words and message =~ name
        assert stat(:regions_live) == 0
        # Files of earlier tests may be closed meanwhile.
        eventually(fn -> open_files() <= files end)
      end
    end
  end

  test "what is no file of tensors, and no option", context do
    path = two(context)
    assert {:error, %Error{type: :not_found}} = Model.load(path <> "x")
    assert {:error, %Error{type: :not_found}} = Model.load(Path.join(context.tmp_dir, "no/where"))
    assert {:error, %Error{}} = Model.load("/dev/null")
    old = file(context, "old.gguf", gguf([], [], 2))
    assert {:error, %Error{type: :unsupported}} = Model.load(old)

    assert {:error, %Error{message: "no path is given" <> _}} = Model.load("")

    for no_path <- ["", [], nil, :none, 7, "a\0b", [:a], String.duplicate("x", 5000)],
        do: assert({:error, %Error{type: :invalid}} = Model.load(no_path))

    for opts <- [
          [keep: 1],
          [alone: nil],
          [hash: "yes"],
          [label: 5],
          [label: String.duplicate("x", 64)],
          [progress: :me],
          [colour: 1],
          [keep: true, alone: true],
          :opts
        ],
        do: assert({:error, %Error{type: :invalid}} = Model.load(path, opts))

    assert_raise Error, fn -> Model.load!(path <> "x") end
    assert stat(:regions_live) == 0
  end

  # Make a file of that length, with no more than holes on disk.
  defp large(context, bytes) do
    head = header("{#{entry("w", "U8", [bytes], 0, bytes)}}")
    path = file(context, "large.safetensors", head)
    {:ok, file} = File.open(path, [:read, :write, :raw])
    {:ok, _at} = :file.position(file, byte_size(head) + bytes)
    :ok = :file.truncate(file)
    File.close(file)
    path
  end

  test "a process gets the progress", context do
    path = large(context, 100_000_000)
    model = Model.load!(path, progress: self(), label: "large")
    total = 100_000_000
    assert_received {:tmesh_model, ^path, %{bytes_done: done, bytes_total: ^total, waiting: false}}
    assert done in 0..total
    assert %{label: "large"} = ZeroCopy.info!(model["w"])
  end

  test "a loading ends with the process that asked for it", context do
    path = large(context, 400_000_000)
    # On a busy machine the load may end before its caller is killed.
    assert Enum.any?(1..20, fn _try -> killed_while_it_loads?(path) end)
    # A later load does not wait for the abandoned one.
    assert Model.load!(path).report.bytes_read > 0
  end

  defp killed_while_it_loads?(path) do
    test = self()
    {pid, monitor} = spawn_monitor(fn -> Model.load!(path, progress: test) end)
    assert_receive {:tmesh_model, ^path, %{bytes_total: 400_000_000, bytes_done: done}}
    Process.exit(pid, :kill)
    assert_receive {:DOWN, ^monitor, :process, ^pid, reason}
    nothing_left()
    heard = heard_of_its_end?(path)
    reason == :killed and done < 400_000_000 and not heard
  end

  defp heard_of_its_end?(path) do
    receive do
      {:tmesh_model, ^path, %{bytes_done: 400_000_000}} -> true
      {:tmesh_model, ^path, _progress} -> heard_of_its_end?(path)
    after
      0 -> false
    end
  end

  test "more at once than may hold dirty schedulers", context do
    paths =
      for i <- 1..30, do: file(context, "#{i}.safetensors", safetensors([{"t", "U8", [1], <<i>>}]))

    for {path, i} <- Enum.with_index(paths ++ paths, 1) do
      Task.async(fn -> {Model.load!(path), rem(i - 1, 30) + 1} end)
    end
    |> Task.await_many(:infinity)
    |> Enum.each(fn {model, i} -> assert ZeroCopy.to_binary!(model["t"]) == <<i>> end)
  end

  test "what it costs is limited, and told by a span", context do
    path = large(context, 3_000_000)
    test = self()
    tell = fn [_, _, _, stage], numbers, metadata, _ -> send(test, {stage, numbers, metadata}) end
    events = for stage <- [:start, :stop, :exception], do: [:tmesh, :model, :load, stage]
    :ok = Telemetry.attach("load", events, tell, nil)
    on_exit(fn -> Telemetry.detach("load") end)

    model = Model.load!(path)
    %{bytes: bytes, bytes_read: bytes_read} = model.report
    assert_received {:start, %{system_time: _}, %{path: ^path}}

    assert_received {:stop, %{duration: _, bytes: ^bytes, bytes_read: ^bytes_read},
                     %{result: :ok, path: ^path}}

    :ok = Model.release(model)
    nothing_left()
    configure(max_shared_memory_mb: 1)
    assert {:error, %Error{type: :limit_exceeded, message: message}} = Model.load(path)
    assert message =~ "limit"
    assert_received {:stop, %{duration: _}, %{result: :limit_exceeded}}
  end

  describe "with Nx (a stand-in)" do
    setup do
      Code.require_file("support/nx.exs", __DIR__)
      on_exit(&without_nx/0)
    end

    defp without_nx do
      for module <- [Nx, Nx.Tensor, Nx.BinaryBackend] do
        :code.purge(module)
        :code.delete(module)
      end

      Code.unrequire_files([Path.expand("support/nx.exs", __DIR__)])
    end

    test "all tensors, without a copy", context do
      model = Model.load!(two(context))
      copied = stat(:bytes_copied)
      assert %{"layer.weight" => weight, "bias" => bias} = Model.to_nx!(model)
      :ok = Model.release(model)
      assert {Nx.type(weight), Nx.shape(weight)} == {{:f, 32}, {2, 3}}
      assert {Nx.type(bias), Nx.to_binary(bias)} == {{:bf, 16}, @halves}
      assert stat(:bytes_copied) == copied
      assert {:error, %Error{type: :closed}} = Model.to_nx(model)
    end

    test "a reader of the shape that Bumblebee takes", context do
      reader = &Model.read!/1
      assert %{"layer.weight" => weight, "bias" => _} = tensors = reader.(two(context))
      assert not is_struct(tensors) and Nx.to_binary(weight) == @floats
      assert_raise Error, fn -> reader.("/nowhere.safetensors") end
    end

    test "what Nx has not is named", context do
      for {name, type, size} <- [{"scale", "F8_E8M0", 1}, {"empty", "F32", 0}] do
        tensor = {name, type, [size], String.duplicate("a", size)}
        path = file(context, "#{name}.safetensors", safetensors([hd(@two), tensor]))
        assert {:error, %Error{type: :unsupported, message: message}} = Model.read(path)
        assert message =~ name
      end

      nothing_left()
    end
  end

  test "without Nx an error names it", context do
    assert {:error, %Error{type: :unsupported, message: message}} = Model.read(two(context))
    assert message =~ "Nx is not loaded"
  end
end
