# SPDX-License-Identifier: MIT
defmodule Tmesh.Net.Offer do
  @moduledoc false
  # An offer: an untrusted map, which says what to fetch, and from which homes. A tensor has one shard. A bundle has
  # one for its index and one for each of its regions, in this order.

  alias Tmesh.{Error, Options}
  alias Tmesh.Net.Answer

  @type wanted :: %{
          checksum: String.t(),
          bytes: pos_integer(),
          sources: [{home :: String.t(), offer :: String.t()}, ...]
        }

  # The most shards of a bundle: its regions and its index.
  @max_shards 1025
  @max_homes 1024
  # The longest name of a node, which is an atom: 255 characters.
  @longest_home 1020
  @id_digits 32

  @spec wanted(map()) :: {:ok, [wanted(), ...]} | {:error, Error.t()}
  def wanted(map) do
    with {:ok, shards} <- shards(map),
         {:ok, homes} <- homes(map, length(shards)) do
      # Start each shard with another home, and each node with another order.
      turn = :erlang.phash2(node())

      {:ok,
       for {{checksum, bytes}, number} <- Enum.with_index(shards) do
         sources = for {home, offers} <- homes, do: {home, elem(offers, number)}
         {last, first} = Enum.split(sources, rem(turn + number, length(sources)))
         %{checksum: checksum, bytes: bytes, sources: first ++ last}
       end}
    else
      :error ->
        why =
          "not an offer: its home, offer, checksum or region_bytes is missing or malformed. " <>
            "Tmesh.Net.offer/1 makes an offer of a ref, at home"

        {:error, Error.new(:protocol, why)}
    end
  end

  defp shards(%{"kind" => "bundle", "shards" => shards, "regions" => regions})
       when is_list(shards) and is_list(regions) and length(shards) in 1..@max_shards and
              length(shards) == length(regions) + 1,
       do: Options.map_ok(shards, &shard/1)

  defp shards(%{"kind" => _other}), do: :error
  defp shards(map), do: Options.map_ok([map], &shard/1)

  defp shard(%{"checksum" => checksum, "region_bytes" => bytes})
       when is_integer(bytes) and bytes in 1..0x7FFF_FFFF_FFFF_FFFF do
    if Answer.hex?(checksum, 32), do: {:ok, {checksum, bytes}}, else: :error
  end

  defp shard(_other), do: :error

  defp homes(map, count) do
    with others when is_list(others) and length(others) < @max_homes <-
           Map.get(map, "other_homes", []),
         do: Options.map_ok([map | others], &home(&1, count)),
         else: (_other -> :error)
  end

  defp home(%{"home" => home, "offers" => offers}, count)
       when is_list(offers) and length(offers) == count do
    if home?(home) and Enum.all?(offers, &Answer.hex?(&1, @id_digits)),
      do: {:ok, {home, List.to_tuple(offers)}},
      else: :error
  end

  defp home(%{"home" => home, "offer" => offer}, 1) do
    if home?(home) and Answer.hex?(offer, @id_digits), do: {:ok, {home, {offer}}}, else: :error
  end

  defp home(_other, _count), do: :error

  @doc "Return whether it can be a node's name."
  @spec home?(term()) :: boolean()
  def home?(home),
    do: is_binary(home) and byte_size(home) in 1..@longest_home and String.valid?(home)
end
