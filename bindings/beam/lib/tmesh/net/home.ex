# SPDX-License-Identifier: MIT
defmodule Tmesh.Net.Home do
  @moduledoc false
  # The home in Tmesh.Net.Server: its offers, and the leases of their readers.

  import Tmesh.Net.Protocol
  require Logger

  alias Tmesh.Error
  alias Tmesh.Net.{Answer, Fetcher}

  @small Answer.small()

  ## Offers

  @spec offer(map(), String.t(), pid(), GenServer.from()) :: map()
  def offer(state, token, owner, from) do
    id = Base.encode16(:crypto.strong_rand_bytes(16), case: :lower)
    offer = %{token: token, owner: Process.monitor(owner), native: nil, bytes: nil}
    state = put_in(state.offers[id], offer)
    ask(state, {:offer, id, from}, "offer", token: token)
  end

  @spec withdraw(map(), String.t(), GenServer.from()) :: {:noreply, map()} | {:reply, term(), map()}
  def withdraw(state, id, from) do
    case state.offers do
      %{^id => %{native: native}} when native != nil ->
        {:noreply, end_offer(state, id, from)}

      # A new fetcher will offer it again; end that offer then.
      %{^id => %{owner: owner}} ->
        Process.demonitor(owner, [:flush])
        {:reply, :ok, %{state | offers: Map.delete(state.offers, id)}}

      _other ->
        {:reply, {:error, not_offered()}, state}
    end
  end

  @doc "End an offer, because its owner withdrew it or is gone."
  @spec owner_ended(map(), String.t()) :: map()
  def owner_ended(state, id) do
    case state.offers[id] do
      %{native: nil, owner: owner} ->
        Process.demonitor(owner, [:flush])
        %{state | offers: Map.delete(state.offers, id)}

      _offer ->
        end_offer(state, id, nil)
    end
  end

  defp end_offer(state, id, from) do
    {offer, offers} = Map.pop!(state.offers, id)
    Process.demonitor(offer.owner, [:flush])

    ask(%{state | offers: offers}, if(from, do: {:reply, from}, else: :nothing), "withdraw",
      offer: offer.native
    )
  end

  ## Leases

  @spec lease(map(), pid(), term(), term()) :: map()
  def lease(state, reader, number, id) do
    case state.offers do
      %{^id => %{native: native, bytes: bytes}} when native != nil and bytes <= @small ->
        ask(state, {:copy, reader, number}, "copy", offer: native)

      %{^id => %{native: native}} when native != nil ->
        ask(state, {:grant, reader, number}, "grant", offer: native, peer: "#{node(reader)}")

      _other ->
        answer(reader, number, not_offered())
        state
    end
  end

  @spec renew(map(), pid(), term()) :: map()
  def renew(state, reader, key) do
    case state.leases do
      %{^key => %{reader: ^reader} = lease} ->
        :ok = Process.cancel_timer(lease.timer, async: true, info: false)
        put_in(state.leases[key], %{lease | timer: lease_timer(state, key)})

      _other ->
        state
    end
  end

  @spec done(map(), pid(), term()) :: map()
  def done(state, reader, key) do
    case state.leases do
      %{^key => %{reader: ^reader}} -> end_lease(state, key)
      _other -> state
    end
  end

  @spec lapsed(map(), String.t()) :: map()
  def lapsed(state, key) do
    if state.leases[key],
      do: Logger.info("tmesh: a lease of #{node(state.leases[key].reader)} lapsed")

    end_lease(state, key)
  end

  @spec end_lease(map(), String.t()) :: map()
  def end_lease(state, key) do
    case Map.pop(state.leases, key) do
      {nil, _leases} ->
        state

      {lease, leases} ->
        Process.demonitor(lease.monitor, [:flush])
        :ok = Process.cancel_timer(lease.timer, async: true, info: false)
        ask(%{state | leases: leases}, :nothing, "revoke", key: key)
    end
  end

  defp lease_timer(state, key),
    do: Process.send_after(self(), {:lapsed, key}, state.options[:lease_ms])

  ## Messages of the fetcher

  @spec answered(map(), tuple(), map()) :: map()
  def answered(state, {:offer, id, from}, %{"type" => "offered"} = message) do
    case state.offers do
      %{^id => offer} ->
        if from, do: GenServer.reply(from, {:ok, offered(id, message)})
        offer = %{offer | native: message["offer"], bytes: message["bytes"]}
        put_in(state.offers[id], offer)

      # The offer's owner has ended meanwhile.
      _none ->
        ask(state, :nothing, "withdraw", offer: message["offer"])
    end
  end

  def answered(state, {:offer, id, from}, message) do
    {offer, offers} = Map.pop(state.offers, id)
    if offer, do: Process.demonitor(offer.owner, [:flush])
    error = Fetcher.error(message)

    if from,
      do: GenServer.reply(from, {:error, error}),
      else: Logger.warning("tmesh: an offer is gone with the fetcher: #{error.message}")

    %{state | offers: offers}
  end

  def answered(state, {:grant, reader, number}, %{"type" => "granted", "key" => key} = message) do
    answer(reader, number, {:ok, key, message["address"]})
    lease = %{reader: reader, monitor: Process.monitor(reader), timer: lease_timer(state, key)}
    put_in(state.leases[key], lease)
  end

  def answered(state, {:copy, reader, number}, %{"type" => "copied", "data" => digits}) do
    answer(reader, number, {:bytes, Base.decode16!(digits, case: :lower)})
    state
  end

  def answered(state, {what, reader, number}, message) when what in [:copy, :grant] do
    answer(reader, number, Fetcher.error(message))
    state
  end

  defp offered(id, message) do
    %{
      "home" => Atom.to_string(node()),
      "offer" => id,
      "checksum" => message["checksum"],
      "region_bytes" => message["bytes"]
    }
  end

  @doc "Drop the leases of a fetcher that has ended. Its offers are made again."
  @spec fetcher_ended(map()) :: map()
  def fetcher_ended(state) do
    for {_key, lease} <- state.leases do
      Process.demonitor(lease.monitor, [:flush])
      :ok = Process.cancel_timer(lease.timer, async: true, info: false)
    end

    made =
      for {id, %{native: native} = offer} <- state.offers,
          native,
          into: %{},
          do: {id, %{offer | native: nil, bytes: nil}}

    %{state | leases: %{}, offers: made}
  end

  @spec offer_again(map()) :: map()
  def offer_again(state) do
    Enum.reduce(state.offers, state, fn {id, offer}, state ->
      ask(state, {:offer, id, nil}, "offer", token: offer.token)
    end)
  end

  defp not_offered, do: Error.new(:not_found, "#{node()} does not offer that, or not any more")
end
