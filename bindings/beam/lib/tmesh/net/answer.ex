# SPDX-License-Identifier: MIT
defmodule Tmesh.Net.Answer do
  @moduledoc false
  # A home's answer to a request for a lease. The answer may be anything, and goes on to the fetcher, which ends at
  # malformed text. So only well-formed answers pass.

  alias Tmesh.Error

  @type t ::
          {:ok, key :: String.t(), address :: String.t()} | {:bytes, binary()} | {:error, Error.t()}

  # The most bytes in an answer; TMESH_NET_SMALL_BYTES.
  @small 65_536
  # TMESH_NET_ADDRESS_SIZE with its zero.
  @longest_address 127
  @longest_text 4_096

  @spec small() :: pos_integer()
  def small, do: @small

  @doc "Check an answer. `name` is the home that was asked, for the error."
  @spec read(term(), String.t()) :: t()
  def read({:ok, key, address} = answer, name) do
    if hex?(key, 16) and address?(address), do: answer, else: none(name)
  end

  def read({:bytes, data} = answer, _name) when is_binary(data) and byte_size(data) <= @small,
    do: answer

  def read({:error, type, text}, name)
      when is_atom(type) and is_binary(text) and byte_size(text) <= @longest_text do
    if String.valid?(text), do: {:error, Error.new(type, text)}, else: none(name)
  end

  def read(_other, name), do: none(name)

  @doc "Return the error for a home of another version."
  @spec of_version(term(), String.t()) :: t()
  def of_version(version, name) do
    {:error,
     Error.new(:unsupported, "Tmesh.Net of #{name} is of version #{inspect(version, limit: 5)}")}
  end

  @doc "Return whether a text has exactly this many lower-case hex digits."
  @spec hex?(term(), pos_integer()) :: boolean()
  def hex?(text, digits) when is_binary(text) and byte_size(text) == digits,
    do: for(<<digit <- text>>, digit not in ?0..?9 and digit not in ?a..?f, do: digit) == []

  def hex?(_other, _digits), do: false

  defp address?(text) when is_binary(text) and byte_size(text) in 1..@longest_address,
    do: for(<<byte <- text>>, byte not in 0x20..0x7E, do: byte) == []

  defp address?(_other), do: false

  defp none(name), do: {:error, Error.new(:protocol, "#{name} sent a malformed answer")}
end
