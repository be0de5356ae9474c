# SPDX-License-Identifier: MIT
defmodule Tmesh.Net do
  @moduledoc """
  Tensors between nodes on different machines. Names, leases and keys are messages of Erlang distribution. The bytes
  travel through `tmesh-net`, the machine's fetcher, into a sealed region that all processes of the machine share.

      # in each node's supervision tree
      {Tmesh.Net, address: "192.0.2.1"}

      # at home
      {:ok, offer} = Tmesh.Net.offer(ref)
      # on another node, which got the offer in any message
      {:ok, ref} = Tmesh.Net.open(offer)

  **Bytes travel without encryption**, even if distribution uses TLS. Use a trusted network, or WireGuard.
  `docs/reference/net.md` lists the promises and their limits.

  An offer is a map of strings and numbers like that of `Tmesh.ZeroCopy.TensorRef.to_map/1` or
  `Tmesh.Bundle.to_map/1`. Further members say where its bytes are. It also travels as JSON.

  ## Names

      # on each node that has the model
      {:ok, model} = Tmesh.Model.load("model.safetensors")
      :ok = Tmesh.Net.publish("llama", model)
      # on one that does not
      {:ok, bundle} = Tmesh.Net.open_name("llama")
      bundle["embeddings.weight"]

  The regions of a bundle come in parallel, each from one of the nodes that have it. If that node fails, the region
  comes from the next. A name means the same bytes on all nodes: other bytes under a taken name are refused. Names
  are groups of `:pg`. A stream (`Tmesh.Stream`) is published by its process. `lookup/1` returns it, and
  `Tmesh.Stream.start_link/1` with `from:` follows it.

  One fetch serves all simultaneous opens of the same bytes. The fetched bytes are kept as `net-CHECKSUM`, by the
  rules of `Tmesh.keep/3`, for later opens, also after the home is gone. A node whose opens have all ended cancels
  its fetch.

  Options of `{Tmesh.Net, options}`:

    * `address` - the numeric address of this machine's interface to the other machines. Required
    * `program` - the fetcher. Default: `TMESH_NET` in the environment, then `tmesh-net` in the path
    * `provider` - the provider of libfabric (`"tcp"`)
    * `lease_ms` - how long a key without progress stays valid at a home (60,000)
    * `max_restarts`, `max_seconds` - as for a supervisor: a fetcher that has ended is restarted. If it ended more
      often than `max_restarts` (3) within `max_seconds` (5), the net ends with the error
  """

  use Tmesh.Bang, ~w(offer/1 withdraw/1 open/2 publish/2 unpublish/1 lookup/1 open_name/2 stats/0)
  alias Tmesh.{Bundle, Channel, Error, Model, Native, Options, ZeroCopy}
  alias Tmesh.Net.{Parallel, TokenCache, Names, Offer, LocalSecret, Server}
  alias Tmesh.ZeroCopy.TensorRef

  @type offer :: %{String.t() => term()}
  @type open_option ::
          {:timeout, pos_integer()} | {:deadline, pos_integer() | :infinity} | {:progress, pid()}

  # Errors of an open if the memory is not on this machine. Its backend, the module or memfd, may also be another
  # than here.
  @elsewhere [:not_found, :unsupported]

  # Regions of one bundle that are fetched at once.
  @regions_at_once 8

  @doc false
  @spec child_spec(keyword()) :: Supervisor.child_spec()
  def child_spec(options),
    do: %{id: __MODULE__, start: {__MODULE__, :start_link, [options]}, shutdown: 10_000}

  @doc """
  Start this node's net. A runtime directory has one fetcher: a second one is refused.
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

  An offer covers whole regions, which are read once for their checksums. The fetcher pins them: they stay while
  they are offered, also after `Tmesh.ZeroCopy.release/1`. Any holder of a ref may offer it, since each token
  includes the right to read. Any node of the cluster that gets the offer may fetch it.

  Errors:

    * `:invalid` - not sealed
    * `:not_found` - the ref's memory is gone
    * `:access` - the memory belongs to another user who does not admit this one
    * `:protocol` - the ref's token is malformed
    * `:unsupported` - the memory refuses pins
    * `:gone` - the fetcher ended
    * `:not_started`, `:limit_exceeded`, `:closed`
  """
  @spec offer(TensorRef.t() | Bundle.t() | Model.t()) :: {:ok, offer()} | {:error, Error.t()}
  def offer(%TensorRef{} = ref) do
    with {:ok, ref} <- TensorRef.named(ref),
         :ok <- check_token(ref.token),
         {:ok, offered} <- call({:offer, ref.token}),
         do: {:ok, Map.merge(TensorRef.to_map!(ref), offered)}
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

  # Check the form of a token. A ref may come from any process, and the fetcher expects text. The fetcher itself checks
  # the token.
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
  End an offer of this node: on return no other node reads the memory any more. Unfinished fetches elsewhere fail
  with `:gone`; fetched memory stays.

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

  # Do not show the offer, which contains tokens.
  defp no_offer(why) do
    why = "not an offer: #{why}. Give what Tmesh.Net.offer/1 has returned"
    {:error, Error.new(:protocol, why)}
  end

  @doc false
  # Withdraw without a wait for the fetcher. The memory's maker must not write to it any more.
  @spec withdraw_later(offer()) :: :ok
  def withdraw_later(%{"offers" => ids}),
    do: Enum.each(ids, &LocalSecret.cast({:withdraw, &1}))

  def withdraw_later(%{"offer" => id}), do: LocalSecret.cast({:withdraw, id})

  @doc """
  Open an offer, given as a map or JSON. If its memory or a copy is on this machine, this does the same as
  `Tmesh.ZeroCopy.open/2` or `Tmesh.Bundle.open/2`. Otherwise it fetches the bytes.

  Options:

    * `timeout` - the longest time without an answer or a byte from a home, in milliseconds (10,000)
    * `deadline` - the longest time of the whole open, in milliseconds (`:infinity`). Then the error is `:timeout`,
      and a partly fetched region is dropped unless another open waits for it
    * `progress` - a process that receives `{:tmesh_progress, %{checksum: text, bytes: n, region_bytes: n}}` for
      each fetched region. It comes at most ten times a second, and once when the region is complete, before the
      open returns. If a home fails, the count restarts with the next home. A region on this machine gives no
      message

  Errors, beside those of `Tmesh.ZeroCopy.open/2`:

    * `:not_found` - the offer was withdrawn, or the home is not connected to this node
    * `:gone` - the home, its fetcher or this one ended meanwhile
    * `:not_started` - no net runs here, or at home
    * `:protocol` - not an offer, damaged bytes, or no valid answer
    * `:unsupported` - the home's net has another version
    * `:timeout`, `:limit_exceeded`, `:no_memory`

  With several homes the error is that of the last one. A bundle opens as a whole or not at all.
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
         {:none, dead} <- open_cached(ref, key),
         {:error, %Error{type: type}} when type in @elsewhere <- ZeroCopy.open(ref),
         {:ok, [wanted]} <- Offer.wanted(map),
         {:ok, token, region, hold} <- call({:open, wanted, limits}) do
      opened = ZeroCopy.open(%{ref | token: token, id: region})
      LocalSecret.cast({:opened, hold, have(opened, key, dead)})
      opened
    end
  end

  # If another process of this VM has it open, make a local ref.
  defp open_cached(ref, key), do: open_cached(ref, key, TokenCache.find(key), [])

  defp open_cached(_ref, _key, [], dead), do: {:none, dead}

  defp open_cached(ref, key, [{token, region} = name | names], dead) do
    case ZeroCopy.open(%{ref | token: token, id: region}) do
      {:ok, _ref} = opened ->
        room? = TokenCache.room?(1 + length(names))

        if room? or dead != [],
          do: LocalSecret.cast({:cached, have(if(room?, do: opened), key, dead)})

        opened

      {:error, %Error{type: type}} when type in [:not_found, :stale] ->
        open_cached(ref, key, names, [name | dead])

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
    requests = for one <- wanted, do: LocalSecret.call({:open, one, limits})

    opened =
      Parallel.run(fn watch ->
        with {:ok, [index | regions]} <-
               Parallel.all(watch, __MODULE__, requests, @regions_at_once) do
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

  # Read the timeout of each home, the deadline of the open, and the process for progress.
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
  Offer a tensor, bundle or model under a name, until `unpublish/1` or the end of the calling process. You can also
  publish a `Tmesh.Stream`, by its pid or name, or a `Tmesh.Channel`. A channel is shared memory: other nodes learn
  where it is, and only nodes of its machine can join it.

  Several nodes may publish the same bytes under one name. An open asks all of them.

  Errors, beside those of `offer/1`:

    * `:exists` - the name is published for something else, or by this node
    * `:timeout` - a connected node does not answer
    * `:invalid` - the name is malformed, or there is no such process
    * `:busy` - other nodes publish that name at the same time
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
    # The argument names no process.
    FunctionClauseError -> nil
  end

  defp take_back(%{"kind" => "channel"}), do: :ok
  defp take_back(%{} = offer), do: withdraw(offer)
  defp take_back(_pid), do: :ok

  @doc """
  Withdraw a name that this node has published, and its offer. Fetched copies stay.

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
  Look a name up that this node or a connected one has published. The result is an offer for `open/2`, which lists
  all homes, or a stream's pid. For a channel of this node it is the token for `Tmesh.Channel.open/3`.

  Errors: `:not_found`, `:exists` (nodes that did not know of each other have published different things),
  `:timeout`, `:invalid`, `:unsupported` (a channel of another node, which the message names).
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

  @doc "List the names that this node knows to be published. Other nodes learn a new name a moment later."
  @spec names() :: [String.t()]
  def names, do: Names.all()

  @doc """
  Look a name up and open it: `lookup/1` and `open/2` in one call.

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

  @doc "Return the present state and the counters of this node's fetcher."
  @spec stats() :: {:ok, %{atom() => non_neg_integer()}} | {:error, Error.t()}
  def stats, do: call(:stats)

  defp call(request) do
    GenServer.call(__MODULE__, LocalSecret.call(request), :infinity)
  catch
    :exit, reason -> {:error, ended(reason)}
  end

  defp ended({:noproc, _call}), do: Error.new(:not_started, "no Tmesh.Net runs on #{node()}")
  defp ended({_reason, _call}), do: Error.new(:gone, "Tmesh.Net of #{node()} ended")

  @doc false
  # Name the home in the error of an ordinary open, if the ref carries its home.
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
