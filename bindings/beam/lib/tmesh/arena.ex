# SPDX-License-Identifier: MIT
defmodule Tmesh.Arena do
  @moduledoc """
  Memory for many small tensors, made one after the other in few regions.

      {:ok, arena} = Tmesh.Arena.create(label: "embeddings")
      {:ok, ref} = Tmesh.ZeroCopy.from_binary(vector, [384], :float32, arena: arena)

  A region for each tensor would cost a descriptor, a page and, at every receiver, an open. Any process of the VM may
  use an arena, several at once.

  Tensors of one region share its rights: a process that may open one can reach its neighbours. So none of them can be
  sealed (`:invalid`). Room is given out once. A region's memory is freed with the last of its tensors, wherever they
  are held. The tensors outlive the arena.
  """

  use Tmesh.Bang, ~w(create/1)
  alias Tmesh.{Context, Error, Native, Options}

  @enforce_keys [:native, :label]
  @derive {Inspect, only: [:label]}
  defstruct @enforce_keys

  @type t :: %__MODULE__{native: reference(), label: String.t()}

  @typedoc """
    * `bytes` - of a region (0: 1 MiB). A tensor of more than a quarter of that gets a region of its own
    * `label`, `huge`, `mode`, `node`, `gid`, `hold_ms`, `pin` - of its regions, as for `Tmesh.ZeroCopy.allocate/3`
  """
  @type option ::
          {:bytes, non_neg_integer()}
          | Tmesh.ZeroCopy.own_region_option()

  @doc """
  Make an arena, which makes its regions when they are needed.

  Errors: `:invalid`.

      iex> {:ok, arena} = Tmesh.Arena.create()
      iex> {:ok, one} = Tmesh.ZeroCopy.from_binary("one", [3], :uint8, arena: arena)
      iex> {:ok, two} = Tmesh.ZeroCopy.from_binary("two", [3], :uint8, arena: arena)
      iex> {one.offset, two.offset}
      {0, 256}
  """
  @spec create([option()]) :: {:ok, t()} | {:error, Error.t()}
  def create(opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, [bytes: 0] ++ Options.of_region()) do
      case Native.arena_create(Context.get(), opts[:bytes], Options.region(opts)) do
        {:ok, native} -> {:ok, %__MODULE__{native: native, label: opts[:label]}}
        {:error, reason} -> {:error, Error.from_native(reason)}
      end
    end
  end
end
