# SPDX-License-Identifier: MIT
defmodule Tmesh.ArrowConsumer do
  @moduledoc false
  # Native code that takes Arrow streams (arrow_consumer.c).

  @on_load :load
  def load do
    "TMESH_TEST_ARROW_CONSUMER"
    |> System.fetch_env!()
    |> Path.rootname()
    |> String.to_charlist()
    |> :erlang.load_nif(0)
  end

  def consume(_address, _orphans, _thread), do: :erlang.nif_error(:not_loaded)
end
