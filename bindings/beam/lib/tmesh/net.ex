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

  An offer is a map of strings and numbers, as `Tmesh.ZeroCopy.TensorRef.to_map/1` makes it, with the
  members `home`, `offer`, `checksum` and `region_bytes` beside. It also travels as JSON.

  One fetch serves all who want the same bytes at a time. What came is kept as
  `net-CHECKSUM`, by the rules of `Tmesh.keep/3`, and is found there by the next, also after the home has
  gone. A node whose waits have all ended cancels its fetch.

  Options of `{Tmesh.Net, options}`:

    * `address` - of the interface of this machine that leads to the others, in numbers. Required
    * `program` - the fetcher; without it `TMESH_NET` in the environment, then `tmesh-net` in the path
    * `provider` - of libfabric (`"tcp"`)
    * `lease_ms` - how long a key stays without progress, at a home (60,000)
  """

  import Tmesh.Bang

  alias Tmesh.{Error, Native, Options, ZeroCopy}
  alias Tmesh.Net.Server
  alias Tmesh.ZeroCopy.TensorRef

  @type offer :: %{String.t() => term()}

  @doc false
  @spec child_spec(keyword()) :: Supervisor.child_spec()
  def child_spec(options),
    do: %{id: __MODULE__, start: {__MODULE__, :start_link, [options]}, shutdown: 10_000}

  @doc """
  Start this node's net. One for each runtime directory: a second fetcher is refused.
  """
  @spec start_link(keyword()) :: GenServer.on_start() | {:error, Error.t()}
  def start_link(options) do
    known = [address: nil, program: nil, provider: "tcp", lease_ms: 60_000]

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
  Offer a sealed tensor's region to other nodes, until `withdraw/1` or the end of the calling process.

  The whole region is offered, and read once for its checksum. The fetcher pins it: it stays while it
  is offered, also after `Tmesh.ZeroCopy.release/1`.

  Errors: `:invalid` (not sealed), `:not_started`, `:limit_exceeded`, `:closed`, `:unsupported` (memory
  that refuses pins), `:gone` (the fetcher ended).
  """
  @spec offer(TensorRef.t()) :: {:ok, offer()} | {:error, Error.t()}
  def offer(%TensorRef{} = ref) do
    with {:ok, ref} <- TensorRef.named(ref),
         {:ok, offered} <- call({:offer, ref.token}),
         do: {:ok, Map.merge(TensorRef.to_map(ref), offered)}
  end

  @doc """
  End an offer of this node: on return no other reads the memory any more. Fetches of it that run
  elsewhere fail with `:gone`; what was fetched stays.

  Errors: `:not_found`, `:protocol`, `:not_started`.
  """
  @spec withdraw(offer()) :: :ok | {:error, Error.t()}
  def withdraw(%{"offer" => id}) when is_binary(id), do: call({:withdraw, id})
  def withdraw(_other), do: {:error, Error.new(:protocol, "not an offer")}

  @doc """
  Open an offered tensor, a map or JSON: as `Tmesh.ZeroCopy.open/2` where its memory or a copy of it is
  on this machine, else after a fetch.

  Options: `timeout` - the longest time without an answer or a byte, in milliseconds (10,000).

  Errors: as `Tmesh.ZeroCopy.open/2`; `:not_found` (withdrawn; the home is not connected to this node),
  `:gone` (the home, its fetcher or this one ended meanwhile), `:timeout`, `:not_started` (no net runs
  here, or at home), `:protocol` (not an offer; what came is damaged), `:limit_exceeded`,
  `:no_memory`.
  """
  @spec open(offer() | String.t(), timeout: pos_integer()) ::
          {:ok, TensorRef.t()} | {:error, Error.t()}
  def open(offer, opts \\ [])

  def open(json, opts) when is_binary(json) do
    case Native.json_decode(json) do
      {:ok, map} when is_map(map) -> open(map, opts)
      _other -> {:error, Error.new(:protocol, "not an offer")}
    end
  end

  def open(%{} = map, opts) do
    with {:ok, opts} <- Options.validate(opts, timeout: 10_000),
         {:ok, timeout} <- timeout(opts[:timeout]),
         {:ok, ref} <- TensorRef.from_map(map),
         {:error, %Error{type: :not_found}} <- ZeroCopy.open(ref),
         {:ok, wanted} <- wanted(map),
         {:ok, token, region, hold} <- call({:open, wanted, timeout}) do
      opened = ZeroCopy.open(%TensorRef{ref | token: token, id: region})
      GenServer.cast(__MODULE__, {:opened, hold})
      opened
    end
  end

  defp timeout(ms) when is_integer(ms) and ms in 1..0x7FFF_FFFF, do: {:ok, ms}
  defp timeout(_other), do: invalid("timeout must be milliseconds, more than 0")

  defp wanted(%{
         "home" => home,
         "offer" => offer,
         "checksum" => <<checksum::binary-size(32)>>,
         "region_bytes" => bytes
       })
       when is_binary(home) and is_binary(offer) and is_integer(bytes) and bytes > 0,
       do: {:ok, %{home: home, offer: offer, checksum: checksum, bytes: bytes}}

  defp wanted(_map), do: {:error, Error.new(:protocol, "not an offer: a ref that names no home")}

  @doc "What this node's fetcher has now, and has done."
  @spec stats() :: {:ok, %{atom() => non_neg_integer()}} | {:error, Error.t()}
  def stats, do: call(:stats)

  bang offer(ref :: TensorRef.t()) :: offer()
  bang withdraw(offer :: offer()) :: :ok
  bang open(offer :: offer() | String.t(), opts :: [timeout: pos_integer()] \\ []) :: TensorRef.t()
  bang stats() :: %{atom() => non_neg_integer()}

  defp call(request) do
    GenServer.call(__MODULE__, request, :infinity)
  catch
    :exit, {:noproc, _call} ->
      {:error, Error.new(:not_started, "no Tmesh.Net runs on #{node()}")}

    :exit, {_reason, _call} ->
      {:error, Error.new(:gone, "Tmesh.Net of #{node()} ended")}
  end

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
