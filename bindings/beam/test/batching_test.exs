# SPDX-License-Identifier: MIT
defmodule Tmesh.BatchingTest do
  @moduledoc false
  use Tmesh.Case, backend: :any

  alias Tmesh.{Batching, Batching.Request}

  @seeded Path.expand("../../../tests/demo/seeded.py", __DIR__)
  @ggml System.get_env("TMESH_GGML", "") != "" and File.read!("/proc/cpuinfo") =~ "avx2" and
          File.exists?(@seeded)

  defp temporary do
    folder = Path.join(System.tmp_dir!(), "b-#{System.pid()}-#{System.unique_integer([:positive])}")
    File.mkdir_p!(folder)
    on_exit(fn -> File.rm_rf!(folder) end)
    folder
  end

  describe "a generator that the test plays" do
    setup do
      path = Path.join(temporary(), "s")
      {:ok, listener} = listen(path)
      client = start_supervised!({Batching, path: path})
      %{path: path, listener: listener, client: client}
    end

    defp listen(path, opts \\ []) do
      :gen_tcp.listen(0, opts ++ [:binary, packet: :line, active: false, ifaddr: {:local, path}])
    end

    # Return the sockets that fill the queue.
    defp fill(path, sockets \\ []) do
      # A socket that reads by itself is closed as soon as it finds that no process is at the other end.
      {:ok, socket} = :gen_tcp.connect({:local, path}, 0, [:binary, active: false])

      {:ok, [{:raw, 1, 17, <<_pid::32, uid::native-32, _gid::32>>}]} =
        :inet.getopts(socket, [{:raw, 1, 17, 12}])

      if uid == 0xFFFFFFFF, do: sockets, else: fill(path, [socket | sockets])
    end

    # Return the client's next line, as its words.
    defp heard(socket) do
      {:ok, line} = :gen_tcp.recv(socket, 0, 60_000)
      {:ok, map} = Tmesh.Native.json_decode(line)
      map
    end

    defp accept(listener) do
      {:ok, socket} = :gen_tcp.accept(listener, 60_000)
      socket
    end

    defp later(function), do: Task.async(function)

    test "tokens come as events, in order, of the request that they are of", context do
      {:ok, one} = Batching.submit(context.client, [1, 2], 3, stop: [7], temperature: 0.5, seed: 4)
      {:ok, two} = Batching.submit(context.client, [9], 1)
      socket = accept(context.listener)

      assert heard(socket) == %{
               "id" => one.id,
               "prompt" => [1, 2],
               "max_tokens" => 3,
               "stop" => [7],
               "temperature" => 0.5,
               "seed" => 4
             }

      assert %{"id" => id, "temperature" => 0, "stop" => []} = heard(socket)
      assert id == two.id

      # Send it in pieces, with tokens of a request that was never made.
      for piece <- [
            ~s({"id":#{two.id},"tok),
            ~s(en":5}\n{"id":#{one.id},"token":6}\n{"id":99,"token":1}\n),
            ~s({"id":#{two.id},"done":"length"}\n{"id":#{one.id},"error":"so it is"}\n)
          ],
          do: :ok = :gen_tcp.send(socket, piece)

      assert_receive {Batching, ref, {:token, 5}} when ref == two.ref, 60_000
      assert_receive {Batching, ref, {:done, :length}} when ref == two.ref, 60_000
      assert_receive {Batching, ref, {:token, 6}} when ref == one.ref, 60_000
      assert_receive {Batching, ref, {:error, error}} when ref == one.ref, 60_000
      assert %Error{type: :invalid, message: "so it is"} = error
      # It had ended: nothing is sent.
      assert Batching.cancel(one) == :ok
      {:ok, _three} = Batching.submit(context.client, [3], 1)
      assert %{"prompt" => [3]} = heard(socket)
    end

    test "a deadline ends a request, also of a generator that is silent", context do
      call = later(fn -> Batching.generate(context.client, [1], 9, timeout: 20) end)
      socket = accept(context.listener)
      assert %{"id" => id, "prompt" => [1]} = heard(socket)
      assert {:error, %Error{type: :timeout}} = Task.await(call, 60_000)
      assert heard(socket) == %{"id" => id, "cancel" => true}
      # Its later tokens belong to no request, and the next request is whole.
      call = later(fn -> Batching.generate(context.client, [2], 1, timeout: 600_000) end)
      assert %{"id" => next, "prompt" => [2]} = heard(socket)
      :ok = :gen_tcp.send(socket, ~s({"id":#{id},"token":1}\n{"id":#{id},"done":"cancelled"}\n))
      :ok = :gen_tcp.send(socket, ~s({"id":#{next},"token":8}\n{"id":#{next},"done":"length"}\n))
      assert Task.await(call, 60_000) == {:ok, %{tokens: [8], done: :length}}
    end

    test "a generator that does not read keeps no more than a bound in memory", context do
      prompt = List.duplicate(123_456, 100_000)

      # Requests end with their processes, which makes room for others. Their unread bytes still count.
      results =
        for _request <- 1..100 do
          fn -> Batching.submit(context.client, prompt, 1) end |> later() |> Task.await(60_000)
        end

      assert {:error, %Error{type: :busy, message: message}} = List.last(results)
      assert message =~ "has not read"
      assert Enum.count(results, &match?({:ok, _request}, &1)) in 10..60

      # A late reader gets them whole, and there is room again.
      socket = accept(context.listener)
      :ok = :inet.setopts(socket, packet: :raw)
      reader = spawn_link(fn -> read_all(socket) end)
      :ok = :gen_tcp.controlling_process(socket, reader)
      eventually(fn -> match?({:ok, _request}, Batching.submit(context.client, [1], 1)) end)
    end

    defp read_all(socket) do
      with {:ok, _data} <- :gen_tcp.recv(socket, 0), do: read_all(socket)
    end

    test "who takes no more, or ends, cancels; so does cancel/1", context do
      call = later(fn -> context.client |> Batching.stream([1], 9) |> Enum.take(2) end)
      socket = accept(context.listener)
      assert %{"id" => id} = heard(socket)
      for token <- [4, 5], do: :ok = :gen_tcp.send(socket, ~s({"id":#{id},"token":#{token}}\n))
      assert Task.await(call, 60_000) == [4, 5]
      assert heard(socket) == %{"id" => id, "cancel" => true}

      caller = spawn(fn -> Batching.generate(context.client, [2], 9) end)
      assert %{"id" => id} = heard(socket)
      Process.exit(caller, :kill)
      assert heard(socket) == %{"id" => id, "cancel" => true}

      {:ok, %Request{id: id, ref: ref} = request} = Batching.submit(context.client, [3], 9)
      assert %{"prompt" => [3]} = heard(socket)
      assert Batching.cancel(request) == :ok
      assert heard(socket) == %{"id" => id, "cancel" => true}
      :ok = :gen_tcp.send(socket, ~s({"id":#{id},"done":"cancelled"}\n))
      assert_receive {Batching, ^ref, {:done, :cancelled}}, 60_000
    end

    test "a generator that ends, or says what is no answer, costs its requests", context do
      for said <- [
            :close,
            "nothing\n",
            ~s({"id":1}\n),
            ~s({"id":"1","token":2}\n),
            ~s({"id":1,"token":"2"}\n),
            <<255, "\n">>,
            String.duplicate("x", 1_100_000)
          ] do
        call = later(fn -> Batching.generate(context.client, [1], 9) end)
        socket = accept(context.listener)
        assert %{"prompt" => [1]} = heard(socket)
        if said != :close, do: :gen_tcp.send(socket, said)
        if said == :close, do: :gen_tcp.close(socket)
        assert {:error, %Error{type: :gone}} = Task.await(call, 60_000)
        :gen_tcp.close(socket)
      end

      :gen_tcp.close(context.listener)
      assert {:error, %Error{type: :gone, message: words}} = Batching.submit(context.client, [1], 1)
      assert words =~ "python -m tmesh.batching"
      File.rm!(context.path)
      assert {:error, %Error{type: :not_found}} = Batching.submit(context.client, [1], 1)
      # A later generator serves the same client.
      {:ok, listener} = listen(context.path)
      assert {:ok, _request} = Batching.submit(context.client, [1], 1)
      assert %{"prompt" => [1]} = listener |> accept() |> heard()
    end

    test "a generator that takes no connection is a timeout, and delays no other call" do
      path = Path.join(temporary(), "f")
      {:ok, full} = listen(path, backlog: 0)
      waits = start_supervised!({Batching, path: path}, id: :waits)
      sockets = fill(path)
      submit = &Batching.submit(waits, [1], 1, timeout: &1)
      assert {:error, %Error{type: :timeout, message: words}} = submit.(30)
      assert words =~ "took no connection"
      call = later(fn -> Batching.generate(waits, [2], 1, timeout: 600_000) end)
      assert {:error, %Error{type: :timeout}} = submit.(0)
      # It takes them in the end, after those that came first.
      for _socket <- sockets, do: accept(full)
      assert %{"id" => 1, "prompt" => [2]} = full |> accept() |> heard()
      Task.shutdown(call, :brutal_kill)
    end

    test "another user's is refused", context do
      # Any Python works: it needs none of tmesh's packages.
      {uid, 0} = System.cmd("id", ["-u"])

      if String.trim(uid) == "0" do
        path = Path.join(temporary(), "o")

        program = """
        import os, socket, sys
        s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); os.setuid(65534); s.listen(); print("ready", flush=True)
        sys.stdin.read()
        """

        port =
          Port.open({:spawn_executable, System.find_executable("python3")}, [
            :binary,
            args: ["-c", program, path]
          ])

        assert_receive {^port, {:data, "ready" <> _end}}, 60_000
        client = start_supervised!({Batching, path: path}, id: :other)
        assert {:error, %Error{type: :access, message: words}} = Batching.submit(client, [1], 1)
        assert words =~ "user 65534"
        Port.close(port)
      else
        assert {:ok, _request} = Batching.submit(context.client, [1], 1)
      end
    end

    test "what is no request is refused here, and so is one too many", context do
      for {prompt, max_tokens, opts, words} <- [
            {[1.5], 1, [], "tokens"},
            {[-1], 1, [], "tokens"},
            {:none, 1, [], "tokens"},
            {[1], 1, [stop: 3], "tokens"},
            {[1], :many, [], "numbers"},
            {[1], 1, [temperature: "1"], "numbers"},
            {[1], 1, [timeout: -1], "timeout"},
            {[1], 1, [until: 1], "unknown options"},
            {List.duplicate(1_000_000, 200_000), 1, [], "1 MiB"}
          ] do
        assert {:error, %Error{type: :invalid, message: message}} =
                 Batching.submit(context.client, prompt, max_tokens, opts)

        assert message =~ words
      end

      requests = for n <- 1..256, do: Batching.submit(context.client, [n], 1)
      assert Enum.all?(requests, &match?({:ok, _request}, &1))
      assert {:error, %Error{type: :busy}} = Batching.submit(context.client, [1], 1)
    end
  end

  describe "python -m tmesh.batching" do
    cond do
      not @ggml ->
        @describetag skip: "only where TMESH_GGML names ggml's library, on a processor with AVX2"

      not Tmesh.PythonPool.available?() ->
        @describetag skip: Tmesh.PythonPool.why_not()

      true ->
        :ok
    end

    setup do
      folder = temporary()
      model = Path.join(folder, "model.gguf")
      python = Tmesh.PythonPool.python()
      {_said, 0} = System.cmd(python, ["-B", @seeded, model, "qwen2", "7"])
      socket = Path.join(folder, "s")
      args = ["-P", "-m", "tmesh.batching", model, "--socket=#{socket}", "--lanes=3"]
      port = Port.open({:spawn_executable, python}, [:binary, :exit_status, args: args, line: 99])
      {:os_pid, pid} = Port.info(port, :os_pid)
      on_exit(fn -> System.cmd("kill", ["-KILL", "#{pid}"], stderr_to_stdout: true) end)
      assert_receive {^port, {:data, {:eol, "ready"}}}, 120_000
      %{client: start_supervised!({Batching, path: socket}), port: port, pid: pid}
    end

    test "each of many gets its tokens as alone, and who is cancelled is out", context do
      prompts = for n <- 1..8, do: Enum.to_list(n..(3 * n))
      alone = for prompt <- prompts, do: Batching.generate!(context.client, prompt, 12)
      assert Enum.all?(alone, &(length(&1.tokens) == 12 and &1.done == :length))

      together =
        prompts
        |> Enum.map(&Task.async(fn -> Batching.generate!(context.client, &1, 12) end))
        |> Task.await_many(:infinity)

      assert together == alone
      [first | _more] = alone
      stop = Enum.at(first.tokens, 3)
      length = Enum.find_index(first.tokens, &(&1 == stop)) + 1

      assert Batching.generate!(context.client, hd(prompts), 12, stop: [stop]) ==
               %{tokens: Enum.take(first.tokens, length), done: :stop}

      # A long request in each lane: they are cancelled, and others are served.
      requests =
        for _lane <- 1..3 do
          {:ok, request} = Batching.submit(context.client, [1], 500)
          request
        end

      for %{ref: ref} <- requests, do: assert_receive({Batching, ^ref, {:token, _token}}, 60_000)
      Enum.each(requests, &Batching.cancel/1)

      for %{ref: ref} <- requests,
          do: assert_receive({Batching, ^ref, {:done, _done}}, 60_000)

      assert {:error, %Error{type: :invalid, message: words}} =
               Batching.generate(context.client, [1], 5_000)

      assert words =~ "max_tokens"
      assert context.client |> Batching.stream([1, 2, 3], 12) |> Enum.count() == 12

      # The generator is stopped, but the deadline still comes.
      System.cmd("kill", ["-STOP", "#{context.pid}"])

      eventually(fn ->
        Enum.all?(Path.wildcard("/proc/#{context.pid}/task/*/stat"), &(File.read!(&1) =~ ~r/\) T /))
      end)

      assert {:error, %Error{type: :timeout}} =
               Batching.generate(context.client, [1], 5, timeout: 50)

      System.cmd("kill", ["-CONT", "#{context.pid}"])
      assert Batching.generate!(context.client, hd(prompts), 12) == first
      System.cmd("kill", ["-KILL", "#{context.pid}"])
      assert_receive {_port, {:exit_status, _status}}, 60_000
      assert {:error, %Error{type: :gone}} = Batching.generate(context.client, [1], 5)
    end
  end
end
