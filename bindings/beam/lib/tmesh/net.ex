# SPDX-License-Identifier: MIT
defmodule Tmesh.Net do
  @moduledoc """
  Tensors between nodes on different machines. Names, leases and keys are messages of Erlang
  distribution; the bytes come by `tmesh-net`, the machine's fetcher, into a sealed region that all
  processes of the machine share.

      # in each node's supervision tree
      {Tmesh.Net, address: "192.0.2.1"}

      # at home
      {:ok, offer} = Tmesh.Net.offer(ref)
      # on another node, which got the offer in any message
      {:ok, ref} = Tmesh.Net.open(offer)

  **Bytes travel without encryption**, also where distribution uses TLS: trusted networks, or inside
  WireGuard. `docs/net.md` says what is promised and what is not.

  An offer is a map of strings and numbers, as `Tmesh.ZeroCopy.TensorRef.to_map/1` or `Tmesh.Bundle.to_map/1`
  makes it, with members beside that say where its bytes are. It also travels as JSON.

  ## Names

      # on each node that has the model
      {:ok, model} = Tmesh.Model.load("model.safetensors")
      :ok = Tmesh.Net.publish("llama", model)
      # on one that does not
      {:ok, bundle} = Tmesh.Net.open_name("llama")
      bundle["embeddings.weight"]

  A bundle's regions come in parallel, each from another of the nodes that have it, and from the next when one
  cannot give it. A name means the same bytes on all nodes: other bytes under a name that is taken are
  refused. Names are groups of `:pg`. A stream (`Tmesh.Stream`) is published by its process; `lookup/1` gives it, and
  `Tmesh.Stream.start_link/1` with `from:` follows it.

  One fetch serves all who want the same bytes at a time. What came is kept as
  `net-CHECKSUM`, by the rules of `Tmesh.keep/3`, and is found there by the next, also after the home has
  gone. A node whose waits have all ended cancels its fetch.

  Options of `{Tmesh.Net, options}`:

    * `address` - of the interface of this machine that leads to the others, in numbers. Required
    * `program` - the fetcher; without it `TMESH_NET` in the environment, then `tmesh-net` in the path
    * `provider` - of libfabric (`"tcp"`)
    * `lease_ms` - how long a key stays without progress, at a home (60,000)
    * `max_restarts`, `max_seconds` - as a supervisor has them: a fetcher that has ended is started again, unless it ended
      more often than `max_restarts` (3) within `max_seconds` (5); then the net ends with the error
  """

  import Tmesh.Bang

  alias Tmesh.{Bundle, Channel, Error, Model, Native, Options, ZeroCopy}
  alias Tmesh.Net.{Apart, Had, Names, Offer, Own, Server}
  alias Tmesh.ZeroCopy.TensorRef

  @type offer :: %{String.t() => term()}
  @type open_option ::
          {:timeout, pos_integer()} | {:deadline, pos_integer() | :infinity} | {:progress, pid()}

  # What an open says of memory that is not here: of this machine's kind, or of one with the module where this one
  # has none, or the other way.
  @elsewhere [:not_found, :unsupported]

  # Of a bundle's, at a time.
  @regions_at_once 8

  @doc false
  @spec child_spec(keyword()) :: Supervisor.child_spec()
  def child_spec(options),
    do: %{id: __MODULE__, start: {__MODULE__, :start_link, [options]}, shutdown: 10_000}

  @doc """
  Start this node's net. One for each runtime directory: a second fetcher is refused.
  """
  @spec start_link(keyword()) :: GenServer.on_start() | {:error, Error.t()}
  def start_link(options) do
    known = [
      address: nil,
      program: nil,
      provider: "tcp",
      lease_ms: 60_000,
      max_restarts: 3,
      max_seconds: 5
    ]

    with {:ok, options} <- Options.validate(options, known),
         :ok <- check(options),
         {:ok, program} <- program(options[:program]) do
      GenServer.start_link(Server, Keyword.put(options, :program, program), name: __MODULE__)
    end
  end

  defp check(options) do
    cond do
      not is_binary(options[:address]) ->
        invalid("address must be that of an interface of this machine, such as \"192.0.2.1\"")

      not is_binary(options[:provider]) ->
        invalid("provider must be a string")

      not is_integer(options[:lease_ms]) or options[:lease_ms] not in 1..0xFFFF_FFFF ->
        invalid("lease_ms must be milliseconds, more than 0")

      not is_integer(options[:max_restarts]) or options[:max_restarts] < 0 ->
        invalid("max_restarts must be a number of times, 0 or more")

      not is_integer(options[:max_seconds]) or options[:max_seconds] < 1 ->
        invalid("max_seconds must be seconds, more than 0")

      true ->
        :ok
    end
  end

  defp invalid(message), do: {:error, Error.new(:invalid, message)}

  defp program(nil) do
    case System.get_env("TMESH_NET") || System.find_executable("tmesh-net") do
      nil ->
        {:error,
         Error.new(
           :not_found,
           "tmesh-net is not in the path: install the package tmesh-net, or set TMESH_NET"
         )}

      program ->
        {:ok, program}
    end
  end

  defp program(program) when is_binary(program), do: {:ok, program}
  defp program(_other), do: invalid("program must be a path")

  @doc """
  Offer a sealed tensor, a bundle or a model to other nodes, until `withdraw/1` or the end of the calling process.

  Whole regions are offered, and read once for their checksums. The fetcher pins them: they stay while they
  are offered, also after `Tmesh.ZeroCopy.release/1`. Who has a ref may offer it: the right to read is part of each
  token. Who is in the cluster and is given the offer may fetch it.

  Errors: `:invalid` (not sealed), `:not_found` (a ref whose memory is gone), `:access` (memory of another user, who does not let this one read), `:protocol` (its
  token is none), `:not_started`, `:limit_exceeded`, `:closed`, `:unsupported` (memory
  that refuses pins), `:gone` (the fetcher ended).
  """
  @spec offer(TensorRef.t() | Bundle.t() | Model.t()) :: {:ok, offer()} | {:error, Error.t()}
  def offer(%TensorRef{} = ref) do
    with {:ok, ref} <- TensorRef.named(ref),
         :ok <- check_token(ref.token),
         {:ok, offered} <- call({:offer, ref.token}),
         do: {:ok, Map.merge(TensorRef.to_map(ref), offered)}
  end

  def offer(%Bundle{} = bundle) do
    with {:ok, json} <- Bundle.to_json(bundle),
         {:ok, map} = Native.json_decode(json),
         {:ok, offered} <- offer_all([map | map["regions"]], []) do
      {:ok,
       Map.merge(map, %{
         "home" => Atom.to_string(node()),
         "offers" => Enum.map(offered, & &1["offer"]),
         "shards" => Enum.map(offered, &Map.take(&1, ~w(checksum region_bytes)))
       })}
    end
  end

  def offer(%Model{} = model) do
    with {:ok, bundle} <- Model.bundle(model) do
      offered = offer(bundle)
      Bundle.release(bundle)
      offered
    end
  end

  # A ref may be anybody's word; the fetcher wants text. Whether it is a token it says itself.
  defp check_token(token) do
    if is_binary(token) and token =~ ~r/\A[a-z0-9-]{1,71}\z/,
      do: :ok,
      else: {:error, Error.new(:protocol, "not a ref that opens something: its token is none")}
  end

  defp offer_all([%{"token" => token} | rest], offered) do
    case call({:offer, token}) do
      {:ok, one} ->
        offer_all(rest, [one | offered])

      {:error, error} ->
        Enum.each(offered, &withdraw/1)
        {:error, error}
    end
  end

  defp offer_all([], offered), do: {:ok, Enum.reverse(offered)}

  @doc """
  End an offer of this node: on return no other reads the memory any more. Fetches of it that run
  elsewhere fail with `:gone`; what was fetched stays.

  Errors: `:not_found`, `:protocol`, `:not_started`.
  """
  @spec withdraw(offer()) :: :ok | {:error, Error.t()}
  def withdraw(%{"offers" => ids}) when is_list(ids) do
    if Enum.all?(ids, &is_binary/1) do
      ids
      |> Enum.map(&call({:withdraw, &1}))
      |> Enum.find(:ok, &(&1 != :ok))
    else
      no_offer("its \"offers\" are not all strings")
    end
  end

  def withdraw(%{"offer" => id}) when is_binary(id), do: call({:withdraw, id})
  def withdraw(_other), do: no_offer("it has neither \"offer\" nor \"offers\"")

  # An offer holds tokens: it is not shown.
  defp no_offer(why) do
    why = "not an offer: #{why}. Give what Tmesh.Net.offer/1 has returned"
    {:error, Error.new(:protocol, why)}
  end

  @doc false
  # The same without a wait for the fetcher, for memory that its maker does not write to any more.
  @spec withdraw_later(offer()) :: :ok
  def withdraw_later(%{"offers" => ids}),
    do: Enum.each(ids, &Own.cast({:withdraw, &1}))

  def withdraw_later(%{"offer" => id}), do: Own.cast({:withdraw, id})

  @doc """
  Open what is offered, a map or JSON: as `Tmesh.ZeroCopy.open/2` or `Tmesh.Bundle.open/2` where its memory or a
  copy of it is on this machine, else after a fetch.

  Options:

    * `timeout` - the longest time without an answer or a byte, in milliseconds, of each home (10,000)
    * `deadline` - the longest time in all, in milliseconds (`:infinity`). Then it is `:timeout`, and what was half
      fetched goes, unless others wait for it
    * `progress` - a process that gets `{:tmesh_progress, %{checksum: text, bytes: n, region_bytes: n}}` at most ten
      times a second for each region that is fetched, and one when all of it is here, before the open returns. What
      goes on behind a home that failed begins again. Nothing is said of what is on this machine already

  Errors: as `Tmesh.ZeroCopy.open/2`; `:not_found` (withdrawn; the home is not connected to this node),
  `:gone` (the home, its fetcher or this one ended meanwhile), `:timeout`, `:not_started` (no net runs
  here, or at home), `:protocol` (not an offer; what came is damaged, or no answer), `:unsupported` (the home's
  net is of another version), `:limit_exceeded`, `:no_memory`. With several homes it is the last one's; of a bundle there is all or nothing.
  """
  @spec open(offer() | String.t(), [open_option()]) ::
          {:ok, TensorRef.t() | Bundle.t()} | {:error, Error.t()}
  def open(offer, opts \\ [])

  def open(json, opts) when is_binary(json) do
    case Native.json_decode(json) do
      {:ok, map} when is_map(map) -> open(map, opts)
      _other -> no_offer("the text is no JSON object")
    end
  end

  def open(%{} = map, opts) do
    with {:ok, limits} <- limits(opts), do: open_within(map, limits)
  end

  defp open_within(%{"kind" => "bundle"} = map, limits) do
    ref = Map.take(map, ~w(v kind id token tensors byte_size regions))

    with {:error, %Error{type: type}} when type in @elsewhere <- Bundle.open(ref),
         {:ok, wanted} <- Offer.wanted(map),
         do: open_bundle(ref, wanted, limits)
  end

  defp open_within(map, limits) do
    with {:ok, ref} <- TensorRef.from_map(map),
         key = {map["checksum"], map["region_bytes"]},
         {:none, dead} <- open_had(ref, key),
         {:error, %Error{type: type}} when type in @elsewhere <- ZeroCopy.open(ref),
         {:ok, [wanted]} <- Offer.wanted(map),
         {:ok, token, region, hold} <- call({:open, wanted, limits}) do
      opened = ZeroCopy.open(%TensorRef{ref | token: token, id: region})
      Own.cast({:opened, hold, have(opened, key, dead)})
      opened
    end
  end

  # What another process of this VM has open is a local ref.
  defp open_had(ref, key), do: open_had(ref, key, Had.find(key), [])

  defp open_had(_ref, _key, [], dead), do: {:none, dead}

  defp open_had(ref, key, [{token, region} = name | names], dead) do
    case ZeroCopy.open(%TensorRef{ref | token: token, id: region}) do
      {:ok, _ref} = opened ->
        room? = Had.room?(1 + length(names))

        if room? or dead != [],
          do: Own.cast({:had, have(if(room?, do: opened), key, dead)})

        opened

      {:error, %Error{type: type}} when type in [:not_found, :stale] ->
        open_had(ref, key, names, [name | dead])

      {:error, error} ->
        {:error, error}
    end
  end

  defp have({:ok, ref}, key, dead) do
    case TensorRef.named(ref) do
      {:ok, named} -> {key, dead, {named.token, named.id}}
      {:error, _no_descriptor} -> {key, dead, nil}
    end
  end

  defp have(_none, key, dead), do: {key, dead, nil}

  # The fetched regions are held for the process that asked for them, until the bundle holds them.
  defp open_bundle(ref, wanted, limits) do
    requests = for one <- wanted, do: Own.call({:open, one, limits})

    opened =
      Apart.run(fn watch ->
        with {:ok, [index | regions]} <-
               Apart.all(watch, __MODULE__, requests, @regions_at_once) do
          regions = Enum.map(regions, &here/1)
          ref |> Map.merge(here(index)) |> Map.put("regions", regions) |> Bundle.open()
        end
      end)

    case opened do
      {:ended, reason} -> {:error, ended({reason, nil})}
      result -> result
    end
  end

  defp here({:ok, token, region, _hold}), do: %{"token" => token, "id" => region}

  # Of each home, until when in all, and who is told.
  defp limits(opts) do
    known = [timeout: 10_000, deadline: :infinity, progress: nil]

    with {:ok, opts} <- Options.validate(opts, known) do
      case {opts[:timeout], opts[:deadline], opts[:progress]} do
        {_timeout, _deadline, told} when not is_pid(told) and told != nil ->
          invalid("progress must be a process: its pid")

        {timeout, :infinity, told} when timeout in 1..0x7FFF_FFFF ->
          {:ok, {timeout, :infinity, told}}

        {timeout, deadline, told} when timeout in 1..0x7FFF_FFFF and deadline in 1..0x7FFF_FFFF ->
          {:ok, {timeout, System.monotonic_time(:millisecond) + deadline, told}}

        _wrong ->
          invalid(
            "timeout and deadline must be milliseconds, more than 0, and deadline may be :infinity"
          )
      end
    end
  end

  @doc """
  Offer something under a name, until `unpublish/1` or the end of the calling process. Also a `Tmesh.Stream`, by its
  pid or name, and a `Tmesh.Channel`: others learn where it is, for it is shared memory and joined on its own machine.

  Nodes may publish the same bytes under a name, and are all asked for them.

  Errors: `:exists` (something else is published under that name, or this node has published it), `:timeout` (a
  connected node does not say what it has published), `:busy`, `:invalid` (the name, or no such process), and those
  of `offer/1`.
  """
  @spec publish(
          String.t(),
          TensorRef.t() | Bundle.t() | Model.t() | Channel.t() | GenServer.server()
        ) :: :ok | {:error, Error.t()}
  def publish(name, what) do
    with :ok <- Names.check(name),
         {:ok, offered} <- offered(what) do
      with {:error, error} <-
             Names.publish(name, offered, fn -> call({:publish, name, offered}) end) do
        _ = take_back(offered)
        {:error, error}
      end
    end
  end

  defp offered(%kind{} = what) when kind in [TensorRef, Bundle, Model], do: offer(what)

  defp offered(%Channel{token: token}),
    do: {:ok, %{"kind" => "channel", "home" => Atom.to_string(node()), "token" => token}}

  defp offered(server) do
    pid = whereis(server)

    if is_pid(pid) and (node(pid) != node() or Process.alive?(pid)),
      do: {:ok, pid},
      else: invalid("neither a tensor, a bundle, a model, a channel nor a process that runs")
  end

  defp whereis(server) do
    GenServer.whereis(server)
  rescue
    # What names no process.
    FunctionClauseError -> nil
  end

  defp take_back(%{"kind" => "channel"}), do: :ok
  defp take_back(%{} = offer), do: withdraw(offer)
  defp take_back(_pid), do: :ok

  @doc """
  Take a name back that this node has published, and its offer. What others have fetched stays.

  Errors: `:not_found`, `:not_started`.
  """
  @spec unpublish(String.t()) :: :ok | {:error, Error.t()}
  def unpublish(name) do
    with {:ok, what} <- call({:unpublish, name}) do
      _ = take_back(what)
      :ok
    end
  end

  @doc """
  What is published under a name, by this node or those it is connected to: an offer for `open/2`, which names all who
  have it, a stream's pid, or on its own node a channel's token for `Tmesh.Channel.open/3`.

  Errors: `:not_found`, `:exists` (nodes that did not know of each other have published different things), `:timeout`,
  `:invalid`, `:unsupported` (another node's channel: the message names it).
  """
  @spec lookup(String.t()) :: {:ok, offer() | pid() | String.t()} | {:error, Error.t()}
  def lookup(name) do
    with :ok <- Names.check(name),
         {:ok, %{"kind" => "channel", "home" => home, "token" => token}} <- Names.lookup(name) do
      if home == Atom.to_string(node()) do
        {:ok, token}
      else
        why =
          "#{inspect(name)} is a channel of #{home}, shared memory which no other machine can join: " <>
            "a Tmesh.Stream goes between machines"

        {:error, Error.new(:unsupported, why)}
      end
    end
  end

  @doc "The names that this node knows to be published now. A new one is known to others a moment later."
  @spec names() :: [String.t()]
  def names, do: Names.all()

  @doc """
  `lookup/1` and `open/2` in one call.

  Errors: of both; `:invalid` (a stream's name).
  """
  @spec open_name(String.t(), [open_option()]) ::
          {:ok, TensorRef.t() | Bundle.t()} | {:error, Error.t()}
  def open_name(name, opts \\ []) do
    with :ok <- Names.check(name),
         {:ok, {_timeout, until, _told} = limits} <- limits(opts) do
      case Names.lookup(name, until) do
        {:ok, pid} when is_pid(pid) ->
          invalid(
            "#{inspect(name)} is a process: Tmesh.Stream.start_link/1 follows a stream, Tmesh.Net.Pages.follow/3 pages"
          )

        {:ok, %{"kind" => "channel", "home" => home}} ->
          invalid("#{inspect(name)} is a channel of #{home}: lookup/1 gives its token there")

        {:ok, offer} ->
          open_within(offer, limits)

        {:error, error} ->
          {:error, error}
      end
    end
  end

  @doc "What this node's fetcher has now, and has done."
  @spec stats() :: {:ok, %{atom() => non_neg_integer()}} | {:error, Error.t()}
  def stats, do: call(:stats)

  bang offer(what :: TensorRef.t() | Bundle.t() | Model.t()) :: offer()
  bang withdraw(offer :: offer()) :: :ok

  bang open(offer :: offer() | String.t(), opts :: [open_option()] \\ []) ::
         TensorRef.t() | Bundle.t()

  bang publish(
         name :: String.t(),
         what :: TensorRef.t() | Bundle.t() | Model.t() | Channel.t() | GenServer.server()
       ) :: :ok

  bang unpublish(name :: String.t()) :: :ok
  bang lookup(name :: String.t()) :: offer() | pid() | String.t()

  bang open_name(name :: String.t(), opts :: [open_option()] \\ []) ::
         TensorRef.t() | Bundle.t()

  bang stats() :: %{atom() => non_neg_integer()}

  defp call(request) do
    GenServer.call(__MODULE__, Own.call(request), :infinity)
  catch
    :exit, reason -> {:error, ended(reason)}
  end

  defp ended({:noproc, _call}), do: Error.new(:not_started, "no Tmesh.Net runs on #{node()}")
  defp ended({_reason, _call}), do: Error.new(:gone, "Tmesh.Net of #{node()} ended")

  @doc false
  # An ordinary open of a ref that carries its home says where the memory is.
  @spec name_home({:ok, term()} | {:error, Error.t()}, map()) ::
          {:ok, term()} | {:error, Error.t()}
  def name_home({:error, %Error{type: :not_found} = error}, %{"home" => home})
      when is_binary(home) do
    message =
      "#{error.message}; its home is #{inspect(home, printable_limit: 255)}: Tmesh.Net.open/1 fetches it from there"

    {:error, %Error{error | message: message}}
  end

  def name_home(result, _map), do: result
end
