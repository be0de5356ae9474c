# SPDX-License-Identifier: MIT
defmodule Tmesh.Engine.Devices do
  @moduledoc false
  # The output of tmeshctl-devices: no engine is loaded into the emulator.

  alias Tmesh.{Error, Native, Options}

  @device ~w(id kind name node processors memory memory_free engines never_seen reason)a
  @engine ~w(name version library reads dtypes operators never_seen reason)a
  # Its exit status reports its errors. Discard the output of an engine's library.
  @quiet ~S(exec "$0" --json 2>/dev/null)

  @spec find(keyword()) :: {:ok, map()} | {:error, Error.t()}
  def find(opts) do
    with {:ok, opts} <- Options.validate(opts, program: nil),
         {:ok, program} <- program(opts[:program]),
         {:ok, text} <- run(program),
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

  defp run(program) do
    case System.cmd("/bin/sh", ["-c", @quiet, program]) do
      {text, 0} ->
        {:ok, text}

      {_text, status} ->
        words = "#{program} --json ended with #{status}: run it to see why"
        {:error, Error.new(:unsupported, words)}
    end
  end

  defp take(map, names), do: Map.new(names, &{&1, map[Atom.to_string(&1)]})
end
