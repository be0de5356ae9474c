# SPDX-License-Identifier: MIT
defmodule Tmesh.Pages.Sequence do
  @moduledoc """
  Blocks of tokens, a page each; made by `Tmesh.Pages`. Its pages are freed when it is released, or when no process
  has it any more. Calls of several processes on one sequence wait for each other.

  No binary points into a page, because other processes may write to it: `read/3` copies. `gather/2` gives a whole
  sequence in place as a tensor, with the module. `id` is its number in its part of the pool, which is never used
  again.
  """

  use Tmesh.Bang,
      ~w(tokens/1 append/2 truncate/2 fork/1 block_table/1 slot_mapping/3 read/3 write/5 gather/2
         cache/2 share/1)

  alias Tmesh.{Error, Janitor, Native, Options, Pages}
  alias Tmesh.ZeroCopy.TensorRef

  @enforce_keys [:native, :id]
  @derive {Inspect, only: [:id]}
  defstruct @enforce_keys

  @type t :: %__MODULE__{native: Native.sequence(), id: non_neg_integer()}

  @doc """
  Return the number of its tokens.

  Errors: `:closed`.
  """
  @spec tokens(t()) :: {:ok, non_neg_integer()} | {:error, Error.t()}
  def tokens(%__MODULE__{native: native}) do
    with {:ok, {_table, tokens}} <- native |> Native.seq_table() |> result(), do: {:ok, tokens}
  end

  @doc """
  Add room for so many tokens. If the last page is not full, and others may have it, it is copied.

  Errors: `:limit_exceeded` (the tenant has no page left), `:invalid`, `:gone` (the pool), `:timeout`, `:no_memory`,
  `:closed`.
  """
  @spec append(t(), non_neg_integer()) :: :ok | {:error, Error.t()}
  def append(%__MODULE__{native: native}, tokens),
    do: fn -> Native.seq_append(native, tokens) end |> Janitor.retry() |> result()

  @doc """
  Keep only the first tokens.

  Errors: `:invalid` (it has fewer), `:closed`.
  """
  @spec truncate(t(), non_neg_integer()) :: :ok | {:error, Error.t()}
  def truncate(%__MODULE__{native: native}, tokens),
    do: native |> Native.seq_truncate(tokens) |> result()

  @doc """
  Make another sequence with the same pages. Either copies a page before it writes there.

  Errors: `:no_memory`, `:closed`.
  """
  @spec fork(t()) :: {:ok, t()} | {:error, Error.t()}
  def fork(%__MODULE__{native: native}),
    do: fn -> Native.seq_fork(native) end |> Janitor.retry() |> made()

  @doc """
  Return the numbers of its pages. `Tmesh.Pages.tables/2` returns those of several sequences for a kernel.

  Errors: `:closed`.
  """
  @spec block_table(t()) :: {:ok, [non_neg_integer()]} | {:error, Error.t()}
  def block_table(%__MODULE__{native: native}) do
    with {:ok, {table, _tokens}} <- native |> Native.seq_table() |> result(),
         do: {:ok, for(<<page::native-32 <- table>>, do: page)}
  end

  @doc """
  Return the places of `count` tokens from `first` on (default: all of them), as `:int64`: page * page_tokens + place
  in the page.

  Errors: `:invalid` (beyond the sequence), `:closed`.
  """
  @spec slot_mapping(t(), non_neg_integer(), non_neg_integer() | nil) ::
          {:ok, Pages.numbers()} | {:error, Error.t()}
  def slot_mapping(%__MODULE__{native: native}, first \\ 0, count \\ nil) do
    with {:ok, slots} <- native |> Native.seq_slot_mapping(first, count) |> result(),
         do: {:ok, {slots, [div(byte_size(slots), 8)], :int64}}
  end

  @doc """
  Return a copy of a block, the first being block 0.

  Options: `device` (0); `offset` and `bytes` of a part of the block (all).

  Errors: `:invalid`, `:stale` (the memory was taken back), `:no_memory`, `:closed`.
  """
  @spec read(t(), non_neg_integer(),
          device: non_neg_integer(),
          offset: non_neg_integer(),
          bytes: non_neg_integer()
        ) :: {:ok, binary()} | {:error, Error.t()}
  def read(%__MODULE__{native: native}, block, opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, device: 0, offset: 0, bytes: nil) do
      read = fn -> Native.seq_read(native, block, opts[:device], opts[:offset], opts[:bytes]) end
      read |> Janitor.retry() |> result()
    end
  end

  @doc """
  Write into a block, from byte `offset` on. If others may have the page, it is copied first. Afterwards it belongs to
  this sequence alone.

  Options: `device` (0).

  Errors: `:invalid` (it does not fit), `:stale` (the memory was taken back), and those of `append/2`.
  """
  @spec write(t(), non_neg_integer(), non_neg_integer(), binary(), device: non_neg_integer()) ::
          :ok | {:error, Error.t()}
  def write(%__MODULE__{native: native}, block, offset, binary, opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, device: 0) do
      write = fn -> Native.seq_write(native, block, opts[:device], offset, binary) end
      write |> Janitor.retry() |> result()
    end
  end

  @doc """
  Return all blocks, one after the other and in place, as a tensor of bytes. It shows the sequence as it is now, and
  is valid until the sequence changes.

  Errors: `:unsupported` (without the module), `:invalid` (no blocks), `:closed`.
  """
  @spec gather(t(), non_neg_integer()) :: {:ok, TensorRef.t()} | {:error, Error.t()}
  def gather(%__MODULE__{native: native}, device \\ 0) do
    gather = fn -> Native.seq_gather(native, device) end

    with {:ok, {handle, ref}} <- gather |> Janitor.retry() |> result(),
         do: {:ok, TensorRef.unnamed(handle, ref)}
  end

  @doc """
  Let other processes of this tenant find the first blocks, which must be full, under these hashes. They stay cached
  until others need the room.

  Errors: `:invalid` (a block is not full), `:gone`, `:timeout`, `:closed`.
  """
  @spec cache(t(), [Pages.hash()]) :: :ok | {:error, Error.t()}
  def cache(%__MODULE__{native: native}, hashes) do
    with {:ok, joined} <- Pages.joined(hashes),
         do: fn -> Native.seq_cache(native, joined) end |> Janitor.retry() |> result()
  end

  @doc """
  Return a ticket for the present sequence, for `Tmesh.Pages.open_sequence/2` in other processes of the tenant. Its pages stay
  until `Tmesh.Pages.unshare/2`, or until this part of the pool ends.

  Errors: `:limit_exceeded` (1,024 tickets), `:gone`, `:timeout`, `:closed`.
  """
  @spec share(t()) :: {:ok, ticket :: String.t()} | {:error, Error.t()}
  def share(%__MODULE__{native: native}),
    do: fn -> Native.seq_share(native) end |> Janitor.retry() |> result()

  @doc "Release its pages. You may release it again."
  @spec release(t()) :: :ok
  def release(%__MODULE__{native: native}) do
    :ok = Native.seq_release(native)
  end

  @doc false
  @spec made(Native.result(Native.new_sequence())) :: {:ok, t()} | {:error, Error.t()}
  def made({:ok, {native, id}}), do: {:ok, %__MODULE__{native: native, id: id}}
  def made({:error, reason}), do: {:error, Error.from_native(reason)}

  defp result({:error, reason}), do: {:error, Error.from_native(reason)}
  defp result(success), do: success
end
