# SPDX-License-Identifier: MIT
defmodule Tmesh.Net.Fetcher do
  @moduledoc false
  # tmesh-net as a port: it sends messages and takes commands. docs/man/tmesh-net.1.scd lists them.

  alias Tmesh.{Error, Native}
  alias Tmesh.Worker.Payload

  @start_ms 30_000

  @doc "Open the port, and return it with its runtime directory."
  @spec open(keyword()) :: {:ok, port(), Path.t()} | {:error, Error.t()}
  def open(options) do
    with {:ok, backend} <- Tmesh.backend(), do: open(options, backend)
  end

  defp open(options, backend) do
    args = ["--address", options[:address], "--provider", options[:provider]]

    port =
      Port.open({:spawn_executable, options[:program]}, [
        :binary,
        :exit_status,
        packet: 4,
        args: args,
        env: [{~c"TMESH_BACKEND", Atom.to_charlist(backend)}]
      ])

    receive do
      {^port, {:data, text}} ->
        case read(text) do
          {:ok, %{"type" => "hello", "runtime_dir" => dir}} when is_binary(dir) ->
            {:ok, port, dir}

          {:ok, %{"type" => "end", "message" => why}} when is_binary(why) ->
            ended(port, why)

          _other ->
            {:error, Error.new(:protocol, "#{options[:program]} is no tmesh-net of this version")}
        end

      {^port, {:exit_status, status}} ->
        {:error, Error.new(:gone, "tmesh-net #{how(status)}")}
    after
      @start_ms -> {:error, Error.new(:timeout, "tmesh-net did not begin within #{@start_ms} ms")}
    end
  rescue
    error in ErlangError ->
      {:error, Error.new(:not_found, "#{options[:program]}: #{inspect(error.original)}")}
  end

  # Keep the exit status out of the caller's mailbox.
  defp ended(port, why) do
    receive do
      {^port, {:exit_status, _status}} -> {:error, Error.new(:gone, "tmesh-net ended: #{why}")}
    after
      @start_ms -> {:error, Error.new(:gone, "tmesh-net is to end: #{why}")}
    end
  end

  @doc "Describe the end of a fetcher that gave no reason."
  @spec how(non_neg_integer()) :: String.t()
  def how(status) when status > 128, do: "was ended by signal #{status - 128}"
  def how(status), do: "ended with status #{status}; what it said is on stderr"

  @spec read(binary()) :: {:ok, map()} | :error
  def read(text) do
    case Native.json_decode(text) do
      {:ok, %{"v" => 1, "type" => type} = message} when is_binary(type) -> {:ok, message}
      _other -> :error
    end
  end

  @doc "Send a command. A port that has ended loses it, and its end is reported by a message."
  @spec command(port(), String.t(), non_neg_integer(), keyword(String.t() | integer())) :: :ok
  def command(port, type, id, members) do
    text = [
      ~s({"v":1,"type":"#{type}","id":#{id}),
      for({name, value} <- members, do: [~s(,"#{name}":), json(value)]),
      "}"
    ]

    send(port, {self(), {:command, text}})
    :ok
  end

  defp json(value) when is_integer(value), do: Integer.to_string(value)
  defp json(value), do: Payload.string(value)

  @spec error(map()) :: Error.t()
  def error(%{"errno" => errno, "message" => message}), do: Error.from_word(errno, message)
end
