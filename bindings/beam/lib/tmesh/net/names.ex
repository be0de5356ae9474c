# SPDX-License-Identifier: MIT
defmodule Tmesh.Net.Names do
  @moduledoc false
  # Published names. Each is a group of the :pg scope of this module, and its members are the nets that publish it.
  # Each member itself answers with the published thing.

  alias Tmesh.Error
  alias Tmesh.Net.Offer

  # How long a node may take to answer with its published thing.
  @answer_ms 5_000

  @typedoc "An offer, the process of a stream, or a channel: its kind, home and token."
  @type what :: %{String.t() => term()} | pid()

  @spec check(term()) :: :ok | {:error, Error.t()}
  def check(name) do
    if is_binary(name) and byte_size(name) in 1..255 and String.valid?(name) and
         not String.contains?(name, <<0>>),
       do: :ok,
       else: {:error, Error.new(:invalid, "a name is text of 1 to 255 bytes")}
  end

  # Publish one at a time: a lock serializes publishers. It fails if a connected node does not answer.
  @spec publish(String.t(), what(), (() -> :ok | {:error, Error.t()})) :: :ok | {:error, Error.t()}
  def publish(name, what, join) do
    nodes = [node() | Node.list()]

    published = fn ->
      with {:ok, others, []} <- ask(name, Enum.map(nodes, &{Tmesh.Net, &1})),
           :ok <- same([what | others], name) do
        join.()
      else
        {:ok, _others, [wrong | _rest]} -> {:error, wrong}
        {:error, error} -> {:error, error}
      end
    end

    # Nodes that go meanwhile do not end the others' lock.
    case :global.trans({{Tmesh.Net, name}, self()}, published, nodes, 20) do
      :aborted -> {:error, Error.new(:busy, "other nodes publish that name now: try again")}
      result -> result
    end
  end

  @spec lookup(String.t(), until :: integer() | :infinity) :: {:ok, what()} | {:error, Error.t()}
  def lookup(name, until \\ :infinity) do
    with {:ok, all, wrong} <- members(name, until),
         :ok <- same(all, name) do
      case {all, wrong} do
        {[what | others], _wrong} ->
          {:ok, merge(what, others)}

        {[], [wrong | _rest]} ->
          {:error, wrong}

        {[], []} ->
          {:error, Error.new(:not_found, "no connected node has published #{inspect(name)}")}
      end
    end
  end

  @spec all() :: [String.t()]
  def all, do: Enum.sort(:pg.which_groups(__MODULE__))

  # The groups know their members at once, but learn of a new name a moment late. So ask all nodes if no member has
  # it.
  defp members(name, until) do
    some = ask(name, Enum.uniq(:pg.get_members(__MODULE__, name)), until)

    with {:ok, [], []} <- some,
         do: ask(name, Enum.map([node() | Node.list()], &{Tmesh.Net, &1}), until)
  end

  # Ask each net. An answer that is no published value counts as an error. Nodes without a net or without the
  # name are ignored.
  defp ask(name, nets, until \\ :infinity) do
    nets
    |> Enum.map(&{&1, :gen_server.send_request(&1, {:published, name})})
    |> Enum.map(fn {net, request} ->
      {net, :gen_server.receive_response(request, patience(until))}
    end)
    |> Enum.reduce_while({:ok, [], []}, fn
      {_net, {:reply, :none}}, told ->
        {:cont, told}

      {net, {:reply, answer}}, {:ok, all, wrong} ->
        case published(answer) do
          {:ok, what} -> {:cont, {:ok, [what | all], wrong}}
          :error -> {:cont, {:ok, all, [no_answer(net) | wrong]}}
        end

      {net, :timeout}, _told ->
        {:halt, {:error, silent(net)}}

      {_net, {:error, _no_net}}, told ->
        {:cont, told}
    end)
  end

  @doc "Check the answer of a net, which may be anything, like all input from other nodes."
  @spec published(term()) :: {:ok, what()} | :error
  def published({:ok, pid}) when is_pid(pid), do: {:ok, pid}

  def published({:ok, %{"kind" => "channel", "home" => home, "token" => token} = channel})
      when map_size(channel) == 3 do
    if Offer.home?(home) and is_binary(token) and token =~ ~r/\A[a-z0-9-]{1,71}\z/,
      do: {:ok, channel},
      else: :error
  end

  def published({:ok, %{"kind" => "channel"}}), do: :error

  def published({:ok, %{} = offer}) do
    with {:ok, _wanted} <- Offer.wanted(offer), do: {:ok, offer}, else: (_error -> :error)
  end

  def published(_other), do: :error

  defp patience(:infinity), do: @answer_ms

  defp patience(until),
    do: (until - System.monotonic_time(:millisecond)) |> max(0) |> min(@answer_ms)

  defp silent(net),
    do: Error.new(:timeout, "#{of(net)} did not list its published names in time")

  defp no_answer(net),
    do: Error.new(:protocol, "#{of(net)} answered a lookup with something that cannot be published")

  defp of({_name, node}), do: node
  defp of(pid) when is_pid(pid), do: node(pid)

  defp same(all, name) do
    if all |> Enum.uniq_by(&identity/1) |> length() <= 1,
      do: :ok,
      else:
        {:error,
         Error.new(
           :exists,
           "two things cannot have the name #{inspect(name)}: Tmesh.Net.unpublish/1 takes it back on the node that published"
         )}
  end

  # Compare by the bytes, not by their homes.
  defp identity(pid) when is_pid(pid), do: pid

  # A channel equals only itself.
  defp identity(%{"kind" => "channel"} = channel), do: channel

  defp identity(offer),
    do: offer |> Map.take(~w(kind checksum shards shape dtype strides offset)) |> Map.to_list()

  defp merge(pid, _others) when is_pid(pid), do: pid
  defp merge(%{"kind" => "channel"} = channel, _others), do: channel

  defp merge(offer, others) do
    homes = for other <- others, do: Map.take(other, ~w(home offer offers))
    Map.put(offer, "other_homes", homes)
  end
end
