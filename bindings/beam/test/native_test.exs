# SPDX-License-Identifier: MIT
defmodule Tmesh.NativeTest do
  use Tmesh.Case, backend: :any

  alias Tmesh.Native

  @region {"", false, 0, nil, nil, 0, true}
  @channel {0, 0, 0, 0, false, 0, 0, 0, 0}

  # Each NIF with valid arguments. Each of them is then replaced by terms of every other type.
  defp calls do
    ref = ZeroCopy.allocate!([4], :uint8)
    {:ok, native} = ref |> ZeroCopy.grant!(:read) |> TensorRef.to_native()
    {:ok, json} = TensorRef.to_json(ref)
    context = Tmesh.Context.get()
    {:ok, {into, token}} = Native.channel_create(context, :recv, @channel)
    {:ok, out} = Native.channel_open(context, token, :send, @channel)
    {:ok, {back, _token}} = Native.channel_create(context, :send, @channel)
    {:ok, arena} = Native.arena_create(context, 0, @region)
    {:ok, gpu} = Tmesh.DLPack.import_gpu_tensor(json)
    sealed = ZeroCopy.from_binary!("abcd", [4], :uint8)
    other = ZeroCopy.allocate!([4096], :uint8)
    {fd, _other_fd} = Tmesh.Sockets.pair()
    # No message comes, so that no call waits.
    alone_fd = Tmesh.Sockets.alone()

    {:ok, bundle} = Native.bundle_create(context, [{"a", sealed.handle, false}], true, "", "")
    {bundle_out, bundle_in} = Tmesh.Sockets.pair()
    {:ok, bundle_json} = Native.bundle_ref(bundle, :read, nil)
    {:ok, model} = Native.model_load(context, model_file(), false, false, false, "", nil, false)

    {:ok, {slot, slot_token}} = Native.slot_create(context, "slot", 0, "native test")
    {:ok, reader} = Native.slot_open(context, slot_token)
    {:ok, _generation} = Native.slot_publish(slot, bundle)

    {:ok, pool} = Native.page_pool_create(context, {4096, 4, 16, 64, 1, 1})
    {:ok, tenant} = Native.page_pool_tenant(pool, 0)
    {:ok, pages} = Native.pages_open(context, tenant)
    {:ok, {sequence, _id}} = Native.pages_sequence(pages)
    :ok = Native.seq_append(sequence, 8)
    {:ok, ticket} = Native.seq_share(sequence)
    {:ok, members} = Native.json_decode(json)
    {:ok, cancellable} = Native.engine_cancellable(context)
    {:ok, {graph, "g", 1, 0}} = Native.graph_parse(graph_text())
    name = "tmesh-native-#{System.pid()}"
    on_exit(fn -> Tmesh.drop(name) end)

    # Without dma-bufs the call is refused, and for other reasons too.
    dmabuf =
      case Native.export_dmabuf(other.handle, 0, 0, :write) do
        {:ok, {descriptor, _fd}} -> descriptor
        {:error, _reason} -> -1
      end

    [
      context_open: [{:auto, 0, 0, 0, 1}],
      context_limit: [context, 0],
      context_backend: [context],
      context_caps: [context],
      context_stats: [context],
      context_flush: [context],
      context_trim: [context],
      arena_create: [context, 4096, @region],
      create: [context, [4], :uint8, @region],
      put: [context, "abcd", [4], :uint8, @region, true],
      put: [context, "abcd", [4], :uint8, arena, false],
      open: [context, native, :read],
      ref: [ref.handle, :read, 1_000_000],
      name: [ref.handle],
      write: [ref.handle, 0, "abcd"],
      info: [ref.handle],
      regions: [context],
      holders: [context, elem(native, 0)],
      token_id: [context, elem(native, 1)],
      to_binary: [ref.handle, true],
      ref_encode: [native],
      ref_decode: [json],
      ref_from_members: [members_of(members)],
      json_decode: [~s({"a":1})],
      channel_create: [context, :send, @channel],
      channel_open: [context, token, :recv, @channel],
      channel_flush: [out],
      channel_send: [out, nil, "abc"],
      channel_call: [back, into, nil, "abc"],
      channel_wait: [into, make_ref()],
      channel_watch: [into, :watch],
      channel_passed: [into, 0],
      channel_gone: [into],
      channel_cancel: [into],
      channel_close: [out],
      arrow_stream: [
        {"+s", "", 0, [{"l", "x", 2, [], nil}], nil},
        [{1, 0, [""], [{1, 0, ["", <<1::64>>], [], nil}], nil}]
      ],
      seal: [ref.handle],
      release: [ref.handle],
      tie: [ref.handle],
      local: [ref.handle],
      bundle_create: [context, [{"a", sealed.handle, false}], true, "", ""],
      bundle_open: [context, bundle_json, :read],
      bundle_info: [bundle],
      bundle_tensor: [bundle, "a"],
      bundle_ref: [bundle, :read, 1_000_000],
      bundle_hand_over: [bundle, bundle_out, :read],
      bundle_recv: [context, bundle_in],
      bundle_release: [bundle],
      slot_create: [context, "slot", 0, nil],
      slot_generation: [slot],
      slot_open: [context, slot_token],
      slot_open_named: [context, "native test"],
      slot_read: [reader, nil],
      slot_watch: [reader, :changed],
      slot_publish: [slot, nil],
      slot_close: [reader],
      keep_region: [context, sealed.handle, name, {true, 0, 0, nil}],
      open_kept: [context, name, nil],
      list_kept: [context],
      drop_kept: [context, name],
      keep_folder: [context, model_folder(), name, {true, 0, 0, nil}, nil],
      kept_path: [context, name, nil],
      kept_files: [context, name],
      drop_kept: [context, name],
      model_load: [context, model_file(), false, false, false, "", self(), false],
      model_info: [model],
      model_metadata: [model],
      model_tensor: [model, 0],
      model_bundle: [model],
      model_release: [model],
      # With several files the name must have the right ending, which no replaced name has.
      model_save: [context, [{"a", sealed.handle}], model_file("saved"), 1, ["k", "v"], self()],
      page_pool_create: [context, {4096, 4, 16, 64, 1, 1}],
      page_pool_tenant: [pool, 0],
      page_pool_info: [pool],
      pages_open: [context, tenant],
      pages_info: [pages],
      pages_head: [pages, 0],
      pages_hash: [pages, <<1::native-32>>, nil],
      pages_slab: [pages, 0, 0, nil, :uint8],
      pages_sequence: [pages],
      pages_find: [pages, <<0::128>>],
      pages_open_sequence: [pages, ticket],
      pages_unshare: [pages, ticket],
      seq_append: [sequence, 1],
      seq_fork: [sequence],
      seq_table: [sequence],
      seq_slot_mapping: [sequence, 0, 8],
      seq_read: [sequence, 0, 0, 0, 4096],
      seq_write: [sequence, 0, 0, 0, "abcd"],
      seq_gather: [sequence, 0],
      seq_cache: [sequence, <<0::128>>],
      seq_share: [sequence],
      seq_truncate: [sequence, 1],
      seq_release: [sequence],
      pages_trim: [pages],
      pages_close: [pages],
      page_pool_close: [pool],
      touch: [other.handle],
      fence_signal: [other.handle, 1],
      fence_wait: [other.handle, 1, 0],
      gather: [context, [{other.handle, 0, 4096}], :read, [4096], :uint8, @region],
      export_dmabuf: [other.handle, 0, 0, :write],
      from_dmabuf: [context, dmabuf, [4], :uint8, @region],
      descriptor_close: [dmabuf],
      hand_over: [sealed.handle, fd, :read],
      tensor_recv: [context, alone_fd, [4], :uint8, 0],
      lease: [sealed.handle, 3_600_000_000_000, 0],
      revoke: [other.handle],
      reclaim: [other.handle, 0],
      gpu_alloc: [0, [4], :uint8, false],
      gpu_open: [context, json, nil, false],
      gpu_ref: [gpu.handle],
      gpu_info: [gpu.handle],
      gpu_release: [gpu.handle],
      # No process serves an engine here, so each of these calls lacks its engine: see engine_test.exs.
      engine_connect: [make_ref(), context, name, 0],
      engine_info: [ref.handle],
      engine_graph: [make_ref(), ref.handle, model_file(), [{"a", sealed.handle}], true],
      engine_operands: [ref.handle],
      engine_bind: [
        make_ref(),
        ref.handle,
        ref.handle,
        [{"a", sealed.handle}],
        [{"b", other.handle, nil}]
      ],
      engine_rebind: [make_ref(), ref.handle, ref.handle, [{"a", sealed.handle}]],
      engine_keep: [make_ref(), ref.handle, pages],
      engine_tensor: [ref.handle, [2], :uint8, 0],
      engine_tensor_wrap: [ref.handle, sealed.handle, false, 0],
      engine_tensor_info: [ref.handle],
      engine_tensor_read: [ref.handle],
      engine_tensor_write: [ref.handle, "x"],
      engine_tensor_export: [ref.handle],
      engine_tensor_destroy: [ref.handle],
      engine_dispatch: [make_ref(), ref.handle, cancellable],
      engine_cancellable: [context],
      engine_cancel: [cancellable],
      graph_create: ["g"],
      graph_parse: [graph_text()],
      graph_read: [graph_file()],
      graph_add: [graph, 1, 0, {"y", :softmax, ["x"], [scale: 0.5, cache: :reuse]}],
      graph_write: [graph, 1, 0, :json],
      xla_register: [nil],
      xla_bind: [context, name, token, :send],
      xla_flush: [name, 0],
      xla_cancel: [name],
      xla_limit: [0],
      xla_unbind: [name]
    ]
  end

  defp members_of(map) do
    keys = ~w(v id token offset byte_size shape dtype strides device)
    keys |> Enum.map(&Map.get(map, &1)) |> List.to_tuple()
  end

  defp model_file(what \\ "loaded") do
    path = Path.join(System.tmp_dir!(), "tmesh-native-#{what}-#{System.pid()}.safetensors")
    on_exit(fn -> File.rm(path) end)

    if not File.exists?(path),
      do: File.write!(path, Tmesh.ModelFiles.safetensors([{"a", "U8", [1], "a"}]))

    path
  end

  defp model_folder do
    path = Path.join(System.tmp_dir!(), "tmesh-native-folder-#{System.pid()}")
    on_exit(fn -> File.rm_rf(path) end)
    File.mkdir_p!(path)
    File.write!(Path.join(path, "config.json"), "{}")
    path
  end

  defp graph_text, do: "graph g\nx = input : float32[2]\n"

  defp graph_file do
    path = Path.join(System.tmp_dir!(), "tmesh-native-#{System.pid()}.graph")
    on_exit(fn -> File.rm(path) end)
    File.write!(path, "graph g\n")
    path
  end

  @started [:engine_connect, :engine_graph, :engine_bind, :engine_rebind, :engine_keep] ++
             [:engine_dispatch]

  # Such a call returns a message, with the tag that is its first argument.
  defp answer(name, [tag | _more] = args) when name in @started do
    with :ok <- apply(Native, name, args) do
      receive do: ({^tag, result} -> result), after: (60_000 -> :nothing)
    end
  end

  defp answer(name, args), do: apply(Native, name, args)

  test "takes terms of every type, and survives" do
    # A wait for sockets without a writer takes as long as one for a peer.
    configure(timeout_ms: 2_000)
    {:ok, file} = File.open("/dev/null")
    deep = Enum.reduce(1..10_000, [], fn _i, list -> [list] end)

    nasty =
      [nil, :atom, 0, -1, 0x1_0000_0000_0000_0000, 1.5, "", "abc", <<1::3>>, <<0>>, [], [1 | 2]] ++
        [{}, {1}, {1, 2, 3}, %{}, self(), make_ref(), fn -> :ok end, file, deep] ++
        [List.duplicate(1, 100_000), List.to_tuple(List.duplicate(nil, 8)), Tmesh.Context.get()] ++
        [ZeroCopy.allocate!([1], :uint8).handle, {:auto, -1, 0, 0, 1}, {:none, 0, 0, 0, 1}] ++
        [{"x", true, 0o777_777}, {self(), :try, 0}, :binary.copy("x", 1_000_000)]

    for {name, args} <- calls(), i <- 0..(length(args) - 1)//1, term <- nasty do
      answer =
        try do
          answer(name, List.replace_at(args, i, term))
        rescue
          error in ArgumentError -> {:badarg, error}
        end

      assert match?({:ok, _}, answer) or match?({:error, {_, _}}, answer) or answer == :ok or
               match?({:sent, _}, answer) or match?({:used, _, _}, answer) or
               (match?({:badarg, _}, answer) and name == :context_open),
             "#{name}, argument #{i}: #{inspect(answer, limit: 5)}"
    end
  end

  test "takes each argument it is meant to" do
    calls = calls()

    for {name, args} <- calls do
      answer = answer(name, args)

      assert answer == :ok or match?({:ok, _}, answer) or refused?(name, answer),
             "#{name}: #{inspect(answer)}"
    end

    # The tokens of later calls come from earlier arguments, which live until here.
    assert calls != []
  end

  @modules [
    :fence_signal,
    :fence_wait,
    :gather,
    :seq_gather,
    :export_dmabuf,
    :from_dmabuf,
    :descriptor_close
  ]
  @and_these [:revoke, :reclaim]

  @engine_objects [:engine_info, :engine_graph, :engine_operands, :engine_bind] ++
                    [:engine_rebind, :engine_keep, :engine_dispatch] ++
                    [:engine_tensor, :engine_tensor_wrap, :engine_tensor_info] ++
                    [:engine_tensor_read, :engine_tensor_write, :engine_tensor_export] ++
                    [:engine_tensor_destroy]

  # There is no engine of that name and no XLA in this VM, and tmesh-mount may not run here.
  defp refused?(name, {:error, {:enoent, _why}})
       when name in [:engine_connect, :xla_register, :kept_path],
       do: true

  defp refused?(name, {:error, {:ebadf, _why}}) when name in @engine_objects, do: true

  defp refused?(:tensor_recv, {:error, {:epipe, _why}}), do: true
  # A dma-buf of tmesh's own is opened by its token.
  defp refused?(:from_dmabuf, {:error, {:eloop, _why}}), do: true

  # Calls that memfds do not support.
  defp refused?(name, {:error, {code, _why}}) do
    Tmesh.backend() == {:ok, :memfd} and name in (@modules ++ @and_these) and
      code in [:eopnotsupp, :ebadf]
  end

  defp refused?(_name, _answer), do: false

  test "every NIF is covered here" do
    # The calls of workers want a worker: worker_hostile_test.exs. channel_test.exs checks channel_recv.
    workers =
      ~w(worker_connect worker_send worker_recv worker_kill worker_kill_unready worker_close)a

    covered = [:janitor, :sweep, :held_by, :channel_recv] ++ workers ++ Keyword.keys(calls())
    functions = Native.__info__(:functions) |> Keyword.drop([:load]) |> Keyword.keys()
    assert Enum.sort(functions) == covered |> Enum.uniq() |> Enum.sort()
  end

  # Without the sources of locales none can be made.
  unless System.find_executable("localedef") && File.exists?("/usr/share/i18n/locales/tr_TR"),
    do: @tag(skip: "no source of a Turkish locale (package locales)")

  test "errors have their names where a small I has no dot" do
    folder = Path.join(System.tmp_dir!(), "tmesh-#{System.pid()}-locale")
    File.mkdir_p!(folder)
    on_exit(fn -> File.rm_rf!(folder) end)
    made = Path.join(folder, "tr_TR.UTF-8")
    # It ends with 1 after a warning.
    System.cmd("localedef", ["-i", "tr_TR", "-f", "UTF-8", made], stderr_to_stdout: true)
    assert File.dir?(made)

    program = """
    {:ok, _started} = Application.ensure_all_started(:tmesh)
    {:error, error} = Tmesh.ZeroCopy.allocate([1 | 2], :uint8)
    IO.write(error.type)
    """

    env = [{"LOCPATH", folder}, {"LC_ALL", "tr_TR.UTF-8"}]
    args = ["-pa", Application.app_dir(:tmesh, "ebin"), "-e", program]
    assert {said, 0} = System.cmd("elixir", args, env: env)
    # The log names the chosen backend before, unless the configuration names one.
    assert said |> String.split("\n") |> List.last() == "invalid"
  end
end
