# SPDX-License-Identifier: MIT
defmodule Tmesh.Pages do
  @moduledoc """
  A part in a `Tmesh.PagePool`, for the tenant of a token: sequences of pages that other processes of the tenant may
  share, in any of tmesh's languages.

      {:ok, pages} = Tmesh.Pages.open(token)
      {:ok, sequence} = Tmesh.Pages.sequence(pages)
      :ok = Tmesh.Pages.Sequence.append(sequence, 40)                 # room for 40 tokens: 3 pages of 16
      :ok = Tmesh.Pages.Sequence.write(sequence, 0, 0, keys)          # into block 0, at its first byte
      {:ok, other} = Tmesh.Pages.Sequence.fork(sequence)              # the same pages, copied when written
      {:ok, {tables, lengths}} = Tmesh.Pages.tables([sequence, other])

  The part ends when it is closed, or when no process of this VM has it or a sequence of it any more. All processes
  of a tenant may write to all of its pages. `docs/reference/pages.md` describes the damage that one can do to
  another.
  """

  use Tmesh.Bang,
      ~w(open/1 info/1 head/2 sequence/1 find/2 hash/3 open_sequence/2 unshare/2 tables/2 slab/3
         trim/1)

  alias Tmesh.{Context, Error, Janitor, Native, Options}
  alias Tmesh.Pages.Sequence
  alias Tmesh.ZeroCopy.TensorRef

  @enforce_keys [:native]
  @derive {Inspect, only: []}
  defstruct @enforce_keys

  @type t :: %__MODULE__{native: Native.pages()}

  @typedoc """
  The pool's shape (`page_bytes`, `page_tokens`, `slab_pages`, `max_pages`, `devices`, `heads`), and counts of this
  part: pages `held` and `spare`, and pages copied before a write (`copies`, `bytes_copied`).
  """
  @type info :: %{atom() => non_neg_integer()}

  @typedoc "A hash of `hash/3`: 16 bytes."
  @type hash :: binary()

  @typedoc "Numbers for a kernel, in the form of `Tmesh.ZeroCopy.from_binary/4` and `Tmesh.Bundle.put/2`."
  @type numbers :: {binary(), [non_neg_integer()], :int32 | :int64}

  @doc """
  Take part in the pool.

  Errors: `:not_found` (the pool is gone), `:protocol` (another token), `:busy` (the pool has the most parts),
  `:timeout`, `:no_memory`, `:too_many_files`.
  """
  @spec open(String.t()) :: {:ok, t()} | {:error, Error.t()}
  def open(token) do
    case Janitor.retry(fn -> Native.pages_open(Context.get(), token) end) do
      {:ok, native} ->
        {:ok, %__MODULE__{native: native}}

      {:error, {:eagain, _why}} ->
        Process.sleep(:rand.uniform(5))
        open(token)

      {:error, reason} ->
        {:error, Error.from_native(reason)}
    end
  end

  @doc """
  Return the pool's shape and the counts of this part.

  Errors: `:closed`.
  """
  @spec info(t()) :: {:ok, info()} | {:error, Error.t()}
  def info(%__MODULE__{native: native}), do: native |> Native.pages_info() |> result()

  @doc """
  Return the place of a head: its device, and its index among that device's heads.

  Errors: `:invalid`, `:closed`.
  """
  @spec head(t(), non_neg_integer()) ::
          {:ok, {device :: non_neg_integer(), place :: non_neg_integer()}} | {:error, Error.t()}
  def head(%__MODULE__{native: native}, head), do: native |> Native.pages_head(head) |> result()

  @doc """
  Make a sequence without tokens.

  Errors: `:no_memory`, `:closed`.
  """
  @spec sequence(t()) :: {:ok, Sequence.t()} | {:error, Error.t()}
  def sequence(%__MODULE__{native: native}),
    do: fn -> Native.pages_sequence(native) end |> Janitor.retry() |> Sequence.made()

  @doc """
  Return a sequence of the longest prefix that is cached under these hashes (at most 8,192). It may have no block.

  Errors: `:invalid`, `:gone` (the pool), `:timeout`, `:no_memory`, `:closed`.
  """
  @spec find(t(), [hash()]) :: {:ok, Sequence.t()} | {:error, Error.t()}
  def find(%__MODULE__{native: native}, hashes) do
    with {:ok, joined} <- joined(hashes),
         do: fn -> Native.pages_find(native, joined) end |> Janitor.retry() |> Sequence.made()
  end

  @doc """
  Hash a block's tokens (integers of 32 bits) that follow those with the hash `parent`. The hash depends on the
  tenant's key: the same tokens have another hash for another tenant.

  Errors: `:invalid`, `:closed`.
  """
  @spec hash(t(), Enumerable.t(), hash() | nil) :: {:ok, hash()} | {:error, Error.t()}
  def hash(%__MODULE__{native: native}, tokens, parent \\ nil) do
    with {:ok, packed} <- packed(tokens),
         do: native |> Native.pages_hash(packed, parent) |> result()
  end

  @doc """
  Take the sequence that another process of the tenant shares (`Tmesh.Pages.Sequence.share/1`).

  Errors: `:protocol` (no ticket), `:not_found` (it has ended, or is another tenant's), `:gone`, `:timeout`,
  `:no_memory`, `:closed`.
  """
  @spec open_sequence(t(), ticket :: String.t()) :: {:ok, Sequence.t()} | {:error, Error.t()}
  def open_sequence(%__MODULE__{native: native}, ticket),
    do: fn -> Native.pages_open_sequence(native, ticket) end |> Janitor.retry() |> Sequence.made()

  @doc """
  End a ticket of this part. Sequences that were taken by it stay.

  Errors: those of `open_sequence/2`.
  """
  @spec unshare(t(), ticket :: String.t()) :: :ok | {:error, Error.t()}
  def unshare(%__MODULE__{native: native}, ticket),
    do: native |> Native.pages_unshare(ticket) |> result()

  @doc """
  Return the block tables in the form of paged attention kernels: two tuples `{binary, shape, dtype}`. The first is
  `:int32` of shape `[sequences, width]`, row by row, with 0 after the last block of a sequence. The second is `:int32`
  of `[sequences]`, the lengths in tokens. `width` is by default that of the longest sequence. A kernel that takes
  tensors gets them by `Tmesh.ZeroCopy.from_binary/4`.

  Errors: `:invalid` (a sequence is longer than `width`), `:closed`.

      iex> {:ok, pool} = Tmesh.PagePool.create(page_bytes: 4096, page_tokens: 16)
      iex> {:ok, token} = Tmesh.PagePool.tenant(pool)
      iex> {:ok, pages} = Tmesh.Pages.open(token)
      iex> {:ok, sequence} = Tmesh.Pages.sequence(pages)
      iex> :ok = Tmesh.Pages.Sequence.append(sequence, 20)
      iex> {:ok, {{_numbers, [1, 2], :int32}, lengths}} = Tmesh.Pages.tables([sequence])
      iex> {lengths, Tmesh.PagePool.close(pool)}
      {{<<20::native-32>>, [1], :int32}, :ok}
  """
  @spec tables([Sequence.t()], non_neg_integer() | nil) ::
          {:ok, {numbers(), numbers()}} | {:error, Error.t()}
  def tables(sequences, width \\ nil) when is_list(sequences) do
    with {:ok, rows} <- rows(sequences, []),
         longest = rows |> Enum.map(fn {row, _tokens} -> blocks(row) end) |> Enum.max(fn -> 0 end),
         {:ok, width} <- width(width, longest) do
      tables = for {row, _tokens} <- rows, into: <<>>, do: row <> zeros(width - blocks(row))
      lengths = for {_row, tokens} <- rows, into: <<>>, do: <<tokens::native-32>>
      count = length(rows)
      {:ok, {{tables, [count, width], :int32}, {lengths, [count], :int32}}}
    end
  end

  @doc """
  Return the memory of a slab as a writable tensor. It consists of the pages from `slab * slab_pages` on, also of
  pages held elsewhere. Use it for work on pages in another process, such as an engine (`Tmesh.Engine.lifeline/2`).
  `shape` and `dtype` describe the tensor from page 0 of the slab on; `nil`: its bytes.

  Options: `dtype` (`:uint8`), `slab` (0), `device` (0).

  Errors: `:not_found` (this part had no page of it so far), `:invalid`, `:closed`.
  """
  @spec slab(t(), [non_neg_integer()] | nil,
          dtype: TensorRef.dtype(),
          slab: non_neg_integer(),
          device: non_neg_integer()
        ) :: {:ok, TensorRef.t()} | {:error, Error.t()}
  def slab(%__MODULE__{native: native}, shape \\ nil, opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, dtype: :uint8, slab: 0, device: 0),
         slab = fn ->
           Native.pages_slab(native, opts[:slab], opts[:device], shape, opts[:dtype])
         end,
         {:ok, {handle, ref}} <- slab |> Janitor.retry() |> result(),
         do: {:ok, TensorRef.unnamed(handle, ref)}
  end

  @doc "Return the pages that this part keeps ready to the pool's owner. Errors: `:closed`."
  @spec trim(t()) :: :ok | {:error, Error.t()}
  def trim(%__MODULE__{native: native}), do: native |> Native.pages_trim() |> result()

  @doc "Leave the pool. Its sequences go on until they are released. You may close it again."
  @spec close(t()) :: :ok
  def close(%__MODULE__{native: native}) do
    :ok = Native.pages_close(native)
  end

  # Join hashes one after the other.
  @doc false
  @spec joined(term()) :: {:ok, binary()} | {:error, Error.t()}
  def joined(hashes) do
    if is_list(hashes) and Enum.all?(hashes, &(is_binary(&1) and byte_size(&1) == 16)) do
      {:ok, IO.iodata_to_binary(hashes)}
    else
      {:error, Error.new(:invalid, "hashes are what Tmesh.Pages.hash/3 gives, 16 bytes each")}
    end
  end

  defp packed(tokens) do
    Enum.reduce_while(tokens, {:ok, <<>>}, fn
      token, {:ok, packed} when token in -0x80000000..0x7FFFFFFF ->
        {:cont, {:ok, <<packed::binary, token::signed-native-32>>}}

      token, _packed ->
        {:halt, {:error, Error.new(:invalid, "no integer of 32 bits: #{inspect(token, limit: 5)}")}}
    end)
  end

  defp rows([%Sequence{} = sequence | rest], rows) do
    with {:ok, row} <- sequence.native |> Native.seq_table() |> result(),
         do: rows(rest, [row | rows])
  end

  defp rows([], rows), do: {:ok, Enum.reverse(rows)}

  defp rows([other | _rest], _rows),
    do: {:error, Error.new(:invalid, "no sequence: #{inspect(other, limit: 5)}")}

  defp width(nil, longest), do: {:ok, longest}
  defp width(width, longest) when is_integer(width) and width >= longest, do: {:ok, width}

  defp width(width, longest) do
    why = "a sequence has #{longest} blocks: that is not within the width #{inspect(width)}"
    {:error, Error.new(:invalid, why)}
  end

  defp blocks(row), do: div(byte_size(row), 4)
  defp zeros(blocks), do: <<0::size(blocks)-unit(32)>>

  defp result({:error, reason}), do: {:error, Error.from_native(reason)}
  defp result(success), do: success
end
