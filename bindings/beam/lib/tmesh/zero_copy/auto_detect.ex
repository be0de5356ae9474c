# SPDX-License-Identifier: MIT
defmodule Tmesh.ZeroCopy.AutoDetect do
  @moduledoc """
  Which terms are worth shared memory.

  `Tmesh.Worker` asks this for everything in a payload, and so should wrappers that are generated
  for Python functions; `Tmesh.Worker` has an example.
  """

  alias Tmesh.Config
  alias Tmesh.ZeroCopy.TensorRef

  @doc """
  Whether `term` should travel in shared memory: refs always, binaries and Nx tensors when they
  have more than `threshold_bytes` (`config :tmesh, :zero_copy`), anything else never. With
  `enabled: false` nothing should.

      iex> Tmesh.ZeroCopy.AutoDetect.should_use_zero_copy?(<<0::8_000_000>>)
      false
      iex> Tmesh.ZeroCopy.AutoDetect.should_use_zero_copy?(<<0::8_000_008>>)
      true
  """
  @spec should_use_zero_copy?(term()) :: boolean()
  def should_use_zero_copy?(term), do: Config.get!(:enabled) and shared?(term)

  defp shared?(%TensorRef{}), do: true
  defp shared?(binary) when is_binary(binary), do: large?(byte_size(binary))

  # A struct of a library that may not be there.
  defp shared?(%{__struct__: Nx.Tensor, shape: shape, type: {_kind, bits}})
       when is_tuple(shape) and is_integer(bits),
       do: large?(div(Tuple.product(shape) * bits + 7, 8))

  defp shared?(_other), do: false

  defp large?(bytes), do: bytes > Config.get!(:threshold_bytes)
end
