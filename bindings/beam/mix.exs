# SPDX-License-Identifier: MIT

defmodule Mix.Tasks.Compile.TmeshNif do
  @moduledoc "Has make build the NIF library, and puts it into the application's priv folder."
  use Mix.Task.Compiler

  @root Path.expand("../..", __DIR__)

  @impl true
  def run(_args) do
    case System.cmd("make", ["-s", "-C", @root, "beam-nif"], stderr_to_stdout: true) do
      {_output, 0} ->
        install(Path.join(@root, "build/beam/tmesh_nif.so"), target())

      {output, _status} ->
        Mix.shell().error(output)
        {:error, []}
    end
  end

  @impl true
  def clean, do: File.rm(target())

  defp target, do: Path.join([Mix.Project.app_path(), "priv", "tmesh_nif.so"])

  # A new file takes the old one's name: a VM that has the old one mapped must not see it change.
  defp install(source, target) do
    if File.read(source) == File.read(target) do
      {:noop, []}
    else
      File.mkdir_p!(Path.dirname(target))
      File.cp!(source, target <> ".new")
      File.rename!(target <> ".new", target)
      {:ok, []}
    end
  end
end

defmodule Tmesh.MixProject do
  use Mix.Project

  def project do
    [
      app: :tmesh,
      version: "../../VERSION" |> Path.expand(__DIR__) |> File.read!() |> String.trim(),
      elixir: "~> 1.14",
      compilers: [:tmesh_nif] ++ Mix.compilers(),
      elixirc_paths: elixirc_paths(Mix.env()),
      start_permanent: Mix.env() == :prod,
      deps: []
    ]
  end

  def application do
    [mod: {Tmesh.Application, []}, extra_applications: [:logger, :crypto]]
  end

  defp elixirc_paths(:test), do: ["lib", "test/support"]
  defp elixirc_paths(_env), do: ["lib"]
end
