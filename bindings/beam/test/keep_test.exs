# SPDX-License-Identifier: MIT
defmodule Tmesh.KeepTest do
  use Tmesh.Case

  alias Tmesh.{Bundle, Model}

  @vocabulary ~w(name id backend regions held bytes kept_ns used_ns expires_ns uid gid mode handles
                 cgroup_id)a

  # A user's names are visible to all processes of the user.
  setup do
    name = "tmesh-test-#{System.pid()}-#{System.unique_integer([:positive])}"
    on_exit(fn -> for last <- ["", "-2"], do: Tmesh.drop(name <> last) end)
    %{name: name}
  end

  defp told(name), do: Enum.find(Tmesh.kept!(), &(&1.name == name))

  # Run `fun` so that no process of this VM has its tensors any more.
  defp forgotten(fun) do
    result = in_process(fun)

    eventually(fn ->
      for pid <- Process.list(), do: :erlang.garbage_collect(pid)
      Tmesh.Native.sweep()
      stat(:regions_live) == 0
    end)

    result
  end

  test "a tensor stays without a holder, and is opened by its name", %{name: name} do
    data = String.duplicate("abcd", 2000)

    forgotten(fn ->
      ref = ZeroCopy.from_binary!(data, {2000, 4}, :uint8, label: "stays")
      assert {:ok, ^ref} = Tmesh.keep(ref, name)
      assert {:ok, ^ref} = Tmesh.keep(ref, name, replace: true, lifetime: 3_600_000)
      assert is_integer(told(name).expires_ns)
      assert {:ok, ^ref} = Tmesh.keep(ref, name, replace: true)
      assert %{regions: 1, held: 1} = told(name)
    end)

    eventually(fn -> told(name).held == 0 end)
    assert %{mode: 0o600, expires_ns: nil, bytes: bytes, kept_ns: kept_ns} = info = told(name)
    assert Enum.sort(Map.keys(info)) == Enum.sort(@vocabulary)
    assert bytes >= byte_size(data) and is_integer(kept_ns)

    assert %TensorRef{shape: [2000, 4], dtype: :uint8} = ref = Tmesh.open_kept!(name)
    assert %{label: "stays", sealed: true, rights: [:read]} = ZeroCopy.info!(ref)
    assert Tmesh.drop(name) == :ok
    assert told(name) == nil
    assert ZeroCopy.to_binary!(ref, copy: false) == data
  end

  test "so does a bundle, a map of tensors, and a model", %{name: name} do
    forgotten(fn ->
      assert %Bundle{} = Tmesh.keep!(%{"a" => {"abcd", {4}, :u8}, "b" => {"x", {1}, :u8}}, name)
      :ok
    end)

    assert %Bundle{names: ["a", "b"]} = bundle = Tmesh.open_kept!(name)
    assert ZeroCopy.to_binary!(bundle["a"]) == "abcd"
    :ok = Bundle.release(bundle)

    path = Path.join(System.tmp_dir!(), name)
    File.write!(path, Tmesh.ModelFiles.safetensors([{"w", "U8", [4], "wxyz"}]))
    on_exit(fn -> File.rm!(path) end)

    forgotten(fn ->
      assert %Bundle{} = Tmesh.keep!(Model.load!(path), name, replace: true)
      :ok
    end)

    assert ZeroCopy.to_binary!(Tmesh.open_kept!(name)["w"]) == "wxyz"
  end

  test "a model that is kept is not read again", %{name: name} do
    path = Path.join(System.tmp_dir!(), name)
    File.write!(path, Tmesh.ModelFiles.safetensors([{"w", "U8", [4], "wxyz"}]))
    on_exit(fn -> File.rm!(path) end)
    kept = forgotten(fn -> Model.load!(path, keep: true).report.kept end)
    on_exit(fn -> Tmesh.drop(kept) end)
    assert kept in Enum.map(Tmesh.kept!(), & &1.name)
    # Or the last process's load is still going, and was joined.
    assert %{bytes_read: 0, kept: found} = Model.load!(path).report
    assert found in [kept, nil]
  end

  test "a part, and what is nothing, is not kept", %{name: name} do
    part = Bundle.put!(%{"a" => {"abcd", {4}, :u8}, "b" => {"x", {1}, :u8}})["b"]
    assert {:error, %Error{type: :invalid, message: message}} = Tmesh.keep(part, name)
    assert message =~ "part"

    for other <- [nil, 7, "text", [:a], %{"a" => 1}],
        do: assert({:error, %Error{type: :invalid}} = Tmesh.keep(other, name))

    assert told(name) == nil
  end

  test "what is no name, and no option", %{name: name} do
    ref = ZeroCopy.from_binary!("abcd", [4], :uint8)

    for no_name <- ["a\nb", "a\0b", <<0xFF>>, nil, :name, 7] do
      assert {:error, %Error{type: :invalid}} = Tmesh.keep(ref, no_name)
      assert {:error, %Error{type: type}} = Tmesh.open_kept(no_name)
      assert type in [:invalid, :not_found]
      assert {:error, %Error{type: type}} = Tmesh.drop(no_name)
      assert type in [:invalid, :not_found]
    end

    for opts <- [
          [replace: 1],
          [lifetime: 0],
          [lifetime: 1.5],
          [lifetime: 0x1_0000_0000_0000_0000],
          [mode: "0600"],
          [gid: -1],
          [colour: 1]
        ],
        do: assert({:error, %Error{type: :invalid}} = Tmesh.keep(ref, name, opts))

    for uid <- [-1, "me", 1.5],
        do: assert({:error, %Error{type: :invalid}} = Tmesh.open_kept(name, uid: uid))
  end

  describe "files" do
    setup do
      folder =
        Path.join(System.tmp_dir!(), "keep-#{System.pid()}-#{System.unique_integer([:positive])}")

      File.mkdir_p!(folder)
      on_exit(fn -> File.rm_rf!(folder) end)
      %{folder: folder}
    end

    test "of a folder are kept under their names", %{name: name, folder: folder} do
      File.mkdir_p!(Path.join(folder, "sub"))
      File.write!(Path.join(folder, "sub/config.json"), "{}")
      File.write!(Path.join(folder, "weights"), String.duplicate("w", 70_000))
      File.ln_s!("../weights", Path.join(folder, "sub/link"))
      assert Tmesh.keep_folder(folder, name, progress: self(), mode: 0o640) == :ok
      assert_received {:tmesh_model, ^folder, %{bytes_total: 140_002}}

      assert [
               %{path: "sub/config.json", bytes: 2},
               %{path: "sub/link", bytes: 70_000},
               %{path: "weights", bytes: 70_000, mtime_ns: mtime_ns}
             ] = Tmesh.kept_files!(name)

      assert is_integer(mtime_ns)
      assert {:error, %Error{type: :exists}} = Tmesh.keep_folder(folder, name)
      assert Tmesh.keep_folder(folder, name, replace: true) == :ok
      assert {:error, %Error{type: :not_found, message: why}} = Tmesh.kept_path(name, "none")
      assert why =~ "none"
    end

    @unmounted (cond do
                  Tmesh.backend() != {:ok, :kernel} -> "the module shows files here; tests/mount has tmesh-mount"
                  System.cmd("id", ["-u"]) != {"0\n", 0} -> "mounting takes root"
                  true -> false
                end)
    @tag skip: @unmounted
    test "are read by their paths", %{name: name, folder: folder} do
      place = System.fetch_env!("TMESH_MOUNT")
      File.mkdir_p!(place)
      assert {"", 0} = System.cmd("mount", ["-t", "tmesh", "none", place])
      on_exit(fn -> System.cmd("umount", [place]) end)
      data = :crypto.strong_rand_bytes(100_000)
      File.write!(Path.join(folder, "weights"), data)
      assert Tmesh.keep_folder(folder, name) == :ok
      File.rm_rf!(folder)
      path = Tmesh.kept_path!(name, "weights")
      assert path == Path.join([place, "0", name, "weights"])
      assert Tmesh.kept_path!(name) == Path.dirname(path)
      assert File.read!(path) == data
      assert File.write(path, "x") == {:error, :erofs}
      {:ok, file} = :file.open(path, [:read, :raw, :binary])
      assert Tmesh.drop(name) == :ok
      assert File.read(path) == {:error, :enoent}
      assert :file.pread(file, 0, 100_001) == {:ok, data}
      :file.close(file)
    end

    test "are refused whole", %{name: name, folder: folder} do
      assert {:error, %Error{type: :invalid}} = Tmesh.keep_folder(folder, name)
      File.ln_s!(".", Path.join(folder, "self"))
      assert {:error, %Error{type: :invalid, message: why}} = Tmesh.keep_folder(folder, name)
      assert why =~ "link to a folder"
      assert {:error, %Error{type: :not_found}} = Tmesh.keep_folder(folder <> "/none", name)
      assert {:error, %Error{type: :invalid}} = Tmesh.keep_folder(folder, name, progress: :me)
      assert {:error, %Error{type: :not_found}} = Tmesh.kept_files(name)
      assert told(name) == nil
    end
  end
end
