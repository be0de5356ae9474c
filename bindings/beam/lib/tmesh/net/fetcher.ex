# SPDX-License-Identifier: MIT
defmodule Tmesh.Net.Fetcher do
  @moduledoc false
  # tmesh-net as a port: its messages in, its commands out. docs/man/tmesh-net.1.scd has them.

  alias Tmesh.{Error, Native}
  alias Tmesh.Worker.Payload

  @start_ms 30_000

  @doc "The port, and the runtime directory that it is for."
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

          _other ->
            {:error, Error.new(:protocol, "#{options[:program]} is no tmesh-net of this version")}
        end

      {^port, {:exit_status, status}} ->
        {:error, Error.new(:gone, "tmesh-net ended with status #{status}; it said why on stderr")}
    after
      @start_ms -> {:error, Error.new(:timeout, "tmesh-net did not begin within #{@start_ms} ms")}
    end
  rescue
    error in ErlangError ->
      {:error, Error.new(:not_found, "#{options[:program]}: #{inspect(error.original)}")}
  end

  @spec read(binary()) :: {:ok, map()} | :error
  def read(text) do
    case Native.json_decode(text) do
      {:ok, %{"v" => 1, "type" => type} = message} when is_binary(type) -> {:ok, message}
      _other -> :error
    end
  end

  @doc "A command; what a port that has ended gets is lost: its end is told of."
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

  # The words of the library; others are the system's.
  @errnos Map.new(
            ~w(enoent eacces eperm ebusy eexist estale edquot enomem emfile enfile eproto einval
               eoverflow etimedout eagain eopnotsupp enodev epipe ecanceled eio)a,
            &{&1 |> Atom.to_string() |> String.upcase(), &1}
          )

  @spec error(map()) :: Error.t()
  def error(%{"errno" => "ECANCELED", "message" => message}), do: Error.new(:cancelled, message)

  def error(%{"errno" => errno, "message" => message}),
    do: Error.from_native({Map.get(@errnos, errno, :eio), message})
end
