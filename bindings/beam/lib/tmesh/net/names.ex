# SPDX-License-Identifier: MIT
defmodule Tmesh.Net.Names do
  @moduledoc false
  # Who has published what: groups of the :pg scope of this name, whose members are the nets that have
  # it. What it is, each of them says itself.

  alias Tmesh.Error

  # How long a node may take to say what it has published.
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

  # Two who publish at a time do so one after the other; who cannot be asked prevents it.
  @spec publish(String.t(), what(), (() -> :ok | {:error, Error.t()})) :: :ok | {:error, Error.t()}
  def publish(name, what, join) do
    nodes = [node() | Node.list()]

    published = fn ->
      with {:ok, others} <- ask(name, Enum.map(nodes, &{Tmesh.Net, &1})),
           :ok <- same([what | others], name),
           do: join.()
    end

    # Nodes that go meanwhile end no lock of the others.
    case :global.trans({{Tmesh.Net, name}, self()}, published, nodes, 20) do
      :aborted -> {:error, Error.new(:busy, "others publish that name all the time")}
      result -> result
    end
  end

  @spec lookup(String.t(), until :: integer() | :infinity) :: {:ok, what()} | {:error, Error.t()}
  def lookup(name, until \\ :infinity) do
    with {:ok, all} <- members(name, until),
         :ok <- same(all, name) do
      case all do
        [] -> {:error, Error.new(:not_found, "nobody who is connected has published that name")}
        [what | others] -> {:ok, merge(what, others)}
      end
    end
  end

  @spec all() :: [String.t()]
  def all, do: Enum.sort(:pg.which_groups(__MODULE__))

  # The groups say at once who has it, and a moment late that somebody has it now.
  defp members(name, until) do
    some = ask(name, Enum.uniq(:pg.get_members(__MODULE__, name)), until)

    with {:ok, []} <- some,
         do: ask(name, Enum.map([node() | Node.list()], &{Tmesh.Net, &1}), until)
  end

  # What each of them says; those where no net runs, or which do not have it, say nothing.
  defp ask(name, nets, until \\ :infinity) do
    nets
    |> Enum.map(&{&1, :gen_server.send_request(&1, {:published, name})})
    |> Enum.map(fn {net, request} ->
      {net, :gen_server.receive_response(request, patience(until))}
    end)
    |> Enum.reduce_while({:ok, []}, fn
      {_net, {:reply, {:ok, what}}}, {:ok, all} -> {:cont, {:ok, [what | all]}}
      {net, :timeout}, _all -> {:halt, {:error, silent(net)}}
      {_net, _none}, all -> {:cont, all}
    end)
  end

  defp patience(:infinity), do: @answer_ms

  defp patience(until),
    do: (until - System.monotonic_time(:millisecond)) |> max(0) |> min(@answer_ms)

  defp silent({_name, node}), do: silent(node)
  defp silent(pid) when is_pid(pid), do: silent(node(pid))
  defp silent(node), do: Error.new(:timeout, "#{node} does not say what it has published")

  defp same(all, name) do
    if all |> Enum.uniq_by(&identity/1) |> length() <= 1,
      do: :ok,
      else:
        {:error,
         Error.new(:exists, "something else is published under #{inspect(name)} by another node")}
  end

  # The same bytes are the same, whoever has them.
  defp identity(pid) when is_pid(pid), do: pid

  # A channel is itself alone.
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
