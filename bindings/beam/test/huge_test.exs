# SPDX-License-Identifier: MIT
defmodule Tmesh.HugeTest do
  @moduledoc "Memory of 2 MiB and more lies in huge pages, where memfds have them."
  use Tmesh.Case

  @mib 1_048_576

  test "what is copied from a binary, and what is written" do
    data = :crypto.strong_rand_bytes(16 * @mib)

    {ref, taken} = taking(fn -> ZeroCopy.from_binary!(data, [16 * @mib], :uint8) end)
    assert taken in [16 * @mib, :none]
    assert ZeroCopy.to_binary!(ref) == data
    assert taken == :none or ZeroCopy.info!(ref).huge_bytes == 16 * @mib
  end

  # Return the bytes in huge pages that `fun` takes, or :none on the module, or on a machine without huge pages.
  defp taking(fun) do
    {:ok, before} = Tmesh.stats()
    result = fun.()
    {:ok, stats} = Tmesh.stats()

    if Tmesh.backend() == {:ok, :kernel} or stats.huge_given_up > before.huge_given_up or
         stats.huge_bytes == before.huge_bytes,
       do: {result, :none},
       else: {result, stats.huge_bytes - before.huge_bytes}
  end
end
