# SPDX-License-Identifier: MIT
defmodule Tmesh.Net.Pages do
  @moduledoc """
  A sequence of pages (`Tmesh.Pages.Sequence`) that goes on on another node: its table travels as a log, by messages of Erlang
  distribution, and only pages that are missing there are fetched, by `Tmesh.Net`, which runs on both nodes.

      # at home
      {:ok, log} = Tmesh.Net.Pages.publish("chat-7", pages, sequence, tokens: tokens)
      {:ok, number} = Tmesh.Net.Pages.update(log, sequence, tokens: tokens)    # when it has grown, or was cut

      # on another node, into a pool of the same shape
      {:ok, follower} = Tmesh.Net.Pages.follow("chat-7", pages)
      {:ok, sequence} = Tmesh.Net.Pages.sequence(follower)
      :ok = Tmesh.Pages.Sequence.append(sequence, 16)                          # a sequence of this node's

  What is published is the sequence as it was in the call: its pages are held, and changed by nobody who uses tmesh's calls;
  who writes through an address that he has kept changes them. A follower has one table after another, whole or not at
  all, and passes over those that came while it fetched.

  With `tokens`, all tokens of the sequence, a follower first looks for its blocks among the prefixes that are cached in its
  pool, and caches those that it fetches (`Tmesh.Pages.Sequence.cache/2`). So the tenant must be one that has the same model's
  pages. Without, it fetches all pages but those that it has of this log.

  `docs/net.md` has the messages.
  """

  import Tmesh.Bang

  alias Tmesh.{Error, Net, Options, Pages}
  alias Tmesh.Net.Pages.{Follower, Log}
  alias Tmesh.Pages.Sequence

  @typedoc "Of a sequence's tokens: integers of 32 bits, as many as the sequence has."
  @type tokens :: [integer()]

  @typedoc """
  `number` of the newest update that is whole here (0: none), `blocks` in it; and since the beginning of pages `fetched` and
  `had` (by the tenant's prefixes, or fetched before), updates `passed_over`, and how often it began anew (`resyncs`).
  `error` is why it has ended.
  """
  @type info :: %{
          number: non_neg_integer(),
          blocks: non_neg_integer(),
          fetched: non_neg_integer(),
          had: non_neg_integer(),
          passed_over: non_neg_integer(),
          resyncs: non_neg_integer(),
          error: Error.t() | nil
        }

  @doc """
  Publish a sequence under a name, until `close/1` or the end of the calling process.

  Errors: those of `Tmesh.Net.publish/2` and `Tmesh.Pages.Sequence.fork/1`; `:invalid` (the tokens are not as many as the
  sequence has).
  """
  @spec publish(String.t(), Pages.t(), Sequence.t(), tokens: tokens()) ::
          {:ok, pid()} | {:error, Error.t()}
  def publish(name, %Pages{} = pages, %Sequence{} = sequence, opts \\ []) do
    with {:ok, shape} <- shape(pages),
         {:ok, update} <- snapshot(sequence, opts) do
      {:ok, log} = GenServer.start(Log, {shape, self()}, hibernate_after: 1_000)

      with {:ok, 1} <- call(log, {:update, update}),
           :ok <- call(log, {:publish, name}) do
        {:ok, log}
      else
        error ->
          close(log)
          error
      end
    end
  end

  @doc """
  Publish what the sequence is now. Its number is for `sequence/3` of followers.

  Errors: `:closed`, and as `publish/4`.
  """
  @spec update(pid(), Sequence.t(), tokens: tokens()) ::
          {:ok, number :: pos_integer()} | {:error, Error.t()}
  def update(log, %Sequence{} = sequence, opts \\ []) do
    with {:ok, update} <- snapshot(sequence, opts),
         {:error, error} <- call(log, {:update, update}) do
      Sequence.release(elem(update, 0))
      {:error, error}
    end
  end

  @doc """
  Follow what is published, by its name or by the process that `publish/4` gave, into a part of a pool of this node. The
  follower ends with `close/1` or with the calling process.

  Options: `timeout` - the longest time without an answer or a byte, in milliseconds (10,000).

  Errors: those of `Tmesh.Net.lookup/1`, `:invalid` (a pool of another shape; no pages are published under that name),
  `:gone`, `:timeout`, `:protocol` (what answers publishes no pages).
  """
  @spec follow(String.t() | pid(), Pages.t(), timeout: pos_integer()) ::
          {:ok, pid()} | {:error, Error.t()}
  def follow(from, pages, opts \\ [])

  def follow(name, %Pages{} = pages, opts) when is_binary(name) do
    case Net.lookup(name) do
      {:ok, pid} when is_pid(pid) -> follow(pid, pages, opts)
      {:ok, _offer} -> {:error, Error.new(:invalid, "#{inspect(name)} is no sequence of pages")}
      {:error, error} -> {:error, error}
    end
  end

  def follow(home, %Pages{} = pages, opts) when is_pid(home) do
    with {:ok, opts} <- Options.validate(opts, timeout: 10_000),
         true <- is_integer(opts[:timeout]) and opts[:timeout] in 1..0x7FFF_FFFF,
         {:ok, shape} <- shape(pages) do
      args = {home, pages, shape, opts[:timeout], self()}
      {:ok, follower} = GenServer.start(Follower, args, hibernate_after: 1_000)

      with {:error, error} <- call(follower, :begin) do
        close(follower)
        {:error, error}
      else
        :ok -> {:ok, follower}
      end
    else
      false -> {:error, Error.new(:invalid, "timeout must be milliseconds, more than 0")}
      {:error, error} -> {:error, error}
    end
  end

  @doc """
  The newest sequence that is whole here: one of this node's own, which later updates do not change. Waits until there is
  one of update `number` or a later one; what is whole can be had also when the home has gone.

  Errors: `:gone` (the home, before that), `:timeout`, `:limit_exceeded` (this tenant has no page left), `:protocol`
  (what came was damaged, several times), `:closed`, and those of `Tmesh.Net.open/2`.
  """
  @spec sequence(pid(), pos_integer(), timeout()) :: {:ok, Sequence.t()} | {:error, Error.t()}
  def sequence(follower, number \\ 1, timeout \\ 60_000)
      when is_integer(number) and number > 0 and
             (timeout == :infinity or (is_integer(timeout) and timeout >= 0)),
      do: call(follower, {:sequence, number, timeout})

  @doc "What a follower has. Errors: `:closed`."
  @spec info(pid()) :: {:ok, info()} | {:error, Error.t()}
  def info(follower), do: call(follower, :info)

  @doc "`follow/3`, `sequence/3` and `close/1` in one call."
  @spec open(String.t() | pid(), Pages.t(), timeout: pos_integer()) ::
          {:ok, Sequence.t()} | {:error, Error.t()}
  def open(from, pages, opts \\ []) do
    with {:ok, follower} <- follow(from, pages, opts) do
      sequence = sequence(follower, 1, :infinity)
      close(follower)
      sequence
    end
  end

  @doc "End a log or a follower. Sequences that were given stay."
  @spec close(pid()) :: :ok
  def close(server) do
    GenServer.stop(server)
  catch
    :exit, _reason -> :ok
  end

  bang publish(
         name :: String.t(),
         pages :: Pages.t(),
         sequence :: Sequence.t(),
         opts :: [tokens: tokens()] \\ []
       ) :: pid()

  bang update(log :: pid(), sequence :: Sequence.t(), opts :: [tokens: tokens()] \\ []) ::
         pos_integer()

  bang follow(
         from :: String.t() | pid(),
         pages :: Pages.t(),
         opts :: [timeout: pos_integer()] \\ []
       ) :: pid()

  bang sequence(
         follower :: pid(),
         number :: pos_integer() \\ 1,
         timeout :: timeout() \\ 60_000
       ) :: Sequence.t()

  bang info(follower :: pid()) :: info()

  bang open(
         from :: String.t() | pid(),
         pages :: Pages.t(),
         opts :: [timeout: pos_integer()] \\ []
       ) :: Sequence.t()

  # What must be the same at both ends.
  defp shape(pages) do
    with {:ok, info} <- Pages.info(pages),
         do: {:ok, Map.take(info, [:page_bytes, :page_tokens, :devices, :heads])}
  end

  # As it is now: a fork holds its pages.
  defp snapshot(sequence, opts) do
    with {:ok, opts} <- Options.validate(opts, tokens: nil),
         {:ok, fork} <- Sequence.fork(sequence),
         {:ok, count} <- Sequence.tokens(fork),
         {:ok, table} <- Sequence.block_table(fork) do
      case packed(opts[:tokens], count) do
        {:ok, text} ->
          {:ok, {fork, count, table, text}}

        error ->
          Sequence.release(fork)
          error
      end
    end
  end

  defp packed(nil, _count), do: {:ok, nil}

  defp packed(tokens, count) do
    if is_list(tokens) and length(tokens) == count and
         Enum.all?(tokens, &(is_integer(&1) and &1 in -0x8000_0000..0x7FFF_FFFF)) do
      {:ok, for(token <- tokens, into: <<>>, do: <<token::signed-little-32>>)}
    else
      {:error,
       Error.new(:invalid, "tokens must be #{count} integers of 32 bits, all of the sequence")}
    end
  end

  defp call(server, request) do
    GenServer.call(server, request, :infinity)
  catch
    :exit, _reason -> {:error, Error.new(:closed, "#{inspect(server)} has ended")}
  end
end
