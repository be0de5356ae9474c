# SPDX-License-Identifier: MIT
defmodule Tmesh.Net.Pages do
  @moduledoc """
  Continue a sequence of pages (`Tmesh.Pages.Sequence`) on another node. Its table travels as a log, by messages of
  Erlang distribution. `Tmesh.Net`, which runs on both nodes, fetches only the pages that are missing there.

      # at home
      {:ok, log} = Tmesh.Net.Pages.publish("chat-7", pages, sequence, tokens: tokens)
      {:ok, number} = Tmesh.Net.Pages.update(log, sequence, tokens: tokens)    # when it has grown, or was cut

      # on another node, into a pool of the same shape
      {:ok, follower} = Tmesh.Net.Pages.follow("chat-7", pages)
      {:ok, sequence} = Tmesh.Net.Pages.sequence(follower)
      :ok = Tmesh.Pages.Sequence.append(sequence, 16)                          # a sequence of this node's

  A log publishes the sequence as it was at the call. Its pages are held, and no call of tmesh changes them; a write
  through a kept address does. A follower gets one table after another, whole or not at all. It skips tables that
  came while it fetched.

  With `tokens`, all tokens of the sequence, a follower first looks for its blocks among the cached prefixes of its
  pool. It caches the blocks that it fetches (`Tmesh.Pages.Sequence.cache/2`). So the tenant must be one that has
  the same model's pages. Without `tokens`, it fetches all pages but those that it has from this log.

  `docs/reference/net.md` lists the messages.
  """

  use Tmesh.Bang, ~w(publish/4 update/3 follow/3 sequence/3 info/1 open/3)
  import Tmesh.Options, only: [is_timeout: 1, no_timeout: 0]

  alias Tmesh.{Error, Net, Options, Pages}
  alias Tmesh.Net.Pages.{Follower, Log}
  alias Tmesh.Pages.Sequence

  @typedoc "All tokens of a sequence, as integers of 32 bits."
  @type tokens :: [integer()]

  @typedoc """
  The state of a follower:

    * `number` - the newest update that is whole here (0: none)
    * `blocks` - the blocks in it
    * `fetched` - pages fetched since the beginning
    * `had` - pages that it had already, by the tenant's prefixes or from an earlier fetch
    * `passed_over` - updates that it skipped
    * `resyncs` - how often it began anew
    * `error` - why it has ended
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

  Errors: those of `Tmesh.Net.publish/2` and `Tmesh.Pages.Sequence.fork/1`; `:invalid` (the number of tokens differs
  from the sequence's).
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
  Publish the present state of the sequence. Give its number to `sequence/3` of followers.

  Errors: `:closed`, and those of `publish/4`.
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
  Follow a published sequence, by its name or by the process of `publish/4`, into a part of a pool of this node. The
  follower ends with `close/1` or with the calling process.

  Options: `timeout` - the longest time without an answer or a byte, in milliseconds (10,000).

  Errors: those of `Tmesh.Net.lookup/1`, `:gone`, `:timeout`, `:invalid` (a pool of another shape; no pages are
  published under that name), `:protocol` (the answering process publishes no pages).
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
  Return the newest sequence that is whole here. It belongs to this node, and later updates do not change it. The
  call waits for update `number` or a later one. A whole sequence is available also after the home has gone.

  Errors:

    * `:gone` - the home is gone, and there is no such update here
    * `:limit_exceeded` - this tenant has no page left
    * `:protocol` - damaged pages came several times
    * `:timeout`, `:closed`, and those of `Tmesh.Net.open/2`
  """
  @spec sequence(pid(), pos_integer(), timeout()) :: {:ok, Sequence.t()} | {:error, Error.t()}
  def sequence(follower, number \\ 1, timeout \\ 60_000)

  def sequence(_follower, _number, timeout) when not is_timeout(timeout), do: no_timeout()

  def sequence(follower, number, timeout) when is_integer(number) and number > 0,
    do: call(follower, {:sequence, number, timeout})

  def sequence(_follower, _number, _timeout),
    do: {:error, Error.new(:invalid, "number must be that of an update, from 1 on")}

  @doc "Return the state of a follower. Errors: `:closed`."
  @spec info(pid()) :: {:ok, info()} | {:error, Error.t()}
  def info(follower), do: call(follower, :info)

  @doc "Follow a sequence once: `follow/3`, `sequence/3` and `close/1` in one call."
  @spec open(String.t() | pid(), Pages.t(), timeout: pos_integer()) ::
          {:ok, Sequence.t()} | {:error, Error.t()}
  def open(from, pages, opts \\ []) do
    with {:ok, follower} <- follow(from, pages, opts) do
      sequence = sequence(follower, 1, :infinity)
      close(follower)
      sequence
    end
  end

  @doc "End a log or a follower. Sequences that it returned stay."
  @spec close(pid()) :: :ok
  def close(server) do
    GenServer.stop(server)
  catch
    :exit, _reason -> :ok
  end

  # Return the properties that must be the same at both ends.
  defp shape(pages) do
    with {:ok, info} <- Pages.info(pages),
         do: {:ok, Map.take(info, [:page_bytes, :page_tokens, :devices, :heads])}
  end

  # Fork the sequence: the fork holds its present pages.
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
