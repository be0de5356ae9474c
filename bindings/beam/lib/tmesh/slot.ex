# SPDX-License-Identifier: MIT
defmodule Tmesh.Slot do
  @moduledoc """
  A place whose value, a `Tmesh.Bundle`, is replaced in one step: a model's newest weights, an adapter.

      {:ok, slot} = Tmesh.Slot.create(label: "adapter")         # one process publishes
      {:ok, 1} = Tmesh.Slot.publish(slot, %{"a" => a, "b" => b})

      {:ok, reader} = Tmesh.Slot.open(slot.token)               # any number read, in any language
      {:ok, value} = Tmesh.Slot.read(reader)
      value["a"]                                                # all of one generation, as long as it is held

      {:ok, slot} = Tmesh.Slot.create(name: "adapter")          # or by a name, one for all processes of the user
      {:ok, reader} = Tmesh.Slot.open_named("adapter")

  Each value has a generation, 1 and upwards. A replaced value stays for its holders and the holders of its tensors.
  It is freed with the last of them, however that ends. The slot ends when it is closed, or when no process of this
  VM has it any more: keep it in the state of a process. Then readers keep their values, and get a message.

  ## Watching

  `watch/1` requests a message for the time when there may be a newer value:

      def handle_info({:tmesh_slot, tag}, %{reader: %{tag: tag} = reader} = state) do
        case Tmesh.Slot.watch(reader) do
          :ok ->
            {:ok, value} = Tmesh.Slot.read(reader, state.value)
            {:noreply, %{state | value: value}}

          {:error, %Tmesh.Error{type: :gone}} ->
            {:stop, :normal, state}
        end
      end
  """

  use Tmesh.Bang, ~w(create/1 publish/2 generation/1 open/1 open_named/1 read/2 watch/1)
  alias Tmesh.{Bundle, Context, Error, Janitor, Model, Native, Options}

  defmodule Reader do
    @moduledoc """
    A reader of a slot: made by `Tmesh.Slot.open/1` and `Tmesh.Slot.open_named/1`. Give each process its own reader,
    because processes that share one wait for each other. The messages of `Tmesh.Slot.watch/1` have its `tag`.
    """
    @enforce_keys [:native, :tag]
    @derive {Inspect, only: []}
    defstruct @enforce_keys

    @type t :: %__MODULE__{native: Native.slot_reader(), tag: reference()}
  end

  defmodule Value do
    @moduledoc """
    A slot's value: its `bundle`, and its `generation`. `value["name"]` is a tensor of the bundle.
    """
    @enforce_keys [:generation, :bundle]
    defstruct @enforce_keys

    @type t :: %__MODULE__{generation: pos_integer(), bundle: Bundle.t()}

    @doc "Do as `Tmesh.Bundle.fetch/2`, as `value[name]` needs it."
    @spec fetch(t(), Bundle.name()) :: {:ok, Tmesh.ZeroCopy.TensorRef.t()} | :error
    def fetch(%__MODULE__{bundle: bundle}, name), do: Bundle.fetch(bundle, name)
  end

  @enforce_keys [:native, :token]
  @derive {Inspect, only: []}
  defstruct @enforce_keys

  @type t :: %__MODULE__{native: Native.slot(), token: String.t()}
  @type options :: [label: String.t(), max_ref: non_neg_integer(), name: String.t() | nil]

  @doc """
  Create an empty slot, to which this VM publishes. A process of the same user that has its token may read it.

  Options:

    * `label` - a name for people
    * `max_ref` - bytes of the longest bundle's ref (0: 16 KiB, for about 130 regions)
    * `name` - for `open_named/1` in all processes of this user, at most 63 bytes. A name is free again when its
      slot is closed or its publishing VM has died

  Errors: `:invalid`, `:exists` (a living process publishes a slot under that name), `:access` (something else has
  the name's place), `:timeout`, `:no_memory`, `:too_many_files`.
  """
  @spec create(options()) :: {:ok, t()} | {:error, Error.t()}
  def create(opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, label: "", max_ref: 0, name: nil) do
      create = fn ->
        Native.slot_create(Context.get(), opts[:label], opts[:max_ref], opts[:name])
      end

      with {:ok, {native, token}} <- create |> Janitor.retry() |> result(),
           do: {:ok, %__MODULE__{native: native, token: token}}
    end
  end

  @doc """
  Replace the value, and return its generation. The value is a bundle, a `Tmesh.Model`, or a map for
  `Tmesh.Bundle.put/2`, which makes a bundle of it; `nil` empties the slot. Readers see the old or the new value,
  whole.

  Errors: `:invalid` (the bundle's ref is longer than `max_ref`), `:closed`, and those of `Tmesh.Bundle.put/2`. Then
  the old value stays.
  """
  @spec publish(t(), Bundle.t() | Model.t() | %{String.t() => Bundle.value()} | nil) ::
          {:ok, pos_integer()} | {:error, Error.t()}
  def publish(slot, value)
  def publish(%__MODULE__{} = slot, nil), do: publish_native(slot, nil)

  def publish(%__MODULE__{} = slot, value) do
    with {:ok, bundle} <- Bundle.of(value), do: publish_native(slot, bundle.native)
  end

  defp publish_native(%__MODULE__{native: native}, bundle),
    do: fn -> Native.slot_publish(native, bundle) end |> Janitor.retry() |> result()

  @doc """
  Return the newest value's generation of a slot that this VM publishes; 0: nothing was published yet.

  Errors: `:closed`.
  """
  @spec generation(t()) :: {:ok, non_neg_integer()} | {:error, Error.t()}
  def generation(%__MODULE__{native: native}), do: native |> Native.slot_generation() |> result()

  @doc """
  Open the slot that has this token, for reading.

  Errors: `:not_found` (no such slot, or its publisher is gone), `:protocol` (another token), `:busy` (1,024 readers),
  `:timeout`, `:too_many_files`.
  """
  @spec open(String.t()) :: {:ok, Reader.t()} | {:error, Error.t()}
  def open(token), do: open_by(&Native.slot_open/2, token)

  @doc """
  Open the slot that has this name now, for reading. The reader stays with it when the name becomes another slot's.

  Errors: `:not_found` (no slot has that name, or its publisher is gone), `:invalid` (a malformed name), `:access`
  (something else has its place), and those of `open/1`.
  """
  @spec open_named(String.t()) :: {:ok, Reader.t()} | {:error, Error.t()}
  def open_named(name), do: open_by(&Native.slot_open_named/2, name)

  defp open_by(open, text) do
    open = fn -> open.(Context.get(), text) end

    with {:ok, native} <- open |> Janitor.patiently() |> result(),
         do: {:ok, %Reader{native: native, tag: make_ref()}}
  end

  @doc """
  Return the newest value. Give it the last value that you read: while nothing newer was published, it returns that
  one, at the cost of a look at memory.

  Errors:

    * `:not_found` - the slot is empty
    * `:gone` - there is a newer value, but its publisher is gone, and the value with it
    * `:timeout` - it is replaced faster than it can be opened
    * `:closed`, and those of `Tmesh.Bundle.open/2`
  """
  @spec read(Reader.t(), Value.t() | nil) :: {:ok, Value.t()} | {:error, Error.t()}
  def read(reader, last \\ nil)

  def read(%Reader{native: native}, last) when last == nil or is_struct(last, Value) do
    case Janitor.patiently(fn -> Native.slot_read(native, last && last.generation) end) do
      :same -> {:ok, last}
      {:ok, {generation, bundle}} -> value(generation, Bundle.made({:ok, bundle}))
      {:error, reason} -> {:error, Error.from_native(reason)}
    end
  end

  defp value(generation, {:ok, bundle}),
    do: {:ok, %Value{generation: generation, bundle: bundle}}

  @doc """
  Request `{:tmesh_slot, reader.tag}` once, for this process. It comes when the
  publisher ends, or when there may be a newer value than the last one of this reader, at once if there is one already.

  Errors: `:gone` (the publisher has ended, and there is no newer value: no message comes), `:closed`.
  """
  @spec watch(Reader.t()) :: :ok | {:error, Error.t()}
  def watch(%Reader{native: native, tag: tag}),
    do: fn -> Native.slot_watch(native, {:tmesh_slot, tag}) end |> Janitor.patiently() |> result()

  @doc """
  End a slot that this VM publishes, or stop reading one. Values that were read stay. You may close it again.
  """
  @spec close(t() | Reader.t()) :: :ok
  def close(%kind{native: native}) when kind in [__MODULE__, Reader] do
    :ok = Native.slot_close(native)
  end

  defp result({:error, reason}), do: {:error, Error.from_native(reason)}
  defp result(success), do: success
end
