# SPDX-License-Identifier: MIT
defmodule Tmesh.Native do
  @moduledoc false
  # The NIFs of c_src/, one library call each. Tmesh and Tmesh.ZeroCopy are their public interface. Handles and
  # contexts are resources. Only context_open/1 raises (badarg): terms of a wrong shape give an error like any other.

  @on_load :load

  @type context :: reference()
  @type handle :: reference()
  @type reason :: {atom(), String.t()}
  @type result(value) :: {:ok, value} | {:error, reason()}

  @typedoc "id, token, offset, byte_size, shape, dtype, strides, device"
  @type ref ::
          {non_neg_integer(), String.t(), non_neg_integer(), non_neg_integer(), [integer()], atom(),
           [integer()], :cpu | {:cuda, non_neg_integer()}}

  @typedoc "label, huge, mode, node, gid, hold_ms, pin"
  @type region_opts ::
          {String.t(), boolean() | :try, non_neg_integer(), non_neg_integer() | nil,
           non_neg_integer() | nil, non_neg_integer(), boolean()}

  @type arena :: reference()

  @doc false
  def load do
    :tmesh |> :code.priv_dir() |> :filename.join(~c"tmesh_nif") |> :erlang.load_nif(0)
  end

  @spec janitor() :: :ok
  def janitor, do: :erlang.nif_error(:not_loaded)

  @spec sweep() :: [{:error | :warning | :info | :debug, String.t()}]
  def sweep, do: :erlang.nif_error(:not_loaded)

  # Some pids come several times.
  @spec held_by() :: [pid()]
  def held_by, do: :erlang.nif_error(:not_loaded)

  @spec context_open(
          {:auto | :kernel | :memfd, max_bytes :: non_neg_integer(),
           region_pool_bytes :: non_neg_integer(), timeout_ns :: non_neg_integer(),
           max_opening :: pos_integer()}
        ) :: result(context())
  def context_open(_opts), do: :erlang.nif_error(:not_loaded)

  @spec context_limit(context(), max_bytes :: non_neg_integer()) :: :ok | {:error, reason()}
  def context_limit(_context, _max_bytes), do: :erlang.nif_error(:not_loaded)

  @spec context_backend(context()) :: result(:kernel | :memfd)
  def context_backend(_context), do: :erlang.nif_error(:not_loaded)

  @spec context_caps(context()) :: result([{String.t(), atom(), String.t()}])
  def context_caps(_context), do: :erlang.nif_error(:not_loaded)

  @spec context_stats(context()) :: result(%{atom() => non_neg_integer()})
  def context_stats(_context), do: :erlang.nif_error(:not_loaded)

  @spec context_flush(context() | nil) ::
          result(
            {held :: non_neg_integer(), bytes :: non_neg_integer(), messages :: non_neg_integer()}
          )
  def context_flush(_context), do: :erlang.nif_error(:not_loaded)

  @spec context_trim(context()) :: result(non_neg_integer())
  def context_trim(_context), do: :erlang.nif_error(:not_loaded)

  @spec arena_create(context(), bytes :: non_neg_integer(), region_opts()) :: result(arena())
  def arena_create(_context, _bytes, _opts), do: :erlang.nif_error(:not_loaded)

  @spec create(context(), [integer()], atom(), region_opts() | arena()) ::
          result({handle(), ref()})
  def create(_context, _shape, _dtype, _opts), do: :erlang.nif_error(:not_loaded)

  @spec put(context(), binary(), [integer()], atom(), region_opts() | arena(), boolean()) ::
          result({handle(), ref()})
  def put(_context, _binary, _shape, _dtype, _opts, _seal), do: :erlang.nif_error(:not_loaded)

  @spec open(context(), ref(), :read | :write) :: result(handle())
  def open(_context, _ref, _rights), do: :erlang.nif_error(:not_loaded)

  @typedoc "How long a ref holds its memory, in nanoseconds."
  @type hold :: pos_integer() | nil

  @spec ref(handle(), :read | :write, hold()) :: result(ref())
  def ref(_handle, _rights, _hold), do: :erlang.nif_error(:not_loaded)

  @spec name(handle()) :: result({non_neg_integer(), String.t()})
  def name(_handle), do: :erlang.nif_error(:not_loaded)

  @spec seal(handle()) :: :ok | {:error, reason()}
  def seal(_handle), do: :erlang.nif_error(:not_loaded)

  @spec write(handle(), non_neg_integer(), binary()) :: :ok | {:error, reason()}
  def write(_handle, _offset, _binary), do: :erlang.nif_error(:not_loaded)

  @spec info(handle()) :: result(map())
  def info(_handle), do: :erlang.nif_error(:not_loaded)

  @spec regions(context()) :: result([map()])
  def regions(_context), do: :erlang.nif_error(:not_loaded)

  @spec holders(context(), id :: non_neg_integer()) :: result([map()])
  def holders(_context, _id), do: :erlang.nif_error(:not_loaded)

  @spec token_id(context(), token :: String.t()) :: result(non_neg_integer())
  def token_id(_context, _token), do: :erlang.nif_error(:not_loaded)

  @type engine :: reference()

  # Calls that wait for engines take a tag first. They return `started()`, and their result comes as `{tag, result}`.
  @type started :: :ok | {:error, reason()}

  @spec engine_connect(
          reference(),
          context(),
          name :: String.t(),
          timeout_ns :: non_neg_integer()
        ) :: started()
  def engine_connect(_tag, _context, _name, _timeout), do: :erlang.nif_error(:not_loaded)

  @spec engine_info(engine()) ::
          result({backend :: String.t(), version :: String.t(), pid :: non_neg_integer()})
  def engine_info(_engine), do: :erlang.nif_error(:not_loaded)

  @spec engine_graph(
          reference(),
          engine(),
          path :: String.t(),
          [{String.t(), handle()}],
          prepack :: boolean()
        ) :: started()
  def engine_graph(_tag, _engine, _path, _weights, _prepack), do: :erlang.nif_error(:not_loaded)

  @spec engine_operands(engine()) :: result({[tuple()], [tuple()]})
  def engine_operands(_graph), do: :erlang.nif_error(:not_loaded)

  # Inputs and outputs are handles of tensors, or device tensors.
  @spec engine_bind(
          reference(),
          engine(),
          graph :: engine(),
          [{String.t(), handle() | engine()}],
          [{String.t(), handle() | engine(), in_place :: String.t() | nil}]
        ) :: started()
  def engine_bind(_tag, _engine, _graph, _inputs, _outputs), do: :erlang.nif_error(:not_loaded)

  @spec engine_rebind(
          reference(),
          engine(),
          binding :: engine(),
          [{String.t(), handle() | engine()}]
        ) :: started()
  def engine_rebind(_tag, _engine, _binding, _inputs), do: :erlang.nif_error(:not_loaded)

  @spec engine_keep(reference(), engine(), pages()) :: started()
  def engine_keep(_tag, _engine, _pages), do: :erlang.nif_error(:not_loaded)

  @spec placed_open(
          reference(),
          [engine()] | (places :: engine()),
          graph :: binary(),
          [{String.t(), non_neg_integer()}],
          [{String.t(), handle()}],
          folder :: String.t()
        ) :: started()
  def placed_open(_tag, _engines, _graph, _at, _weights, _folder),
    do: :erlang.nif_error(:not_loaded)

  @spec placed_partitions(engine()) :: result([non_neg_integer()])
  def placed_partitions(_placed), do: :erlang.nif_error(:not_loaded)

  @spec placed_move(reference(), engine(), [non_neg_integer()]) :: started()
  def placed_move(_tag, _placed, _at), do: :erlang.nif_error(:not_loaded)

  @spec placed_at(engine(), nodes :: non_neg_integer()) :: result([non_neg_integer()])
  def placed_at(_placed, _nodes), do: :erlang.nif_error(:not_loaded)

  @spec placed_tensor(binding :: engine(), name :: String.t()) :: result({handle(), ref()})
  def placed_tensor(_binding, _name), do: :erlang.nif_error(:not_loaded)

  # memory 0: no limit; node -1: any.
  @spec places_open(
          [{engine(), memory :: non_neg_integer(), node :: integer()}],
          idle_ns :: non_neg_integer()
        ) :: result(engine())
  def places_open(_places, _idle), do: :erlang.nif_error(:not_loaded)

  @spec places_sweep(reference(), engine()) :: started()
  def places_sweep(_tag, _places), do: :erlang.nif_error(:not_loaded)

  @spec places_used(engine(), index :: non_neg_integer()) :: result(non_neg_integer())
  def places_used(_places, _index), do: :erlang.nif_error(:not_loaded)

  @spec places_stats(engine()) :: result(map())
  def places_stats(_places), do: :erlang.nif_error(:not_loaded)

  @spec placed_bind(
          reference(),
          engine(),
          [{String.t(), handle() | nil}],
          [{String.t(), handle()}]
        ) :: started()
  def placed_bind(_tag, _placed, _inputs, _outputs), do: :erlang.nif_error(:not_loaded)

  @spec engine_dispatch(reference(), engine(), cancellable :: engine() | nil) :: started()
  def engine_dispatch(_tag, _binding, _cancellable), do: :erlang.nif_error(:not_loaded)

  @spec engine_cancellable(context()) :: result(engine())
  def engine_cancellable(_context), do: :erlang.nif_error(:not_loaded)

  @spec engine_cancel(engine()) :: :ok | {:error, reason()}
  def engine_cancel(_cancellable), do: :erlang.nif_error(:not_loaded)

  # flags: 1 readable, 2 writable, 4 exportable.
  @spec engine_tensor(engine(), [integer()], atom(), flags :: non_neg_integer()) ::
          result(engine())
  def engine_tensor(_engine, _shape, _dtype, _flags), do: :erlang.nif_error(:not_loaded)

  @spec engine_tensor_wrap(
          engine(),
          handle(),
          writable :: boolean(),
          flags :: non_neg_integer()
        ) :: result(engine())
  def engine_tensor_wrap(_engine, _handle, _writable, _flags), do: :erlang.nif_error(:not_loaded)

  @spec engine_tensor_info(engine()) :: result(map())
  def engine_tensor_info(_tensor), do: :erlang.nif_error(:not_loaded)

  @spec engine_tensor_read(engine()) :: result(binary())
  def engine_tensor_read(_tensor), do: :erlang.nif_error(:not_loaded)

  @spec engine_tensor_write(engine(), binary()) :: :ok | {:error, reason()}
  def engine_tensor_write(_tensor, _binary), do: :erlang.nif_error(:not_loaded)

  @spec engine_tensor_export(engine()) :: result({handle(), ref()})
  def engine_tensor_export(_tensor), do: :erlang.nif_error(:not_loaded)

  @spec engine_tensor_destroy(engine()) :: :ok | {:error, reason()}
  def engine_tensor_destroy(_tensor), do: :erlang.nif_error(:not_loaded)

  @type graph :: reference()
  @type graph_made ::
          {graph(), name :: String.t(), nodes :: non_neg_integer(), outputs :: non_neg_integer()}

  @spec graph_create(name :: String.t()) :: result(graph_made())
  def graph_create(_name), do: :erlang.nif_error(:not_loaded)

  @spec graph_parse(binary()) :: result(graph_made())
  def graph_parse(_text), do: :erlang.nif_error(:not_loaded)

  @spec graph_read(path :: String.t()) :: result(graph_made())
  def graph_read(_path), do: :erlang.nif_error(:not_loaded)

  @spec graph_add(
          graph(),
          nodes :: non_neg_integer(),
          outputs :: non_neg_integer(),
          {name :: String.t(), op :: atom(), inputs :: [String.t()], keyword()}
          | {output :: String.t(), node :: String.t()}
        ) :: result(graph_made())
  def graph_add(_graph, _nodes, _outputs, _what), do: :erlang.nif_error(:not_loaded)

  @spec graph_write(
          graph(),
          nodes :: non_neg_integer(),
          outputs :: non_neg_integer(),
          :json | :text | :dot
        ) :: result(String.t())
  def graph_write(_graph, _nodes, _outputs, _form), do: :erlang.nif_error(:not_loaded)

  @type slot :: reference()
  @type slot_reader :: reference()

  @spec slot_create(
          context(),
          label :: String.t(),
          max_ref :: non_neg_integer(),
          name :: String.t() | nil
        ) :: result({slot(), token :: String.t()})
  def slot_create(_context, _label, _max_ref, _name), do: :erlang.nif_error(:not_loaded)

  @spec slot_publish(slot(), bundle() | nil) :: result(generation :: pos_integer())
  def slot_publish(_slot, _bundle), do: :erlang.nif_error(:not_loaded)

  @spec slot_generation(slot()) :: result(non_neg_integer())
  def slot_generation(_slot), do: :erlang.nif_error(:not_loaded)

  @spec slot_open(context(), token :: String.t()) :: result(slot_reader())
  def slot_open(_context, _token), do: :erlang.nif_error(:not_loaded)

  @spec slot_open_named(context(), name :: String.t()) :: result(slot_reader())
  def slot_open_named(_context, _name), do: :erlang.nif_error(:not_loaded)

  @spec slot_read(slot_reader(), generation :: pos_integer() | nil) ::
          :same | result({pos_integer(), bundle()})
  def slot_read(_reader, _generation), do: :erlang.nif_error(:not_loaded)

  @spec slot_watch(slot_reader(), message :: term()) :: :ok | {:error, reason()}
  def slot_watch(_reader, _message), do: :erlang.nif_error(:not_loaded)

  @spec slot_close(slot() | slot_reader()) :: :ok | {:error, reason()}
  def slot_close(_slot), do: :erlang.nif_error(:not_loaded)

  @type page_pool :: reference()
  @type pages :: reference()
  @type sequence :: reference()

  @typedoc "page_bytes, page_tokens, slab_pages, max_pages, devices, heads"
  @type page_pool_opts ::
          {non_neg_integer(), non_neg_integer(), non_neg_integer(), non_neg_integer(),
           non_neg_integer(), non_neg_integer()}

  @spec page_pool_create(context() | nil, page_pool_opts()) :: result(page_pool())
  def page_pool_create(_context, _opts), do: :erlang.nif_error(:not_loaded)

  @spec page_pool_tenant(page_pool(), max_pages :: non_neg_integer()) ::
          result(token :: String.t())
  def page_pool_tenant(_pool, _max_pages), do: :erlang.nif_error(:not_loaded)

  @spec page_pool_info(page_pool()) :: result(%{atom() => non_neg_integer()})
  def page_pool_info(_pool), do: :erlang.nif_error(:not_loaded)

  @spec page_pool_close(page_pool()) :: :ok | {:error, reason()}
  def page_pool_close(_pool), do: :erlang.nif_error(:not_loaded)

  @spec pages_open(context() | nil, token :: String.t()) :: result(pages())
  def pages_open(_context, _token), do: :erlang.nif_error(:not_loaded)

  @spec pages_info(pages()) :: result(%{atom() => non_neg_integer()})
  def pages_info(_pages), do: :erlang.nif_error(:not_loaded)

  @spec pages_head(pages(), head :: non_neg_integer()) ::
          result({device :: non_neg_integer(), place :: non_neg_integer()})
  def pages_head(_pages, _head), do: :erlang.nif_error(:not_loaded)

  @spec pages_hash(pages(), int32 :: binary(), parent :: binary() | nil) :: result(binary())
  def pages_hash(_pages, _tokens, _parent), do: :erlang.nif_error(:not_loaded)

  @typedoc "The sequence, and its id."
  @type new_sequence :: {sequence(), non_neg_integer()}

  @spec pages_sequence(pages()) :: result(new_sequence())
  def pages_sequence(_pages), do: :erlang.nif_error(:not_loaded)

  @spec pages_find(pages(), hashes :: binary()) :: result(new_sequence())
  def pages_find(_pages, _hashes), do: :erlang.nif_error(:not_loaded)

  @spec pages_open_sequence(pages(), ticket :: String.t()) :: result(new_sequence())
  def pages_open_sequence(_pages, _ticket), do: :erlang.nif_error(:not_loaded)

  @spec pages_unshare(pages(), ticket :: String.t()) :: :ok | {:error, reason()}
  def pages_unshare(_pages, _ticket), do: :erlang.nif_error(:not_loaded)

  @spec pages_trim(pages()) :: :ok | {:error, reason()}
  def pages_trim(_pages), do: :erlang.nif_error(:not_loaded)

  @spec pages_slab(
          pages(),
          slab :: non_neg_integer(),
          device :: non_neg_integer(),
          [integer()] | nil,
          atom()
        ) :: result({handle(), ref()})
  def pages_slab(_pages, _slab, _device, _shape, _dtype), do: :erlang.nif_error(:not_loaded)

  @spec pages_close(pages()) :: :ok | {:error, reason()}
  def pages_close(_pages), do: :erlang.nif_error(:not_loaded)

  @spec seq_append(sequence(), tokens :: non_neg_integer()) :: :ok | {:error, reason()}
  def seq_append(_sequence, _tokens), do: :erlang.nif_error(:not_loaded)

  @spec seq_truncate(sequence(), tokens :: non_neg_integer()) :: :ok | {:error, reason()}
  def seq_truncate(_sequence, _tokens), do: :erlang.nif_error(:not_loaded)

  @spec seq_fork(sequence()) :: result(new_sequence())
  def seq_fork(_sequence), do: :erlang.nif_error(:not_loaded)

  @spec seq_table(sequence()) :: result({int32 :: binary(), tokens :: non_neg_integer()})
  def seq_table(_sequence), do: :erlang.nif_error(:not_loaded)

  @spec seq_slot_mapping(sequence(), first :: non_neg_integer(), count :: non_neg_integer() | nil) ::
          result(int64 :: binary())
  def seq_slot_mapping(_sequence, _first, _count), do: :erlang.nif_error(:not_loaded)

  @spec seq_read(
          sequence(),
          block :: non_neg_integer(),
          device :: non_neg_integer(),
          offset :: non_neg_integer(),
          bytes :: non_neg_integer() | nil
        ) :: result(binary())
  def seq_read(_sequence, _block, _device, _offset, _bytes), do: :erlang.nif_error(:not_loaded)

  @spec seq_write(
          sequence(),
          block :: non_neg_integer(),
          device :: non_neg_integer(),
          offset :: non_neg_integer(),
          binary()
        ) :: :ok | {:error, reason()}
  def seq_write(_sequence, _block, _device, _offset, _bytes), do: :erlang.nif_error(:not_loaded)

  @spec seq_gather(sequence(), device :: non_neg_integer()) :: result({handle(), ref()})
  def seq_gather(_sequence, _device), do: :erlang.nif_error(:not_loaded)

  @spec seq_cache(sequence(), hashes :: binary()) :: :ok | {:error, reason()}
  def seq_cache(_sequence, _hashes), do: :erlang.nif_error(:not_loaded)

  @spec seq_share(sequence()) :: result(ticket :: String.t())
  def seq_share(_sequence), do: :erlang.nif_error(:not_loaded)

  @spec seq_release(sequence()) :: :ok | {:error, reason()}
  def seq_release(_sequence), do: :erlang.nif_error(:not_loaded)

  @typedoc "replace, lifetime_ns (0: for ever), mode, gid"
  @type keep_opts ::
          {boolean(), non_neg_integer(), non_neg_integer(), non_neg_integer() | nil}

  @spec keep_region(context(), handle() | bundle(), name :: String.t(), keep_opts()) ::
          :ok | {:error, reason()}
  def keep_region(_context, _what, _name, _opts), do: :erlang.nif_error(:not_loaded)

  @spec open_kept(context(), name :: String.t(), uid :: non_neg_integer() | nil) ::
          result(bundle() | [{handle(), ref()}])
  def open_kept(_context, _name, _uid), do: :erlang.nif_error(:not_loaded)

  @spec keep_folder(
          context(),
          path :: String.t(),
          name :: String.t(),
          keep_opts(),
          pid() | nil
        ) :: :ok | {:error, reason()}
  def keep_folder(_context, _path, _name, _opts, _progress), do: :erlang.nif_error(:not_loaded)

  @spec kept_path(context(), name :: String.t(), path :: String.t() | nil) :: result(String.t())
  def kept_path(_context, _name, _path), do: :erlang.nif_error(:not_loaded)

  @spec kept_files(context(), name :: String.t()) :: result([map()])
  def kept_files(_context, _name), do: :erlang.nif_error(:not_loaded)

  @spec list_kept(context()) :: result([map()])
  def list_kept(_context), do: :erlang.nif_error(:not_loaded)

  @spec drop_kept(context(), name :: String.t()) :: :ok | {:error, reason()}
  def drop_kept(_context, _name), do: :erlang.nif_error(:not_loaded)

  @type model :: reference()

  @spec model_load(
          context(),
          path :: String.t(),
          keep :: boolean(),
          alone :: boolean(),
          hash :: boolean(),
          label :: String.t(),
          pid() | nil,
          lenient :: boolean()
        ) :: result(model())
  def model_load(_context, _path, _keep, _alone, _hash, _label, _pid, _lenient),
    do: :erlang.nif_error(:not_loaded)

  @spec model_info(model()) :: result({:safetensors | :gguf, [{String.t(), map()}], map()})
  def model_info(_model), do: :erlang.nif_error(:not_loaded)

  @spec model_metadata(model()) :: result(json :: String.t())
  def model_metadata(_model), do: :erlang.nif_error(:not_loaded)

  @spec model_tensor(model(), index :: non_neg_integer()) :: result({handle(), ref()})
  def model_tensor(_model, _index), do: :erlang.nif_error(:not_loaded)

  @spec model_bundle(model()) :: result(bundle())
  def model_bundle(_model), do: :erlang.nif_error(:not_loaded)

  @spec model_release(model()) :: :ok | {:error, reason()}
  def model_release(_model), do: :erlang.nif_error(:not_loaded)

  @spec model_save(
          context(),
          bundle() | [{String.t(), handle()}],
          path :: String.t(),
          max_shard_bytes :: non_neg_integer(),
          metadata :: [String.t()],
          pid() | nil
        ) :: :ok | {:error, reason()}
  def model_save(_context, _tensors, _path, _max_shard_bytes, _metadata, _pid),
    do: :erlang.nif_error(:not_loaded)

  @spec revoke(handle()) :: :ok | {:error, reason()}
  def revoke(_handle), do: :erlang.nif_error(:not_loaded)

  @spec reclaim(handle(), ns :: non_neg_integer()) ::
          :ok
          | {:used, {non_neg_integer(), non_neg_integer(), non_neg_integer()}, String.t()}
          | {:error, reason()}
  def reclaim(_handle, _ns), do: :erlang.nif_error(:not_loaded)

  @spec lease(handle(), ns :: non_neg_integer(), os_pid :: non_neg_integer()) ::
          :ok | {:error, reason()}
  def lease(_handle, _ns, _os_pid), do: :erlang.nif_error(:not_loaded)

  @spec touch(handle()) :: :ok | {:error, reason()}
  def touch(_handle), do: :erlang.nif_error(:not_loaded)

  @spec fence_signal(handle(), non_neg_integer()) :: :ok | {:error, reason()}
  def fence_signal(_handle, _value), do: :erlang.nif_error(:not_loaded)

  @spec fence_wait(handle(), non_neg_integer(), ns :: non_neg_integer()) ::
          result(non_neg_integer())
  def fence_wait(_handle, _value, _ns), do: :erlang.nif_error(:not_loaded)

  @type part :: {handle(), offset :: non_neg_integer(), bytes :: non_neg_integer()}

  @spec gather(context(), [part()], :read | :write, [integer()] | nil, atom(), region_opts()) ::
          result({handle(), ref()})
  def gather(_context, _parts, _rights, _shape, _dtype, _opts), do: :erlang.nif_error(:not_loaded)

  @typedoc "A file descriptor that is closed with it."
  @type descriptor :: reference()

  @spec export_dmabuf(handle(), non_neg_integer(), non_neg_integer(), :read | :write) ::
          result({descriptor(), non_neg_integer()})
  def export_dmabuf(_handle, _offset, _bytes, _rights), do: :erlang.nif_error(:not_loaded)

  @spec descriptor_close(descriptor()) :: :ok | {:error, reason()}
  def descriptor_close(_descriptor), do: :erlang.nif_error(:not_loaded)

  @spec from_dmabuf(
          context(),
          descriptor() | integer(),
          [integer()] | nil,
          atom(),
          region_opts()
        ) :: result({handle(), ref()})
  def from_dmabuf(_context, _fd, _shape, _dtype, _opts), do: :erlang.nif_error(:not_loaded)

  @spec hand_over(handle(), socket :: integer(), :read | :write) :: :ok | {:error, reason()}
  def hand_over(_handle, _socket, _rights), do: :erlang.nif_error(:not_loaded)

  @spec tensor_recv(
          context(),
          socket :: integer(),
          [integer()] | nil,
          atom(),
          offset :: non_neg_integer()
        ) :: result({handle(), ref()})
  def tensor_recv(_context, _socket, _shape, _dtype, _offset), do: :erlang.nif_error(:not_loaded)

  @type bundle :: reference()

  @spec bundle_create(
          context(),
          [{String.t(), handle(), made :: boolean()}],
          seal :: boolean(),
          label :: String.t(),
          metadata :: String.t()
        ) :: result(bundle())
  def bundle_create(_context, _entries, _seal, _label, _metadata),
    do: :erlang.nif_error(:not_loaded)

  @spec bundle_open(context(), json :: String.t(), :read | :write) :: result(bundle())
  def bundle_open(_context, _json, _rights), do: :erlang.nif_error(:not_loaded)

  @spec bundle_info(bundle()) ::
          result({[String.t()], non_neg_integer(), metadata :: String.t(), label :: String.t()})
  def bundle_info(_bundle), do: :erlang.nif_error(:not_loaded)

  @spec bundle_tensor(bundle(), name :: String.t()) :: result({handle(), ref()})
  def bundle_tensor(_bundle, _name), do: :erlang.nif_error(:not_loaded)

  @spec bundle_ref(bundle(), :read | :write, hold()) :: result(json :: String.t())
  def bundle_ref(_bundle, _rights, _hold), do: :erlang.nif_error(:not_loaded)

  @spec bundle_hand_over(bundle(), socket :: integer(), :read | :write) ::
          :ok | {:error, reason()}
  def bundle_hand_over(_bundle, _socket, _rights), do: :erlang.nif_error(:not_loaded)

  @spec bundle_recv(context(), socket :: integer()) :: result(bundle())
  def bundle_recv(_context, _socket), do: :erlang.nif_error(:not_loaded)

  @spec bundle_release(bundle()) :: :ok | {:error, reason()}
  def bundle_release(_bundle), do: :erlang.nif_error(:not_loaded)

  @spec release(handle()) :: :ok | :tied | {:error, reason()}
  def release(_handle), do: :erlang.nif_error(:not_loaded)

  # :ok also for a handle that was released here.
  @spec local(term()) :: :ok | {:error, reason()}
  def local(_handle), do: :erlang.nif_error(:not_loaded)

  @spec tie(handle()) :: :ok | {:error, reason()}
  def tie(_handle), do: :erlang.nif_error(:not_loaded)

  @spec to_binary(handle(), may_copy :: boolean()) :: result(binary())
  def to_binary(_handle, _may_copy), do: :erlang.nif_error(:not_loaded)

  @typedoc "format, name, flags, children, dictionary"
  @type arrow_schema ::
          {String.t(), String.t(), integer(), [arrow_schema()], arrow_schema() | nil}
  @typedoc "length, null count, buffers, children, dictionary"
  @type arrow_array ::
          {non_neg_integer(), non_neg_integer(), [binary()], [arrow_array()], arrow_array() | nil}

  @spec arrow_stream(arrow_schema(), [arrow_array()]) :: result({pos_integer(), reference()})
  def arrow_stream(_schema, _batches), do: :erlang.nif_error(:not_loaded)

  @spec ref_encode(ref()) :: result(String.t())
  def ref_encode(_ref), do: :erlang.nif_error(:not_loaded)

  @spec ref_decode(binary()) :: result(ref())
  def ref_decode(_json), do: :erlang.nif_error(:not_loaded)

  @doc "Make a ref from {v, id, token, offset, byte_size, shape, dtype, strides, device} of any map."
  @spec ref_from_members(tuple()) :: result(ref())
  def ref_from_members(_members), do: :erlang.nif_error(:not_loaded)

  @typedoc "A connection to a worker process, owned by the process that connected."
  @type worker_socket :: reference()

  @spec json_decode(binary()) :: result(%{String.t() => term()})
  def json_decode(_text), do: :erlang.nif_error(:not_loaded)

  @spec worker_connect(name :: binary()) :: result(worker_socket())
  def worker_connect(_name), do: :erlang.nif_error(:not_loaded)

  # After eagain, {:select, socket, :undefined, :ready_output} says when to try again.
  @spec worker_send(worker_socket(), binary()) :: :ok | :eagain | {:error, reason()}
  def worker_send(_socket, _text), do: :erlang.nif_error(:not_loaded)

  # After eagain, {:select, socket, :undefined, :ready_input} comes.
  @spec worker_recv(worker_socket(), 0..100) ::
          {:ok, binary()} | :eagain | :closed | {:error, reason()}
  def worker_recv(_socket, _spin_us), do: :erlang.nif_error(:not_loaded)

  @spec worker_kill(worker_socket()) :: :ok | {:error, reason()}
  def worker_kill(_socket), do: :erlang.nif_error(:not_loaded)

  @spec worker_close(worker_socket()) :: :ok
  def worker_close(_socket), do: :erlang.nif_error(:not_loaded)

  @typedoc "One end of a channel, owned by the process that made or opened it."
  @type channel :: reference()

  @typedoc "capacity, producers, regions, layouts, writable, max_regions, max_bytes, spin_ns, limit"
  @type channel_opts ::
          {non_neg_integer(), non_neg_integer(), non_neg_integer(), non_neg_integer(), boolean(),
           non_neg_integer(), non_neg_integer(), non_neg_integer(), non_neg_integer()}

  @spec channel_create(context() | nil, :send | :recv, channel_opts()) ::
          result({channel(), token :: String.t()})
  def channel_create(_context, _role, _opts), do: :erlang.nif_error(:not_loaded)

  @spec channel_open(context() | nil, token :: String.t(), :send | :recv, channel_opts()) ::
          result(channel())
  def channel_open(_context, _token, _role, _opts), do: :erlang.nif_error(:not_loaded)

  # After eagain, call channel_wait/2.
  @spec channel_send(channel(), handle() | nil, binary()) :: :ok | :eagain | {:error, reason()}
  def channel_send(_channel, _handle, _bytes), do: :erlang.nif_error(:not_loaded)

  @type channel_message :: {nil | :given | {handle(), ref()}, binary()}

  # After again call it at once, after busy a little later. A message with only the handle's own tensor is :given.
  @spec channel_recv(channel(), handle() | nil) ::
          :given | result(channel_message()) | :eagain | :again | :busy
  def channel_recv(_channel, _handle), do: :erlang.nif_error(:not_loaded)

  @spec channel_call(channel(), channel(), handle() | nil, binary()) ::
          :given | result(channel_message()) | {:sent, :eagain | :again} | :eagain
  def channel_call(_out, _into, _handle, _bytes), do: :erlang.nif_error(:not_loaded)

  @spec channel_flush(channel()) :: :ok | :full | {:error, reason()}
  def channel_flush(_channel), do: :erlang.nif_error(:not_loaded)

  # {:select, _, ref, :ready_input} says when to try again. After full no message comes.
  @spec channel_wait(channel(), reference()) :: :ok | :full | {:error, reason()}
  def channel_wait(_channel, _ref), do: :erlang.nif_error(:not_loaded)

  # The message comes once, when there may be something to receive.
  @spec channel_watch(channel(), message :: term()) :: :ok | {:error, reason()}
  def channel_watch(_channel, _message), do: :erlang.nif_error(:not_loaded)

  # How many bytes of tensors passed this end, without those that were known.
  @spec channel_passed(channel(), known :: non_neg_integer()) :: result(non_neg_integer())
  def channel_passed(_channel, _known), do: :erlang.nif_error(:not_loaded)

  @spec channel_gone(channel()) :: :ok | {:error, reason()}
  def channel_gone(_channel), do: :erlang.nif_error(:not_loaded)

  @spec channel_cancel(channel()) :: :ok
  def channel_cancel(_channel), do: :erlang.nif_error(:not_loaded)

  @spec channel_close(channel()) :: :ok
  def channel_close(_channel), do: :erlang.nif_error(:not_loaded)

  @typedoc "Memory of libtmesh-cuda."
  @type gpu :: reference()

  @spec gpu_alloc(device :: non_neg_integer(), [integer()], atom(), alone :: boolean()) ::
          result({gpu(), ref()})
  def gpu_alloc(_device, _shape, _dtype, _alone), do: :erlang.nif_error(:not_loaded)

  @spec gpu_open(json :: binary(), device :: non_neg_integer() | nil, writable :: boolean()) ::
          result({gpu(), ref()})
  def gpu_open(_json, _device, _writable), do: :erlang.nif_error(:not_loaded)

  @spec gpu_ref(gpu()) :: result(json :: String.t())
  def gpu_ref(_gpu), do: :erlang.nif_error(:not_loaded)

  @spec gpu_info(gpu()) :: result(map())
  def gpu_info(_gpu), do: :erlang.nif_error(:not_loaded)

  @spec gpu_release(gpu()) :: :ok | {:error, reason()}
  def gpu_release(_gpu), do: :erlang.nif_error(:not_loaded)

  @spec xla_register(String.t() | nil) :: :ok | {:error, reason()}
  def xla_register(_library), do: :erlang.nif_error(:not_loaded)

  @spec xla_bind(String.t(), String.t(), :send | :recv) :: :ok | {:error, reason()}
  def xla_bind(_name, _token, _role), do: :erlang.nif_error(:not_loaded)

  @spec xla_unbind(String.t()) :: :ok | {:error, reason()}
  def xla_unbind(_name), do: :erlang.nif_error(:not_loaded)

  @spec xla_cancel(String.t()) :: :ok | {:error, reason()}
  def xla_cancel(_name), do: :erlang.nif_error(:not_loaded)

  @spec xla_flush(String.t(), ns :: non_neg_integer()) :: :ok | {:error, reason()}
  def xla_flush(_name, _ns), do: :erlang.nif_error(:not_loaded)

  @spec xla_limit(non_neg_integer()) :: :ok | {:error, reason()}
  def xla_limit(_max_bytes), do: :erlang.nif_error(:not_loaded)
end
