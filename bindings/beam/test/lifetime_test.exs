# SPDX-License-Identifier: MIT
defmodule Tmesh.LifetimeTest do
  use Tmesh.Case

  alias Tmesh.{Channel, Native}

  @bytes 1_048_576

  defp data, do: :binary.copy("0123456789abcdef", div(@bytes, 16))
  defp sealed, do: ZeroCopy.from_binary!(data(), [@bytes], :uint8)

  defp collect, do: :erlang.garbage_collect()

  describe "release/1" do
    test "is refused for a ref that holds nothing" do
      description = %{ZeroCopy.allocate!([1], :uint8) | handle: nil}
      assert {:error, %Error{type: :closed}} = ZeroCopy.release(description)
      assert {:error, %Error{type: :closed}} = ZeroCopy.tie(description)
      assert {:error, %Error{type: :closed}} = ZeroCopy.release(%{description | handle: :x})

      assert {:error, %Error{type: :closed}} =
               ZeroCopy.to_binary(%{description | handle: make_ref()})
    end

    test "leaves binaries and their parts alone" do
      ref = sealed()
      binary = ZeroCopy.to_binary!(ref, copy: false)
      part = binary_part(binary, @bytes - 16, 16)
      :ok = ZeroCopy.release(ref)
      assert part == "0123456789abcdef"
      assert binary == data()
    end

    test "lets go of what a binary makes while it waits for its turn" do
      ref = sealed()
      pipe = Path.join(System.tmp_dir!(), "tmesh-#{System.pid()}-#{System.unique_integer()}")
      {"", 0} = System.cmd("mkfifo", [pipe])
      on_exit(fn -> File.rm(pipe) end)
      # Start it now: nothing can be started while no scheduler is free for files.
      script = "read go; exec 3<>'#{pipe}'; read end"
      writer = Port.open({:spawn_executable, "/bin/sh"}, args: ["-c", script])

      readers =
        for _ <- 1..:erlang.system_info(:dirty_io_schedulers),
            do: Task.async(fn -> File.open(pipe, [:read, :raw]) end)

      eventually(fn -> Enum.all?(readers, &opens?/1) end)
      release = Task.async(fn -> ZeroCopy.release(ref) end)
      eventually(fn -> Process.info(release.pid, :status) == {:status, :runnable} end)
      assert {:ok, _binary} = ZeroCopy.to_binary(ref, copy: false)
      assert Task.yield(release, 0) == nil
      Port.command(writer, "go\n")
      assert [:ok | _opened] = Task.await_many([release | readers], :infinity)
      assert {:error, %Error{type: :closed}} = ZeroCopy.to_binary(ref)
    end

    # It runs, and does not wait for one of the few schedulers that may wait.
    defp opens?(task) do
      Process.info(task.pid, [:status, :current_function]) ==
        [status: :running, current_function: {:prim_file, :open_nif, 2}]
    end

    test "races with every call" do
      for _round <- 1..200 do
        ref = ZeroCopy.from_binary!(:binary.copy("ab", 4096), [8192], :uint8)

        tasks =
          for call <- [:to_binary, :info, :release, :to_binary, :seal, :release, :to_binary] do
            Task.async(fn -> apply(ZeroCopy, call, [ref]) end)
          end

        for answer <- Task.await_many(tasks, 60_000) do
          case answer do
            {:ok, binary} when is_binary(binary) -> assert byte_size(binary) == 8192
            {:error, error} -> assert error.type == :closed
            _other -> :ok
          end
        end
      end
    end

    test "races with writes" do
      for _round <- 1..50 do
        ref = ZeroCopy.allocate!([@bytes], :uint8)
        writer = Task.async(fn -> ZeroCopy.write(ref, 0, data()) end)
        reader = Task.async(fn -> ZeroCopy.to_binary(ref) end)
        sealer = Task.async(fn -> ZeroCopy.seal(ref) end)
        :ok = ZeroCopy.release(ref)
        answers = Task.await_many([writer, reader, sealer], 60_000)
        assert Enum.all?(answers, &(&1 == :ok or is_tuple(&1)))
      end
    end
  end

  describe "garbage collection" do
    test "frees the region of a handle that no process has" do
      live = stat(:regions_live)
      in_process(fn -> ZeroCopy.allocate!([@bytes], :uint8) && :ok end)
      eventually(fn -> collect() && stat(:regions_live) == live end)
    end

    test "leaves binaries whose handle is gone" do
      live = stat(:regions_live)

      part =
        in_process(fn -> sealed() |> ZeroCopy.to_binary!(copy: false) |> binary_part(16, 128) end)

      for _i <- 1..10, do: collect()
      assert part == :binary.copy("0123456789abcdef", 8)
      assert stat(:regions_live) > live
    end

    test "leaves tokens good while a binary points into the memory" do
      ref = ZeroCopy.grant!(sealed(), :read)
      description = TensorRef.to_map!(ref)
      binary = ZeroCopy.to_binary!(ref, copy: false)
      part = binary_part(binary, 16, 128)
      :ok = ZeroCopy.release(ref)
      Tmesh.Native.sweep()
      assert in_process(fn -> ZeroCopy.to_binary!(ZeroCopy.open!(description)) end) == data()
      # Used until here.
      assert part == :binary.copy("0123456789abcdef", 8)
      assert byte_size(binary) == byte_size(data())
    end

    test "keeps up with thousands of handles and binaries" do
      live = stat(:regions_live)
      files = open_files()
      mappings = mappings()

      in_process(fn ->
        for i <- 1..3000 do
          ref = ZeroCopy.from_binary!(<<i::64>>, [1], :int64)
          <<^i::64>> = ZeroCopy.to_binary!(ref)
          if rem(i, 500) == 0, do: :erlang.garbage_collect()
        end
      end)

      eventually(fn -> collect() && stat(:regions_live) == live end)
      eventually(fn -> open_files() <= files end)
      # The emulator's own mappings come and go.
      eventually(fn -> mappings() < mappings + 500 end)
    end

    defp mappings, do: "/proc/self/maps" |> File.read!() |> String.split("\n") |> length()

    test "comes before a lack of descriptors" do
      ref = sealed()
      sent = sealed()
      {:ok, out} = Channel.create(:send)
      {:ok, into} = Channel.open(out.token, :recv)
      :ok = Channel.send(out, sent)
      named = ZeroCopy.grant!(ref, :read)
      # Garbage stays until a collection is requested.
      for flag <- [:min_heap_size, :min_bin_vheap_size], do: Process.flag(flag, 1_000_000)
      collect()

      for call <- [
            fn -> ZeroCopy.allocate([1], :uint8) end,
            fn -> ZeroCopy.open(named) end,
            fn -> ZeroCopy.to_binary(ref, copy: false) end,
            fn -> Channel.create(:recv) end,
            fn -> Channel.recv(into) end
          ] do
        for _ <- 1..20, do: ZeroCopy.allocate!([1], :uint8)
        assert {:ok, _made} = without_files(call)
      end

      assert [:ok, :ok] = [ZeroCopy.release(ref), ZeroCopy.release(sent)]
      assert [:ok, :ok] = [Channel.close(out), Channel.close(into)]
    end

    test "needs no janitor" do
      test = self()

      holder =
        spawn(fn ->
          ref = sealed()
          binary = ZeroCopy.to_binary!(ref, copy: false)
          send(test, :ready)
          Process.sleep(:infinity)
          send(test, {ref, binary})
        end)

      assert_receive :ready, 60_000
      :ok = Application.stop(:tmesh)

      try do
        # The garbage of other tests is gone with the application.
        held = open_files()
        assert {:error, %Error{type: :not_started}} = ZeroCopy.allocate([1], :uint8)
        assert {:error, %Error{type: :not_started}} = Tmesh.stats()
        Process.exit(holder, :kill)
        eventually(fn -> open_files() < held end)
      after
        :ok = Application.start(:tmesh)
      end
    end
  end

  describe "the application" do
    test "can be restarted under living handles and binaries" do
      ref = sealed()
      binary = ZeroCopy.to_binary!(ref, copy: false)
      :ok = Application.stop(:tmesh)
      assert binary == data()
      assert ZeroCopy.to_binary!(ref) == data()
      in_process(fn -> ZeroCopy.to_binary!(ref) |> byte_size() end)
      :ok = Application.start(:tmesh)
      assert ZeroCopy.to_binary!(ref) == data()
      assert :ok = ZeroCopy.release(ref)
      assert binary == data()
    end

    test "leaves nothing of itself where it is stopped" do
      files = open_files()

      for _n <- 1..3 do
        in_process(fn ->
          {:ok, arena} = Tmesh.Arena.create()
          _named = ZeroCopy.from_binary!("a", [1], :uint8, arena: arena) |> ZeroCopy.grant!(:read)
          {:ok, out} = Tmesh.Channel.create(:send)
          {:ok, into} = Tmesh.Channel.open(out.token, :recv)
          :ok = Tmesh.Channel.send(out, sealed())
          {:ok, ref} = Tmesh.Channel.recv(into)
          assert ZeroCopy.to_binary!(ref) == data()
        end)

        :ok = Application.stop(:tmesh)
        :ok = Application.start(:tmesh)
      end

      eventually(fn -> Tmesh.Native.sweep() && open_files() <= files end)
    end

    test "recovers from the death of each of its processes" do
      ref = sealed()

      for name <- [Tmesh.Janitor, Tmesh.Registry, Tmesh.Net.Names] do
        pid = Process.whereis(name)
        # This ends no pool of workers.
        pools = Process.whereis(Tmesh.WorkerSupervisor)
        Process.exit(pid, :kill)
        eventually(fn -> Process.whereis(name) not in [nil, pid] end)
        assert Process.whereis(Tmesh.WorkerSupervisor) == pools
        assert ZeroCopy.to_binary!(ref) == data()
        assert {:ok, _other} = ZeroCopy.allocate([1], :uint8)
      end
    end

    @tag :capture_log
    test "does not start with a configuration it does not understand" do
      :ok = Application.stop(:tmesh)

      try do
        for config <-
              [
                [region_pool_mb: -1],
                [region_pool_mb: :none],
                [timeout_ms: :soon],
                [max_shared_memory_mb: 1.5]
              ] ++
                [[backend: :cuda], [region_pool_mb: 0x1_0000_0000_0000]] do
          Application.put_env(:tmesh, :zero_copy, config)
          assert {:error, reason} = Application.start(:tmesh)
          assert inspect(reason, limit: :infinity) =~ "config :tmesh, :zero_copy"
        end
      after
        Application.delete_env(:tmesh, :zero_copy)
        :ok = Application.start(:tmesh)
      end
    end

    @tag :capture_log
    test "has the backend that the configuration names, or none" do
      configure(backend: :memfd)
      assert Tmesh.backend() == {:ok, :memfd}
      :ok = Application.stop(:tmesh)
      Application.put_env(:tmesh, :zero_copy, backend: :kernel)

      try do
        case Application.start(:tmesh) do
          :ok -> assert Tmesh.backend() == {:ok, :kernel}
          {:error, reason} -> assert inspect(reason, limit: :infinity) =~ "/dev/tmesh"
        end
      after
        Application.delete_env(:tmesh, :zero_copy)
        Application.start(:tmesh)
      end
    end

    test "keeps released memory for reuse by default, and none with region_pool_bytes 0" do
      for {config, kept} <- [
            {[], @bytes},
            {[region_pool_mb: nil], @bytes},
            {[region_pool_mb: 1], @bytes},
            {[region_pool_mb: 0], 0}
          ] do
        configure(config)
        {:ok, ref} = ZeroCopy.allocate([@bytes], :uint8)
        :ok = ZeroCopy.release(ref)
        assert stat(:region_pool_bytes) == kept
      end
    end
  end

  describe "an idle process that has forgotten its tensors" do
    defp forgetful(make) do
      test = self()

      pid =
        spawn_link(fn ->
          make.()
          send(test, :idle)
          Process.sleep(:infinity)
        end)

      assert_receive :idle
      pid
    end

    test "is made to let go of them while much is in use" do
      configure(idle_gc_mb: 1, cleanup_interval_ms: 20, region_pool_mb: 0)
      mib = :binary.copy("x", 1_048_576)
      kept = ZeroCopy.from_binary!(mib, [1_048_576], :uint8)
      live = stat(:regions_live)

      makers =
        for _ <- 1..5,
            do: forgetful(fn -> ZeroCopy.from_binary!(mib, [1_048_576], :uint8) end)

      # It received another process's tensor.
      ref = ZeroCopy.from_binary!(mib, [1_048_576], :uint8)
      description = TensorRef.to_map!(ref)

      reader =
        forgetful(fn -> <<"x", _::binary>> = ZeroCopy.to_binary!(ZeroCopy.open!(description)) end)

      :ok = ZeroCopy.release(ref)
      # No process here collects garbage: only the janitor does.
      eventually(fn -> stat(:regions_live) == live end)
      assert Enum.all?([reader | makers], &Process.alive?/1)
      ZeroCopy.release!(kept)
    end

    # Since OTP 27 the emulator does not see the size of the memory behind a binary, either.
    test "is made to let go of a binary, when it has no ref any more" do
      configure(idle_gc_mb: 1, cleanup_interval_ms: 20, region_pool_mb: 0)
      mib = :binary.copy("x", 1_048_576)
      kept = ZeroCopy.from_binary!(mib, [1_048_576], :uint8)
      live = stat(:regions_live)

      reader =
        forgetful(fn ->
          made = fn ->
            ref = ZeroCopy.from_binary!(mib, [1_048_576], :uint8)
            Process.put(:binary, ZeroCopy.to_binary!(ref, copy: false))
            :ok = ZeroCopy.release(ref)
          end

          made.()
          # This collects the handle, and the binary stays.
          :erlang.garbage_collect()
          <<"x", _rest::binary>> = Process.delete(:binary)
        end)

      eventually(fn -> stat(:regions_live) == live end)
      assert Process.alive?(reader)
      ZeroCopy.release!(kept)
    end

    test "is made to let go of what it forgot after it had seemed idle" do
      configure(idle_gc_mb: 1, cleanup_interval_ms: 20, region_pool_mb: 0)
      kept = ZeroCopy.allocate!([1_048_576], :uint8)
      live = stat(:regions_live)
      test = self()

      pid =
        spawn_link(fn ->
          ref = ZeroCopy.allocate!([1_048_576], :uint8)
          send(test, :made)

          receive do
            :forget -> send(test, ref.shape)
          end

          Process.sleep(:infinity)
        end)

      assert_receive :made
      how = fn -> elem(:sys.get_state(Tmesh.Janitor, :infinity).seen[pid] || {0, :unseen}, 1) end
      eventually(fn -> how.() == :collected end)
      send(pid, :forget)
      assert_receive [1_048_576]
      eventually(fn -> stat(:regions_live) == live end)
      ZeroCopy.release!(kept)
    end

    test "is made to let go of what it forgot after it had a little to do again and again" do
      configure(idle_gc_mb: 1, cleanup_interval_ms: 20, region_pool_mb: 0)
      kept = ZeroCopy.allocate!([1_048_576], :uint8)
      live = stat(:regions_live)
      pid = spawn_link(fn -> ticks(ZeroCopy.allocate!([1_048_576], :uint8)) end)

      times = fn ->
        case :sys.get_state(Tmesh.Janitor, :infinity).seen[pid] do
          {_reductions, :collected, times, _alone} -> times
          _other -> 0
        end
      end

      for tick <- 1..4 do
        eventually(fn -> times.() >= tick end)
        send(pid, :tick)
      end

      eventually(fn -> times.() >= 5 end)
      send(pid, :forget)
      eventually(fn -> stat(:regions_live) == live end)
      assert Process.alive?(pid)
      ZeroCopy.release!(kept)
    end

    defp ticks(ref) do
      receive do
        :tick -> ticks(ref)
        :forget -> Process.sleep(:infinity)
      end
    end

    test "is left alone otherwise" do
      configure(idle_gc_mb: 0, cleanup_interval_ms: 20)
      one = forgetful(fn -> ZeroCopy.allocate!([1_048_576], :uint8) end)
      # It reports that it is idle just before it is.
      eventually(fn -> Process.info(one, :status) == {:status, :waiting} end)
      before = Process.info(one, :reductions)
      # The second look would collect it.
      %{looked: first} = :sys.get_state(Tmesh.Janitor, :infinity)

      eventually(fn ->
        send(Tmesh.Janitor, :sweep)
        :sys.get_state(Tmesh.Janitor, :infinity).looked > first + 100
      end)

      assert Process.info(one, :reductions) == before
    end
  end

  describe "hold" do
    test "keeps what a process has handed over that is gone" do
      for encode <- [
            &TensorRef.to_json!(&1, hold: true),
            &TensorRef.to_map!(&1, hold: 3_600_000),
            &TensorRef.to_map!(ZeroCopy.grant!(&1, :read, hold: 3_600_000))
          ] do
        description = in_process(fn -> encode.(sealed()) end)
        for _i <- 1..3, do: collect()
        assert {:error, %Error{type: :timeout, details: details}} = Tmesh.flush(0)
        assert %{held: 1, held_bytes: bytes} = details
        assert bytes >= byte_size(data())
        assert in_process(fn -> ZeroCopy.to_binary!(ZeroCopy.open!(description)) end) == data()
        assert Tmesh.flush() == :ok
      end
    end

    test "is for a time, and for what is there" do
      ref = sealed()

      for wrong <- [0, -1, 24 * 3_600_000 + 1, :infinity, 1.5, nil] do
        assert {:error, %Error{type: :invalid}} = TensorRef.to_json(ref, hold: wrong)
        assert {:error, %Error{type: :invalid}} = ZeroCopy.grant(ref, :read, hold: wrong)
      end

      assert {:error, %Error{type: :invalid}} = TensorRef.to_json(ref, linger: 1)
      :ok = ZeroCopy.release(ref)
      assert {:error, %Error{type: :closed}} = TensorRef.to_json(ref, hold: true)
      assert Tmesh.flush() == :ok
    end
  end

  describe "keep/2" do
    test "holds a tensor for a process that does not have the ref" do
      owner = spawn(fn -> Process.sleep(:infinity) end)

      description =
        in_process(fn ->
          ref = sealed()
          :ok = ZeroCopy.tie(ref, owner)
          %{ZeroCopy.grant!(ref, :read) | handle: nil}
        end)

      for _i <- 1..10, do: collect()
      assert ZeroCopy.to_binary!(description) == data()

      Process.exit(owner, :kill)
      # In a process of its own: a binary that was still reachable would keep the region.
      gone? = fn -> match?({:error, %{type: :not_found}}, ZeroCopy.to_binary(description)) end
      eventually(fn -> in_process(gone?) end)
    end

    test "the last owner counts, and release ends it" do
      owner = spawn(fn -> Process.sleep(:infinity) end)
      ref = ZeroCopy.grant!(sealed(), :read)
      :ok = ZeroCopy.tie(ref, owner)
      :ok = ZeroCopy.tie(ref)
      Process.exit(owner, :kill)
      assert ZeroCopy.to_binary!(ref) == data()
      assert :ok = ZeroCopy.release(ref)
      assert {:error, %Error{}} = ZeroCopy.to_binary(ref)
      assert %{owners: owners} = :sys.get_state(Tmesh.Registry, :infinity)
      refute is_map_key(owners, ref.handle)
    end

    defp hibernations(count) do
      receive do
        {:trace, _registry, :call, {:proc_lib, :hibernate, _arguments}} -> hibernations(count + 1)
      after
        0 -> count
      end
    end

    test "each of many owners that end together costs as much as one" do
      live = stat(:regions_live)
      # Use one region, which takes one descriptor.
      {:ok, arena} = Tmesh.Arena.create()

      owners =
        for _ <- 1..3000 do
          owner = spawn(fn -> Process.sleep(:infinity) end)
          :ok = ZeroCopy.tie(ZeroCopy.allocate!([1], :uint8, arena: arena), owner)
          owner
        end

      registry = Process.whereis(Tmesh.Registry)
      work = fn -> registry |> Process.info(:reductions) |> elem(1) end
      before = work.()
      :erlang.trace_pattern({:proc_lib, :hibernate, 3}, true, [])
      :erlang.trace(registry, true, [:call])
      :erlang.suspend_process(registry)
      Enum.each(owners, &Process.exit(&1, :kill))
      eventually(fn -> waiting(registry) >= 3000 end)
      :erlang.resume_process(registry)
      eventually(fn -> waiting(registry) == 0 end)
      assert div(work.() - before, 3000) < 300
      # Each hibernation scans everything that is held.
      :erlang.trace(registry, false, [:call])
      :erlang.trace_pattern({:proc_lib, :hibernate, 3}, false, [])
      assert hibernations(0) < 300
      eventually(fn -> collect() && stat(:regions_live) <= live end)
    end

    defp waiting(pid), do: pid |> Process.info(:message_queue_len) |> elem(1)

    test "an owner that has ended already keeps nothing" do
      owner = spawn(fn -> :ok end)
      ref = sealed()
      :ok = ZeroCopy.tie(ref, owner)
      eventually(fn -> :sys.get_state(Tmesh.Registry, :infinity).owners |> map_size() == 0 end)
    end
  end

  describe "code loading" do
    test "leaves handles and binaries working" do
      ref = sealed()
      binary = ZeroCopy.to_binary!(ref, copy: false)

      for _round <- 1..3 do
        :code.purge(Native)
        assert {:module, Native} = :code.load_file(Native)
        assert ZeroCopy.to_binary!(ref) == data()
        assert {:ok, %{sealed: true}} = ZeroCopy.info(ref)
      end

      assert :ok = ZeroCopy.release(ref)
      assert binary == data()
    end

    test "closes handles, not binaries, when the module was gone in between" do
      ref = sealed()
      binary = ZeroCopy.to_binary!(ref, copy: false)
      :code.purge(Native)
      :code.delete(Native)
      :code.purge(Native)
      :erlang.garbage_collect()
      assert binary == data()
      assert {:module, Native} = :code.load_file(Native)
      assert {:error, %Error{type: :closed}} = ZeroCopy.to_binary(ref)
      assert {:error, %Error{type: :not_started}} = ZeroCopy.allocate([1], :uint8)
      assert binary == data()
      :ok = Application.stop(:tmesh)
      :ok = Application.start(:tmesh)
      assert sealed() |> ZeroCopy.to_binary!() == binary
    end

    @tag :capture_log
    test "refuses another build of the library over living objects, and stays" do
      ref = sealed()
      app = :code.lib_dir(:tmesh)
      other = Path.join(System.tmp_dir!(), "tmesh-#{System.pid()}/tmesh")
      File.mkdir_p!(other)
      File.cp_r!(app, other)

      try do
        assert :code.replace_path(:tmesh, to_charlist(Path.join(other, "ebin")))
        :code.purge(Native)
        assert {:error, :on_load_failure} = :code.load_file(Native)
        assert ZeroCopy.to_binary!(ref) == data()
        assert {:ok, _other} = ZeroCopy.allocate([1], :uint8)
      after
        :code.replace_path(:tmesh, to_charlist(Path.join(app, "ebin")))
        File.rm_rf!(Path.dirname(other))
      end
    end
  end
end
