# SPDX-License-Identifier: MIT
defmodule Tmesh.Engine.Devices do
  @moduledoc false
  # What tmeshctl-devices prints: no engine is loaded into the emulator.

  alias Tmesh.{Error, Native, Options}

  @device ~w(id kind name node processors memory memory_free engines never_seen reason)a
  @engine ~w(name version library reads dtypes operators never_seen reason)a
  # Its errors are in what it ends with: what an engine's library prints is not the VM's.
  @quiet ~S(exec "$0" "$@" --json 2>/dev/null)

  @spec find(keyword()) :: {:ok, map()} | {:error, Error.t()}
  def find(opts) do
    with {:ok, opts} <- Options.validate(opts, program: nil),
         {:ok, text} <- text(opts[:program], []),
         {:ok, %{"devices" => devices, "engines" => engines}} <- Native.json_decode(text) do
      {:ok,
       %{
         devices: Enum.map(devices, &take(&1, @device)),
         engines: Enum.map(engines, &take(&1, @engine))
       }}
    else
      {:error, %Error{}} = error ->
        error

      _other ->
        {:error, Error.new(:protocol, "tmeshctl-devices printed something else than devices")}
    end
  end

  @doc "What the program prints as JSON."
  @spec text(term(), [String.t()]) :: {:ok, binary()} | {:error, Error.t()}
  def text(program, words) do
    with {:ok, program} <- program(program), do: run(program, words)
  end

  defp program(nil) do
    case System.get_env("TMESH_DEVICES_PROGRAM") || System.find_executable("tmeshctl-devices") do
      nil ->
        {:error,
         Error.new(
           :unsupported,
           "there is no tmeshctl-devices in PATH: it comes with tmesh's tools"
         )}

      program ->
        {:ok, program}
    end
  end

  defp program(program) when is_binary(program), do: {:ok, program}
  defp program(_other), do: {:error, Error.new(:invalid, "program is a path")}

  defp run(program, words) do
    case System.cmd("/bin/sh", ["-c", @quiet, program | words]) do
      {text, 0} ->
        {:ok, text}

      {_text, status} ->
        words = Enum.join([program | words] ++ ["--json"], " ")
        {:error, Error.new(:unsupported, "#{words} ended with #{status}: run it to see why")}
    end
  end

  defp take(map, names), do: Map.new(names, &{&1, map[Atom.to_string(&1)]})
end
