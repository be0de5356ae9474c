# SPDX-License-Identifier: MIT
defmodule Tmesh.PythonPool do
  @moduledoc false
  # The Python of the tests of workers, and the modules that it may run.

  @python System.get_env("TMESH_TEST_PYTHON", "python3")

  def available? do
    match?({_output, 0}, System.cmd("sh", ["-c", "#{@python} -c 'import tmesh, numpy' 2>&1"]))
  end

  def python, do: @python

  @doc "Return the Python that has pyarrow, if there is one."
  def arrow, do: System.get_env("TMESH_TEST_ARROW_PYTHON", "python3")

  def why_not, do: "no Python with the tmesh package: make python"

  def options(more \\ []) do
    Keyword.merge(
      [allow: ["operations"], size: 2, python: @python, env: [{"PYTHONPATH", __DIR__}]],
      more
    )
  end
end
