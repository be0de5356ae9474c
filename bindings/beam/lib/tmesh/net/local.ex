# SPDX-License-Identifier: MIT
defmodule Tmesh.Net.Local do
  @moduledoc false
  # A socket for other programs of this machine, in the runtime directory, which only this user can enter. A message is
  # four bytes of its length, the most significant first, and JSON. A connection has one request:
  #
  #   {"v":1,"type":"open","timeout_ms":10000,"ref":{...}}    or "name":"..." in place of the ref
  #
  # {"v":1,"type":"waiting"} comes each second, then one of
  #
  #   {"v":1,"type":"opened","ref":{...}}                     of memory of this machine
  #   {"v":1,"type":"error","errno":"ENOENT","message":"..."}  and "sealed":true where a seal is the reason
  #
  # An opened value is held until the client closes the connection, or for 30 s.

  require Logger

  alias Tmesh.{Bundle, Error, Native, ZeroCopy}
  alias Tmesh.Worker.Payload
  alias Tmesh.ZeroCopy.TensorRef

  @socket "net.sock"
  # The most clients at a time; others wait in the socket's queue.
  @clients 64
  @max_bytes 4 * 1024 * 1024
  @request_ms 10_000
  @waiting_ms 1_000
  @hold_ms 30_000

  @doc "Listen in the runtime directory, and end with the calling process. The log names clients that it cannot serve."
  @spec start(Path.t()) :: :ok
  def start(dir) do
    path = Path.join(dir, @socket)

    # The fetcher's lock guarantees that no other net uses it.
    _removed = File.rm(path)

    options =
      [:binary, packet: 4, packet_size: @max_bytes, active: false, backlog: 128] ++
        [ifaddr: {:local, path}, send_timeout: @request_ms, send_timeout_close: true]

    with {:ok, listen} <- :gen_tcp.listen(0, options),
         :ok <- File.chmod(path, 0o600) do
      for _number <- 1..@clients, do: spawn_link(fn -> accept(listen) end)
      :ok
    else
      {:error, why} ->
        Logger.warning("tmesh: other programs cannot open by this net: #{path}: #{inspect(why)}")
    end
  end

  defp accept(listen) do
    case :gen_tcp.accept(listen) do
      {:ok, socket} ->
        _ = serve(socket)
        :gen_tcp.close(socket)
        forget()
        :erlang.garbage_collect()
        accept(listen)

      # The net has ended.
      {:error, :closed} ->
        :ok

      # For example, no descriptor is free.
      {:error, _why} ->
        Process.sleep(100)
        accept(listen)
    end
  end

  # Drop late messages of the socket.
  defp forget do
    receive do
      _late -> forget()
    after
      0 -> :ok
    end
  end

  defp serve(socket) do
    with {:ok, text} <- :gen_tcp.recv(socket, 0, @request_ms),
         {:ok, what, timeout} <- read(text),
         :ok <- :inet.setopts(socket, active: :once) do
      {pid, monitor} = spawn_monitor(__MODULE__, :answer, [what, timeout])
      wait(socket, pid, monitor)
    else
      {:error, %Error{} = error} -> say_error(socket, error)
      {:error, _closed} -> :ok
    end
  end

  @doc false
  @spec answer({:ref, map()} | {:name, String.t()}, timeout()) :: no_return()
  def answer(what, timeout), do: exit({__MODULE__, open(what, timeout)})

  # If the client goes, its open ends.
  defp wait(socket, pid, monitor) do
    receive do
      {:DOWN, ^monitor, :process, _pid, {__MODULE__, {:ok, opened}}} ->
        hand_over(socket, opened)

      {:DOWN, ^monitor, :process, _pid, {__MODULE__, {:error, error}}} ->
        say_error(socket, error)

      {:DOWN, ^monitor, :process, _pid, reason} ->
        Logger.error("tmesh: a client's open ended: #{inspect(reason)}")
        say_error(socket, Error.new(:gone, "Tmesh.Net failed; its log says why"))

      # The client is gone, or sends more than one request.
      event when elem(event, 1) == socket ->
        give_up(pid, monitor)
    after
      @waiting_ms ->
        case say(socket, ~s({"v":1,"type":"waiting"})) do
          :ok -> wait(socket, pid, monitor)
          {:error, _gone} -> give_up(pid, monitor)
        end
    end
  end

  defp give_up(pid, monitor) do
    Process.exit(pid, :kill)

    receive do
      {:DOWN, ^monitor, :process, _pid, {__MODULE__, {:ok, opened}}} -> release(opened)
      {:DOWN, ^monitor, :process, _pid, _reason} -> :ok
    end
  end

  defp hand_over(socket, opened) do
    with {:ok, json} <- json(opened),
         :ok <- say(socket, [~s({"v":1,"type":"opened","ref":), json, "}"]) do
      receive do
        event when elem(event, 1) == socket -> :ok
      after
        @hold_ms -> :ok
      end
    else
      {:error, %Error{} = error} -> say_error(socket, error)
      {:error, _closed} -> :ok
    end

    release(opened)
  end

  defp json(%TensorRef{} = ref), do: TensorRef.to_json(ref)
  defp json(%Bundle{} = bundle), do: Bundle.to_json(bundle)

  defp release(%TensorRef{} = ref), do: ZeroCopy.release(ref)
  defp release(%Bundle{} = bundle), do: Bundle.release(bundle)

  defp open({:ref, map}, timeout), do: Tmesh.Net.open(map, timeout: timeout)
  defp open({:name, name}, timeout), do: Tmesh.Net.open_name(name, timeout: timeout)

  defp read(text) do
    case Native.json_decode(text) do
      {:ok, %{"v" => 1, "type" => "open", "timeout_ms" => timeout, "ref" => %{} = ref} = request}
      when map_size(request) == 4 ->
        {:ok, {:ref, ref}, timeout}

      {:ok, %{"v" => 1, "type" => "open", "timeout_ms" => timeout, "name" => name} = request}
      when map_size(request) == 4 ->
        {:ok, {:name, name}, timeout}

      _other ->
        {:error, Error.new(:protocol, "Tmesh.Net understands no such request")}
    end
  end

  defp say_error(socket, error) do
    # For other programs a net that has ended is gone. Only EPERM from a seal becomes the SealedError of a reader.
    errno = if error.type == :not_started, do: "EPIPE", else: Error.word(error.type)
    sealed = if error.type == :sealed, do: ~s("sealed":true,), else: ""

    _ =
      say(socket, [
        ~s({"v":1,"type":"error","errno":"#{errno}",#{sealed}"message":),
        Payload.string(error.message),
        "}"
      ])

    :ok
  end

  defp say(socket, text), do: :gen_tcp.send(socket, text)
end
