# SPDX-License-Identifier: MIT
defmodule Tmesh.Model do
  @moduledoc """
  Files of tensors, read once into memory that all processes of the machine share: safetensors, also several files
  with their index, and GGUF.

      {:ok, model} = Tmesh.Model.load("model.safetensors")
      %Tmesh.ZeroCopy.TensorRef{} = model["embeddings.weight"]
      {:ok, tensors} = Tmesh.Model.to_nx(model)

  Processes of one user that load the same files share one sealed region, in any of tmesh's languages. It stays as
  long as one of them has the model, a tensor or a binary of it. `report` says whether this process had to read. A
  file that is changed later changes nothing here, and is another model.

  `model["name"]` is a `Tmesh.ZeroCopy.TensorRef` with a handle of its own, which stays valid after the model is
  released. As an enumerable a model gives `{name, ref}` in the files' order, so `Map.new(model)` is a map of refs.
  If tmesh lacks the type of a tensor, such as GGUF's blocks, the ref has the bytes of the file.

    * `format` - `:safetensors` or `:gguf`
    * `names` - of its tensors, in the files' order
    * `entries` - the file's description of each tensor, by name, see `t:entry/0`
    * `report` - how it was loaded, see `t:report/0`

  ## A process that waits

  `load/2` returns when the model is loaded, also if another process reads it. Loading ends without traces when the
  calling process ends:

      task = Task.async(fn -> Tmesh.Model.load!(path) end)
      Task.shutdown(task, :brutal_kill)

  ## Bumblebee

  The option `safetensors_reader` of `Bumblebee.load_model/2` ([since its pull request
  456](https://github.com/elixir-nx/bumblebee/pull/456)) takes a function such as `read!/1`. It gets the path of a
  file and returns a map of names to Nx tensors:

      Bumblebee.load_model({:hf, "..."}, safetensors_reader: &Tmesh.Model.read!/1)

  Tensors of `Nx.BinaryBackend` are then read in place. Another backend makes its own copy of each tensor.
  """

  use Tmesh.Bang, ~w(load/2 metadata/1 to_nx/1 read/2 bundle/1 save/3)
  alias Tmesh.{Bundle, Context, Error, Janitor, Native, Options, Telemetry, ZeroCopy}
  alias Tmesh.ZeroCopy.TensorRef

  @enforce_keys [:native, :format, :names, :entries, :report]
  @derive {Inspect, only: [:format, :names]}
  defstruct @enforce_keys

  @typedoc """
  A tensor as its file describes it:

    * `type` - in the file's spelling (`"BF16"`, `"Q4_K"`)
    * `dtype` - `nil` if tmesh lacks the type
    * `shape` - in elements; `byte_size`
    * `index` - in the files' order
    * `file` - a number from 0 on; `file_offset` of its first byte there
  """
  @type entry :: %{
          index: non_neg_integer(),
          type: String.t(),
          dtype: TensorRef.dtype() | nil,
          shape: TensorRef.shape(),
          byte_size: non_neg_integer(),
          file: non_neg_integer(),
          file_offset: non_neg_integer()
        }

  @typedoc """
  How a model was loaded:

    * `bytes` - of the region; `huge_bytes` - of these, in huge pages
    * `bytes_read` - from the files by this VM, fewer if other processes read, too; `bytes_copied` - of these, once more
    * `tensors_moved` - to a better place
    * `ns` - the duration
    * `method` - `:splice`, `:io_uring`, `:direct`, `:read`, or `nil`: nothing was read here; `reason` - why
    * `shared` - with other processes, now or later
    * `direct_rate`, `buffered_rate` - bytes per second that were measured for the choice; 0: not measured
    * `hash` - of the contents, if requested, as 32 hex digits
    * `file_system` of the first file
    * `kept` - the name under which it is kept, or `nil`
  """
  @type report :: %{atom() => term()}

  @type t :: %__MODULE__{
          native: Native.model(),
          format: :safetensors | :gguf,
          names: [String.t()],
          entries: %{String.t() => entry()},
          report: report()
        }

  @typedoc """
    * `keep` - the memory outlives all processes, until it is dropped (`tmeshctl drop`) (false)
    * `alone` - share with no other process (false)
    * `hash` - `report.hash` is the contents' checksum (false)
    * `lenient` - take GGUF of version 2, bytes after the last tensor, and tensors that an index does not name
      (false). `report.reason` then names the deviation
    * `label` - of the region; the file's name without one
    * `progress` - a process that receives `{:tmesh_model, path, progress}` at least each 64 MiB. `progress` is a
      map of `bytes_done`, `bytes_total` and `waiting`, which is true while another process reads
  """
  @type option ::
          {:keep, boolean()}
          | {:alone, boolean()}
          | {:hash, boolean()}
          | {:label, String.t()}
          | {:lenient, boolean()}
          | {:progress, pid() | nil}

  @options [keep: false, alone: false, hash: false, label: "", progress: nil, lenient: false]

  @doc """
  Load the tensors of a safetensors or GGUF file. The path may also name an index (`.json`), the first file of a
  split GGUF, or a folder with `model.safetensors` in it.

  Errors; then no memory is left:

    * `:protocol` - malformed: the message names the mistake and the file
    * `:unsupported` - another version
    * `:stale` - a file changed while it was read
    * `:limit_exceeded` - `max_shared_memory_mb`
    * `:system` - `details.errno` names the system's error
    * `:not_found`, `:invalid`, and with `keep` those of `Tmesh.keep/3`
  """
  @spec load(Path.t(), [option()]) :: {:ok, t()} | {:error, Error.t()}
  def load(path, opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, @options),
         {:ok, path} <- path(path),
         {:ok, context} <- Context.limited() do
      [keep, alone, hash, label, progress, lenient] = for {key, _} <- @options, do: opts[key]
      load = fn -> Native.model_load(context, path, keep, alone, hash, label, progress, lenient) end

      Telemetry.span(
        [:tmesh, :model, :load],
        %{},
        %{path: path},
        fn -> load |> in_turn() |> made() end,
        &measured/1
      )
    end
  end

  # Loading holds a dirty scheduler, which the VM's files need too, so few calls load at once.
  defp in_turn(load) do
    case Janitor.retry(load) do
      {:error, {:eagain, _why}} ->
        Process.sleep(10)
        in_turn(load)

      other ->
        other
    end
  end

  # Path.expand/1 would turn it into the present folder.
  defp path(none) when none in ["", []],
    do: {:error, Error.new(:invalid, "no path is given: the present folder is \".\"")}

  defp path(path) do
    {:ok, Path.expand(path)}
  rescue
    _no_chardata -> {:error, Error.new(:invalid, "a path is text: #{inspect(path, limit: 5)}")}
  end

  defp made({:ok, native}) do
    {:ok, {format, entries, report}} = Native.model_info(native)

    {:ok,
     %__MODULE__{
       native: native,
       format: format,
       names: for({name, _entry} <- entries, do: name),
       entries: Map.new(entries),
       report: report
     }}
  end

  defp made({:error, reason}), do: {:error, Error.from_native(reason)}

  defp measured({:ok, model}), do: Map.take(model.report, [:bytes, :bytes_read])
  defp measured({:error, _error}), do: %{}

  @doc """
  Return the files' metadata as a map by key. Numbers that JSON lacks (NaN) are `nil`.

  Errors: `:closed`.
  """
  @spec metadata(t()) :: {:ok, %{String.t() => term()}} | {:error, Error.t()}
  def metadata(%__MODULE__{native: native}) do
    with {:ok, json} <- Native.model_metadata(native),
         {:ok, map} <- Native.json_decode(json) do
      {:ok, map}
    else
      {:error, reason} -> {:error, Error.from_native(reason)}
    end
  end

  @doc "Return the tensor of a name, or `:error`, as `model[name]` needs it. Raises `Tmesh.Error` for a released model."
  @spec fetch(t(), String.t()) :: {:ok, TensorRef.t()} | :error
  def fetch(%__MODULE__{native: native, entries: entries}, name) do
    with {:ok, entry} <- Map.fetch(entries, name) do
      case Native.model_tensor(native, entry.index) do
        {:ok, {handle, ref}} -> {:ok, TensorRef.unnamed(handle, ref)}
        {:error, reason} -> raise Error.from_native(reason)
      end
    end
  end

  @doc "Do as `fetch/2`, but raise `KeyError` for an unknown name."
  @spec fetch!(t(), String.t()) :: TensorRef.t()
  def fetch!(%__MODULE__{names: names} = model, name) do
    case fetch(model, name) do
      {:ok, ref} -> ref
      :error -> raise KeyError, key: name, term: names
    end
  end

  @doc """
  Return all tensors as Nx tensors by their names, over the model's memory, without a copy.

  Errors: `:unsupported` (Nx is not loaded, or lacks a tensor's type, which the message names), `:closed`.
  """
  @spec to_nx(t()) :: {:ok, %{String.t() => struct()}} | {:error, Error.t()}
  def to_nx(%__MODULE__{names: names} = model) do
    Enum.reduce_while(names, {:ok, %{}}, fn name, {:ok, done} ->
      case one_to_nx(model, name, model.entries[name]) do
        {:ok, tensor} -> {:cont, {:ok, Map.put(done, name, tensor)}}
        {:error, error} -> {:halt, {:error, %{error | message: "#{name}: #{error.message}"}}}
      end
    end)
  end

  defp one_to_nx(_model, _name, %{dtype: nil, type: type}),
    do: {:error, Error.new(:unsupported, "tmesh and Nx have no #{type}")}

  # The binary itself holds the memory that it points into.
  defp one_to_nx(%__MODULE__{native: native}, _name, %{index: index}) do
    with {:ok, {handle, native}} <- Native.model_tensor(native, index) do
      ref = TensorRef.unnamed(handle, native)
      tensor = Tmesh.Nx.to_nx(ref, copy: false)
      ZeroCopy.release!(ref)
      tensor
    else
      {:error, reason} -> {:error, Error.from_native(reason)}
    end
  end

  @doc """
  Read the tensors of a file as Nx tensors by their names: `load/2` and `to_nx/1`. Only these tensors hold the
  memory.

  Bumblebee's `safetensors_reader` takes `read!/1`, see the module's text.
  """
  @spec read(Path.t(), [option()]) :: {:ok, %{String.t() => struct()}} | {:error, Error.t()}
  def read(path, opts \\ []) do
    with {:ok, model} <- load(path, opts) do
      tensors = to_nx(model)
      :ok = release(model)
      tensors
    end
  end

  @doc """
  Return the tensors as one `Tmesh.Bundle`, with the files' metadata as JSON: one ref that other processes open.

  Errors: `:invalid` (more tensors than a bundle has), `:closed`, and those of `Tmesh.Bundle.put/2`.
  """
  @spec bundle(t()) :: {:ok, Bundle.t()} | {:error, Error.t()}
  def bundle(%__MODULE__{native: native}),
    do: fn -> Native.model_bundle(native) end |> Janitor.retry() |> Bundle.made()

  @typedoc """
    * `metadata` - texts by their names, for the file's header (none)
    * `max_shard_bytes` - the most bytes of one file (0: no limit). More tensors go to several files with an index,
      which `load/2` takes
    * `progress` - a process that receives `{:tmesh_model, path, progress}` as from `load/2`
  """
  @type save_option ::
          {:metadata, %{String.t() => String.t()}}
          | {:max_shard_bytes, non_neg_integer()}
          | {:progress, pid() | nil}

  @doc """
  Write tensors to a safetensors file, straight from their memory. The tensors are a model, a bundle, or a map for
  `Tmesh.Bundle.put/2`. A file appears whole or not at all, and replaces an older one: it is written without a name,
  synced and renamed, an index last. With `max_shard_bytes` the path ends in `.safetensors`, and `load/2` takes
  `NAME.safetensors.index.json` then.

  Metadata of a model is not copied: give it as `metadata`. Saving ends without traces when the calling process
  ends.

  Errors:

    * `:invalid` - a name, a name twice, or a tensor that is not contiguous
    * `:unsupported` - safetensors lacks a type; the message names the tensor
    * `:not_found` - the folder
    * `:exists` - the name belongs to something else than a regular file
    * `:system` - `details.errno` names the system's error: `:enospc`, `:eacces`
    * `:closed`, and those of `Tmesh.ZeroCopy.from_binary/4`

  After an error no file was made or replaced. Only if the last step of several files fails, some of them may have
  been.
  """
  @spec save(t() | Bundle.t() | %{String.t() => Bundle.value()}, Path.t(), [save_option()]) ::
          :ok | {:error, Error.t()}
  def save(tensors, path, opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, metadata: %{}, max_shard_bytes: 0, progress: nil),
         {:ok, metadata} <- texts(opts[:metadata]),
         {:ok, path} <- path(path),
         {:ok, context} <- Context.limited() do
      arguments = [path, opts[:max_shard_bytes], metadata, opts[:progress]]

      save = fn tensors ->
        saved = in_turn(fn -> apply(Native, :model_save, [context, tensors | arguments]) end)
        with {:error, reason} <- saved, do: {:error, Error.from_native(reason)}
      end

      Telemetry.span([:tmesh, :model, :save], %{}, %{path: path}, fn -> save_of(tensors, save) end)
    end
  end

  defp save_of(%kind{} = whole, save) when kind in [__MODULE__, Bundle] do
    with {:ok, bundle} <- Bundle.of(whole) do
      saved = save.(bundle.native)
      if kind == __MODULE__, do: Bundle.release(bundle)
      saved
    end
  end

  defp save_of(tensors, save) do
    Bundle.with_tensors(tensors, "", fn named ->
      save.(for {name, ref, _made?} <- named, do: {name, ref.handle})
    end)
  end

  defp texts(%{} = metadata) when not is_struct(metadata) do
    texts = Enum.flat_map(metadata, fn {key, value} -> [key, value] end)

    if Enum.all?(texts, &(is_binary(&1) and String.valid?(&1))),
      do: {:ok, texts},
      else: {:error, Error.new(:invalid, "metadata is a map of texts to texts")}
  end

  defp texts(_other), do: {:error, Error.new(:invalid, "metadata is a map of texts to texts")}

  @doc "Release the model. Tensors that were taken from it stay. You may release it again."
  @spec release(t()) :: :ok
  def release(%__MODULE__{native: native}) do
    :ok = Native.model_release(native)
  end
end
