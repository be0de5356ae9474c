# SPDX-License-Identifier: MIT
defmodule Tmesh.HoleTest do
  # A VM with a preload (support/hole.c), in which the mapping of a binary fails and another thread is quick.
  use Tmesh.Case, backend: :any

  @hole System.get_env("TMESH_TEST_HOLE", "")
  @moduletag skip: if(not File.exists?(@hole), do: "there is no hole.so: make beam-check builds it")

  @code """
  {:ok, _apps} = Application.ensure_all_started(:tmesh)
  ref = Tmesh.ZeroCopy.from_binary!(<<7::8_000_000>>, [1_000_000], :uint8)
  {:error, {:enomem, _why}} = Tmesh.Native.to_binary(ref.handle, false)
  <<7::8_000_000>> = Tmesh.ZeroCopy.to_binary!(ref, copy: false)
  System.halt(0)
  """

  test "memory of another thread stays where a mapping has failed" do
    ebin = :tmesh |> :code.lib_dir() |> Path.join("ebin")
    options = ["--erl", "-logger level warning", "-pa", ebin, "-e", @code]
    assert System.cmd("elixir", options, env: [{"LD_PRELOAD", @hole}]) == {"left alone\n", 0}
  end
end
