# SPDX-License-Identifier: MIT

defmodule Mix.Tasks.Compile.TmeshNif do
  @moduledoc """
  Puts the NIF library into the application's priv folder: the one that TMESH_NIF names, else one that
  make builds from the sources, under the build folder alone.
  """
  use Mix.Task.Compiler

  @sources Path.expand("c_src", __DIR__)

  @impl true
  def run(_args) do
    with {:ok, made} <- make(System.get_env("TMESH_NIF", "")), do: install(made, target())
  end

  @impl true
  def clean do
    {:ok, _removed} = File.rm_rf(objects())
    File.rm(target())
  end

  defp make(""), do: make_in(objects())
  defp make(made), do: {:ok, made}

  defp make_in(objects) do
    made = Path.join(objects, "tmesh_nif.so")
    jobs = "-j#{System.schedulers_online()}"
    args = ["-s", jobs, "-C", @sources, "NIF=#{made}", "OBJ=#{objects}"] ++ erl_include()

    case System.cmd("make", args, stderr_to_stdout: true, env: [{"MAKEFLAGS", nil}]) do
      {_output, 0} ->
        {:ok, made}

      {output, _status} ->
        Mix.shell().error(output)
        {:error, []}
    end
  end

  # The headers of the running VM, if it has them.
  defp erl_include do
    folder = Path.join(:code.root_dir(), "usr/include")
    if File.dir?(folder), do: ["ERL_INCLUDE=#{folder}"], else: []
  end

  defp objects, do: Path.join(Mix.Project.app_path(), "obj")
  defp target, do: Path.join([Mix.Project.app_path(), "priv", "tmesh_nif.so"])

  # Rename a new file over the old one: a VM that has mapped the old one must not see it change.
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

  # It is here in the package, and at the top in a checkout of the repository.
  @version ["VERSION", "../../VERSION"]
           |> Enum.map(&Path.expand(&1, __DIR__))
           |> Enum.find(&File.exists?/1)
           |> File.read!()
           |> String.trim()

  def project do
    [
      app: :tmesh,
      version: @version,
      elixir: "~> 1.14",
      compilers: [:tmesh_nif] ++ Mix.compilers(),
      elixirc_paths: elixirc_paths(Mix.env()),
      start_permanent: Mix.env() == :prod,
      deps: deps(),
      name: "tmesh",
      description:
        "Tensors in memory that this VM shares with Python, C and devices, without copies",
      package: package(),
      docs: docs()
    ]
  end

  def application do
    [mod: {Tmesh.Application, []}, extra_applications: [:logger, :crypto]]
  end

  defp elixirc_paths(:test), do: ["lib", "test/support"]
  defp elixirc_paths(_env), do: ["lib"]

  # Nothing is required. Optional packages have to be compiled before: a project that has one of these and Hex gets
  # them in that order. TMESH_HEX=1 is for this project's documentation and package.
  defp deps do
    hex = Code.ensure_loaded?(Hex)

    cond do
      hex and System.get_env("TMESH_HEX") == "1" ->
        optional() ++ [{:ex_doc, "~> 0.34", only: :dev, runtime: false}]

      hex and Mix.Project.get() != nil ->
        optional()

      true ->
        []
    end
  end

  defp optional do
    [
      {:nx, ">= 0.5.0", optional: true},
      {:table, "~> 0.1", optional: true},
      {:telemetry, "~> 1.0", optional: true}
    ]
  end

  # `make beam-package` makes the package, with the sources of libtmesh in c_src/tmesh.
  defp package do
    [
      licenses: ["MIT", "GPL-2.0-only WITH Linux-syscall-note"],
      files: ~w(lib c_src mix.exs .formatter.exs README.md VERSION LICENSES),
      links: %{}
    ]
  end

  defp docs do
    [
      main: "readme",
      extras: ["README.md"],
      groups_for_modules: [
        Tensors: [
          Tmesh,
          Tmesh.ZeroCopy,
          Tmesh.ZeroCopy.TensorRef,
          Tmesh.Arena,
          Tmesh.Bundle,
          Tmesh.Model,
          Tmesh.Engine,
          Tmesh.Engine.Binding,
          Tmesh.Engine.Graph,
          Tmesh.Engine.Server,
          Tmesh.Engine.Tensor,
          Tmesh.Batching,
          Tmesh.Graph,
          Tmesh.Slot,
          Tmesh.Slot.Reader,
          Tmesh.Slot.Value,
          Tmesh.Descriptor
        ],
        "Between processes": [Tmesh.Channel, Tmesh.Stream],
        "Between machines": [Tmesh.Net, Tmesh.Net.Pages],
        "Python workers": [Tmesh.Worker, Tmesh.Worker.Call, Tmesh.ZeroCopy.AutoDetect],
        "Other libraries": [
          Tmesh.Nx,
          Tmesh.Arrow,
          Tmesh.Arrow.TableRef,
          Tmesh.Arrow.ArrayRef,
          Tmesh.DLPack,
          Tmesh.DLPack.GPUTensorRef
        ],
        "What went on": [Tmesh.Error, Tmesh.Telemetry]
      ]
    ]
  end
end
