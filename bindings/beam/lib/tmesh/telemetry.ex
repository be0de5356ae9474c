# SPDX-License-Identifier: MIT
defmodule Tmesh.Telemetry do
  @moduledoc """
  Events in the form of the `:telemetry` library: a name, which is a list of atoms, a map of measurements and a map
  of metadata.

  If `:telemetry` is loaded, these are its events, and its handlers get them. Otherwise `attach/4` and `detach/1` do
  the same for handlers of this VM. These handlers are called also if `:telemetry` is loaded later. Handlers run in
  the process that caused the event. A handler that raises, exits or throws is detached.

  | event | measurements | metadata |
  | --- | --- | --- |
  | `[:tmesh, :tensor, WHAT, :start]` | `system_time`, `bytes` | `dtype`, `shape` |
  | `[:tmesh, :tensor, WHAT, :stop]` | `duration`, `bytes` | `dtype`, `shape`, `result` |
  | `[:tmesh, :tensor, WHAT, :exception]` | `duration`, `bytes` | `dtype`, `shape`, `kind`, `reason`, `stacktrace` |
  | `[:tmesh, :model, :load, :start]` | `system_time` | `path` |
  | `[:tmesh, :model, :load, :stop]` | `duration`; if loaded, `bytes` of the region and `bytes_read` from files | `path`, `result` |
  | `[:tmesh, :model, :load, :exception]` | `duration` | `path`, `kind`, `reason`, `stacktrace` |
  | `[:tmesh, :model, :save, :start]` | `system_time` | `path` |
  | `[:tmesh, :model, :save, :stop]` | `duration` | `path`, `result` |
  | `[:tmesh, :model, :save, :exception]` | `duration` | `path`, `kind`, `reason`, `stacktrace` |
  | `[:tmesh, :worker, :call, :start]` | `system_time`, `payload_bytes` | `pool`, `operation` |
  | `[:tmesh, :worker, :call, :stop]` | `duration`, `copied_bytes` of its results, by the worker | `pool`, `operation`, `result`: `:ok` or an error's type |
  | `[:tmesh, :worker, :up]` | `duration` of the start | `pool`, `pid` of the system's process |
  | `[:tmesh, :worker, :down]` | `calls` that were lost | `pool`, `reason` |
  | `[:tmesh, :worker, :fallback]` | `bytes` that are copied | `pool`, `operation` |
  | `[:tmesh, :gpu, :fallback]` | `bytes` that are in host memory instead | `device` that was asked for |
  | `[:tmesh, :janitor, :sweep]` | `duration` | none |

  WHAT is `:put` (bytes into a new tensor, `Tmesh.ZeroCopy.from_binary/4`), `:open` (of a ref) or `:copy`
  (`Tmesh.ZeroCopy.to_binary/2`, if it has to copy; reading in place has no event). `result` is `:ok` or an error's
  type.

  Times are in `:native` units.
  """

  require Logger

  @typedoc "A name such as `[:tmesh, :worker, :up]`."
  @type event :: [atom(), ...]

  @typedoc "Called with the event, measurements, metadata, and the configuration given to `attach/4`."
  @type handler :: (event(), map(), map(), term() -> term())

  @handlers {__MODULE__, :handlers}

  @doc """
  Call `handler` for each of `events`. `id` identifies the handler.

      iex> Tmesh.Telemetry.attach("doc", [[:tmesh, :worker, :up]], fn _, _, _, _ -> :ok end, nil)
      :ok
      iex> Tmesh.Telemetry.attach("doc", [[:tmesh, :worker, :up]], fn _, _, _, _ -> :ok end, nil)
      {:error, :already_exists}
      iex> Tmesh.Telemetry.detach("doc")
      :ok
  """
  @spec attach(term(), [event()], handler(), term()) :: :ok | {:error, :already_exists}
  def attach(id, events, handler, config) when is_list(events) and is_function(handler, 4) do
    if telemetry?() do
      apply(:telemetry, :attach_many, [id, events, handler, config])
    else
      update(fn handlers ->
        if Map.has_key?(handlers, id),
          do: {{:error, :already_exists}, handlers},
          else: {:ok, Map.put(handlers, id, {events, handler, config})}
      end)
    end
  end

  @doc "Detach the handler of this id."
  @spec detach(term()) :: :ok | {:error, :not_found}
  def detach(id) do
    found =
      update(fn handlers ->
        if Map.has_key?(handlers, id),
          do: {:ok, Map.delete(handlers, id)},
          else: {{:error, :not_found}, handlers}
      end)

    if found != :ok and telemetry?(), do: apply(:telemetry, :detach, [id]), else: found
  end

  @doc false
  @spec execute(event(), map(), map()) :: :ok
  def execute(event, measurements, metadata) do
    for {id, {events, handler, config}} <- :persistent_term.get(@handlers, %{}),
        event in events,
        do: call(id, handler, [event, measurements, metadata, config])

    if telemetry?(), do: apply(:telemetry, :execute, [event, measurements, metadata])
    :ok
  end

  # `fun` returns :ok, {:ok, value} or {:error, error}, and `measured` returns the measurements of that result.
  # Without a handler it costs almost nothing.
  @doc false
  @spec span(event(), %{atom() => non_neg_integer()}, map(), (() -> result), (result -> map())) ::
          result
        when result: term()
  def span(event, measurements, metadata, fun, measured \\ &nothing_more/1) do
    if listened?(), do: told_span(event, measurements, metadata, fun, measured), else: fun.()
  end

  defp nothing_more(_result), do: %{}

  @doc false
  @spec listened?() :: boolean()
  def listened?, do: :persistent_term.get(@handlers, %{}) != %{} or telemetry?()

  defp told_span(event, measurements, metadata, fun, measured) do
    began = System.monotonic_time()
    system_time = System.system_time()
    execute(event ++ [:start], Map.put(measurements, :system_time, system_time), metadata)

    try do
      fun.()
    catch
      kind, reason ->
        failed = %{kind: kind, reason: reason, stacktrace: __STACKTRACE__}
        execute(event ++ [:exception], took(measurements, began), Map.merge(metadata, failed))
        :erlang.raise(kind, reason, __STACKTRACE__)
    else
      result ->
        metadata = Map.put(metadata, :result, outcome(result))
        measurements = measurements |> took(began) |> Map.merge(measured.(result))
        execute(event ++ [:stop], measurements, metadata)
        result
    end
  end

  defp took(measurements, began),
    do: Map.put(measurements, :duration, System.monotonic_time() - began)

  defp outcome({:error, %Tmesh.Error{type: type}}), do: type
  defp outcome(_success), do: :ok

  defp call(id, handler, args) do
    apply(handler, args)
  catch
    kind, reason ->
      _gone = detach(id)
      why = Exception.format_banner(kind, reason, __STACKTRACE__)
      Logger.error("tmesh: the handler #{inspect(id)} failed and is detached: #{why}")
  end

  # Handlers are rarely added or removed, and often read.
  defp update(fun) do
    :global.trans(
      {@handlers, self()},
      fn ->
        {result, handlers} = fun.(:persistent_term.get(@handlers, %{}))
        :persistent_term.put(@handlers, handlers)
        result
      end,
      [node()]
    )
  end

  defp telemetry?, do: :erlang.function_exported(:telemetry, :execute, 3)
end
