# SPDX-License-Identifier: MIT
defmodule Tmesh.PagePool do
  @moduledoc """
  A pool of pages of one size that processes share: the memory of a KV cache.

      {:ok, pool} = Tmesh.PagePool.create(page_bytes: 65_536, page_tokens: 16)   # one process owns the pages
      {:ok, token} = Tmesh.PagePool.tenant(pool)                                 # its holders take part
      {:ok, pages} = Tmesh.Pages.open(token)                                     # in each process, in any language

  The pool ends when it is closed, or when no process of this VM has it any more: keep it in the state of a process.
  Its parts then keep the pages that they hold, and get `:gone` for more.
  """

  use Tmesh.Bang, ~w(create/1 tenant/2 info/1)
  alias Tmesh.{Context, Error, Janitor, Native, Options}

  @enforce_keys [:native]
  @derive {Inspect, only: []}
  defstruct @enforce_keys

  @type t :: %__MODULE__{native: Native.page_pool()}

  @typedoc """
  Options. 0 stands for the default of each:

    * `page_bytes` - of a page on each device: a multiple of the machine's pages, up to 1 GiB (64 KiB)
    * `page_tokens` - tokens in one page (16)
    * `slab_pages` - pages of a region (256)
    * `max_pages` - pages of all tenants, in whole regions (4,096)
    * `devices` - devices that share the heads; all of them lie in host memory (1)
    * `heads` - the number of heads (as many as devices)
  """
  @type option ::
          {:page_bytes, non_neg_integer()}
          | {:page_tokens, non_neg_integer()}
          | {:slab_pages, non_neg_integer()}
          | {:max_pages, non_neg_integer()}
          | {:devices, non_neg_integer()}
          | {:heads, non_neg_integer()}

  @options [page_bytes: 0, page_tokens: 0, slab_pages: 0, max_pages: 0, devices: 0, heads: 0]

  @typedoc """
  Counts of `slabs`, of `pages` in them, of pages that are `free`, `cached` and `held`, of `handles` that take part,
  and of `tickets`. Since the beginning: pages `evicted` and `refused`, handles that `died`, and pages `reclaimed`
  from these.
  """
  @type info :: %{atom() => non_neg_integer()}

  @doc """
  Make a pool, which this VM owns. When a tenant is out of pages, its longest unused cached blocks are evicted.

  Errors: `:invalid`, `:no_memory`, `:too_many_files`.
  """
  @spec create([option()]) :: {:ok, t()} | {:error, Error.t()}
  def create(opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, @options),
         {:ok, context} <- Context.limited() do
      shape = List.to_tuple(for {key, _default} <- @options, do: opts[key])
      create = fn -> Native.page_pool_create(context, shape) end

      with {:ok, native} <- create |> Janitor.retry() |> result(),
           do: {:ok, %__MODULE__{native: native}}
    end
  end

  @doc """
  Add a tenant, with prefixes and a key of its own and at most so many pages (0: as many as the pool). Its token is
  for `Tmesh.Pages.open/1` in processes of this user.

  Errors: `:invalid`, `:limit_exceeded` (64 tenants), `:no_memory`, `:too_many_files`, `:closed`.
  """
  @spec tenant(t(), non_neg_integer()) :: {:ok, token :: String.t()} | {:error, Error.t()}
  def tenant(%__MODULE__{native: native}, max_pages \\ 0),
    do: fn -> Native.page_pool_tenant(native, max_pages) end |> Janitor.retry() |> result()

  @doc """
  Return the counts of the pool.

  Errors: `:closed`.
  """
  @spec info(t()) :: {:ok, info()} | {:error, Error.t()}
  def info(%__MODULE__{native: native}), do: native |> Native.page_pool_info() |> result()

  @doc "End the pool. You may close it again."
  @spec close(t()) :: :ok
  def close(%__MODULE__{native: native}) do
    :ok = Native.page_pool_close(native)
  end

  defp result({:error, reason}), do: {:error, Error.from_native(reason)}
  defp result(success), do: success
end
