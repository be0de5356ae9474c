# SPDX-License-Identifier: MIT
defmodule Tmesh.Places do
  @moduledoc """
  Places that several graphs get by leases. A place is an engine with so many bytes for weights and inputs.

      places = Tmesh.Places.open!(%{left: engine, right: {other, memory: 1_000_000_000, node: 0}})
      placed = Tmesh.Placed.open!(graph, %{"y" => :right}, places, weights: weights, folder: "models")

  A thread of the library closes a graph that has not run for `idle` milliseconds. Its engines' memory and its room
  are free then. Its next run takes the same places again. While others have the room, its error is `:system` with
  `:enospc`, and the message has the bytes needed and available. `Tmesh.Placed.move/2` goes to other places. A running
  graph is never closed.
  """

  import Tmesh.Bang

  alias Tmesh.{Engine, Error, Native, Options}

  @enforce_keys [:native, :keys]
  @derive {Inspect, only: [:keys]}
  defstruct @enforce_keys

  @type t :: %__MODULE__{native: Native.engine(), keys: [term()]}

  @typedoc "`memory` in bytes (`nil`: no limit), of the NUMA node `node` (`nil`: any)."
  @type place ::
          Engine.t()
          | {Engine.t(), memory: pos_integer() | nil, node: non_neg_integer() | nil}

  @never 0xFFFFFFFFFFFFFFFF
  @longest_ms div(@never, 1_000_000) - 1

  @doc """
  Open places, by keys of the caller.

  Options: `idle` (5,000) - milliseconds, or `:infinity`: no graph is closed.

  Errors: `:invalid`.
  """
  @spec open(%{term() => place()}, idle: timeout()) :: {:ok, t()} | {:error, Error.t()}
  def open(places, opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, idle: 5_000),
         {:ok, idle} <- idle(opts[:idle]),
         keys = Map.keys(places),
         {:ok, natives} <- natives(Map.values(places), []),
         {:ok, native} <- Engine.call(fn -> Native.places_open(natives, idle) end),
         do: {:ok, %__MODULE__{native: native, keys: keys}}
  end

  defp idle(:infinity), do: {:ok, @never}
  defp idle(ms) when is_integer(ms) and ms in 1..@longest_ms//1, do: {:ok, ms * 1_000_000}

  defp idle(_wrong),
    do: {:error, Error.new(:invalid, "idle is milliseconds of at least 1, or :infinity")}

  defp natives([], natives), do: {:ok, Enum.reverse(natives)}
  defp natives([%Engine{} = engine | more], natives), do: natives([{engine, []} | more], natives)

  defp natives([{%Engine{native: native}, opts} | more], natives) do
    with {:ok, opts} <- Options.validate(opts, memory: nil, node: nil),
         {:ok, memory} <- number(opts[:memory], 1, 0, "memory is bytes of at least 1, or nil"),
         {:ok, node} <- number(opts[:node], 0, -1, "node is a number of a NUMA node, or nil"),
         do: natives(more, [{native, memory, node} | natives])
  end

  defp natives([_wrong | _more], _natives),
    do: {:error, Error.new(:invalid, "a place is an engine, or {engine, options}")}

  defp number(nil, _least, none, _words), do: {:ok, none}
  defp number(n, least, _none, _words) when is_integer(n) and n >= least, do: {:ok, n}
  defp number(_wrong, _least, _none, words), do: {:error, Error.new(:invalid, words)}

  @doc """
  Close the graphs that are idle long enough now, and return their number. Errors: that of the first graph whose
  values could not be copied. That graph keeps its places.
  """
  @spec sweep(t()) :: {:ok, non_neg_integer()} | {:error, Error.t()}
  def sweep(%__MODULE__{native: native}),
    do: Engine.await(fn tag -> Native.places_sweep(tag, native) end)

  @doc "Return the bytes of a place that graphs have now. Errors: `:not_found`."
  @spec used(t(), term()) :: {:ok, non_neg_integer()} | {:error, Error.t()}
  def used(%__MODULE__{native: native, keys: keys}, key) do
    case Enum.find_index(keys, &(&1 == key)) do
      nil -> {:error, Error.new(:not_found, "there is no place #{inspect(key)}")}
      index -> Engine.call(fn -> Native.places_used(native, index) end)
    end
  end

  @typedoc "Counts of graphs that are `held` now and that `reacquired` places, and of `copies` of values."
  @type stats :: %{
          held: non_neg_integer(),
          moves: non_neg_integer(),
          given_up: non_neg_integer(),
          reacquired: non_neg_integer(),
          copies: non_neg_integer(),
          bytes_copied: non_neg_integer()
        }

  @doc "Return the counters."
  @spec stats(t()) :: {:ok, stats()} | {:error, Error.t()}
  def stats(%__MODULE__{native: native}), do: Engine.call(fn -> Native.places_stats(native) end)

  bang open(
         places :: %{term() => place()},
         opts :: [idle: timeout()] \\ []
       ) :: t()

  bang sweep(places :: t()) :: non_neg_integer()
  bang used(places :: t(), key :: term()) :: non_neg_integer()
  bang stats(places :: t()) :: stats()
end
