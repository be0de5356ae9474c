# SPDX-License-Identifier: MIT
defmodule Tmesh.Config do
  @moduledoc false
  # `config :tmesh, :zero_copy`, read at each use of a value. `Tmesh` documents the keys.

  alias Tmesh.Error

  # The default and the kind of each value.
  @keys %{
    enabled: {true, :switch},
    gpu_enabled: {true, :switch},
    arrow_enabled: {true, :switch},
    threshold_bytes: {1_000_000, :amount},
    cleanup_interval_ms: {5_000, :amount},
    idle_gc_mb: {128, :amount},
    max_shared_memory_mb: {4096, :amount},
    region_pool_mb: {nil, :amount_or_nil},
    timeout_ms: {2_000, :amount},
    backend: {:auto, :backend}
  }

  @type key ::
          :enabled
          | :gpu_enabled
          | :arrow_enabled
          | :threshold_bytes
          | :cleanup_interval_ms
          | :idle_gc_mb
          | :max_shared_memory_mb
          | :region_pool_mb
          | :timeout_ms
          | :backend

  @doc "Return the value of a key, or an error if it is wrong."
  @spec get(key()) :: {:ok, term()} | {:error, Error.t()}
  def get(key) do
    {default, kind} = Map.fetch!(@keys, key)
    config = Application.get_env(:tmesh, :zero_copy, [])

    if Keyword.keyword?(config),
      do: checked(key, kind, Keyword.get(config, key, default)),
      else: {:error, Error.new(:invalid, "config :tmesh, :zero_copy is no keyword list")}
  end

  defp checked(key, kind, value) do
    case check(kind, value) do
      :ok -> {:ok, value}
      wanted -> {:error, Error.new(:invalid, "#{where(key)}: #{inspect(value)} is not #{wanted}")}
    end
  end

  @doc "Return an error for an unknown key, which would change nothing, silently."
  @spec names() :: :ok | {:error, Error.t()}
  def names do
    with :ok <- known(Application.get_all_env(:tmesh), [:zero_copy], "config :tmesh") do
      config = Application.get_env(:tmesh, :zero_copy, [])

      # `get/1` reports a value that is no list.
      if Keyword.keyword?(config),
        do: known(config, Map.keys(@keys), "config :tmesh, :zero_copy"),
        else: :ok
    end
  end

  # Mix adds these keys to an application that others depend on.
  @mix [:included_applications, :ecto_repos]

  defp known(config, keys, where) do
    case Keyword.keys(config) -- (keys ++ @mix) do
      [] ->
        :ok

      [other | _more] ->
        near = Enum.max_by(keys, &String.jaro_distance("#{&1}", "#{other}"))

        {:error,
         Error.new(
           :invalid,
           "#{where} has no key #{inspect(other)}; did you mean #{inspect(near)}? Its keys are " <>
             Enum.map_join(Enum.sort(keys), ", ", &inspect/1)
         )}
    end
  end

  @doc "Do as `get/1`, but raise."
  @spec get!(key()) :: term()
  def get!(key) do
    case get(key) do
      {:ok, value} -> value
      {:error, error} -> raise error
    end
  end

  @doc "Return the default of a key."
  @spec default(key()) :: term()
  def default(key), do: @keys |> Map.fetch!(key) |> elem(0)

  defp where(key), do: "config :tmesh, :zero_copy, #{key}"

  defp check(:switch, value) when is_boolean(value), do: :ok
  defp check(:switch, _value), do: "true or false"
  # Up to 2^40: no product with a unit overflows 64 bits.
  defp check(:amount, value) when value in 0..0xFF_FFFF_FFFF, do: :ok
  defp check(:amount, _value), do: "an integer of at least 0"
  defp check(:amount_or_nil, nil), do: :ok
  defp check(:amount_or_nil, value), do: check(:amount, value)
  defp check(:backend, value) when value in [:auto, :kernel, :memfd], do: :ok
  defp check(:backend, _value), do: ":auto, :kernel or :memfd"
end
