# SPDX-License-Identifier: MIT
defmodule Tmesh.Native do
  @moduledoc false
  # The NIFs of c_src/, one library call each. Tmesh and Tmesh.ZeroCopy are their public interface. Handles and
  # contexts are resources. Only context_open/1 raises (badarg): terms of a wrong shape give an error like any other.

  import Tmesh.Native.Function

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

  nif janitor() :: :ok
  nif sweep() :: [{:error | :warning | :info | :debug, String.t()}]

  # Some pids come several times.
  nif held_by() :: [pid()]

  nif context_open(
        {:auto | :kernel | :memfd, max_bytes :: non_neg_integer(),
         region_pool_bytes :: non_neg_integer(), timeout_ns :: non_neg_integer(),
         max_opening :: pos_integer()}
      ) :: result(context())

  nif context_limit(context(), max_bytes :: non_neg_integer()) :: :ok | {:error, reason()}
  nif context_backend(context()) :: result(:kernel | :memfd)
  nif context_caps(context()) :: result([{String.t(), atom(), String.t()}])
  nif context_stats(context()) :: result(%{atom() => non_neg_integer()})

  nif context_flush(context() | nil) ::
        result(
          {held :: non_neg_integer(), bytes :: non_neg_integer(), messages :: non_neg_integer()}
        )

  nif context_trim(context()) :: result(non_neg_integer())
  nif arena_create(context(), bytes :: non_neg_integer(), region_opts()) :: result(arena())

  nif create(context(), [integer()], atom(), region_opts() | arena()) ::
        result({handle(), ref()})

  nif put(context(), binary(), [integer()], atom(), region_opts() | arena(), boolean()) ::
        result({handle(), ref()})

  nif open(context(), ref(), :read | :write) :: result(handle())

  @typedoc "How long a ref holds its memory, in nanoseconds."
  @type hold :: pos_integer() | nil

  nif ref(handle(), :read | :write, hold()) :: result(ref())
  nif name(handle()) :: result({non_neg_integer(), String.t()})
  nif seal(handle()) :: :ok | {:error, reason()}
  nif write(handle(), non_neg_integer(), binary()) :: :ok | {:error, reason()}
  nif info(handle()) :: result(map())
  nif regions(context()) :: result([map()])
  nif holders(context(), id :: non_neg_integer()) :: result([map()])
  nif token_id(context(), token :: String.t()) :: result(non_neg_integer())

  @type engine :: reference()

  # Calls that wait for engines take a tag first. They return `started()`, and their result comes as `{tag, result}`.
  @type started :: :ok | {:error, reason()}

  nif engine_connect(
        reference(),
        context(),
        name :: String.t(),
        timeout_ns :: non_neg_integer()
      ) :: started()

  nif engine_info(engine()) ::
        result({backend :: String.t(), version :: String.t(), pid :: non_neg_integer()})

  nif engine_graph(
        reference(),
        engine(),
        path :: String.t(),
        [{String.t(), handle()}],
        prepack :: boolean()
      ) :: started()

  nif engine_operands(engine()) :: result({[tuple()], [tuple()]})

  # Inputs and outputs are handles of tensors, or device tensors.
  nif engine_bind(
        reference(),
        engine(),
        graph :: engine(),
        [{String.t(), handle() | engine()}],
        [{String.t(), handle() | engine(), in_place :: String.t() | nil}]
      ) :: started()

  nif engine_rebind(
        reference(),
        engine(),
        binding :: engine(),
        [{String.t(), handle() | engine()}]
      ) :: started()

  nif engine_keep(reference(), engine(), pages()) :: started()

  nif engine_dispatch(reference(), engine(), cancellable :: engine() | nil) :: started()
  nif engine_cancellable(context()) :: result(engine())
  nif engine_cancel(engine()) :: :ok | {:error, reason()}

  # flags: 1 readable, 2 writable, 4 exportable.
  nif engine_tensor(engine(), [integer()], atom(), flags :: non_neg_integer()) ::
        result(engine())

  nif engine_tensor_wrap(
        engine(),
        handle(),
        writable :: boolean(),
        flags :: non_neg_integer()
      ) :: result(engine())

  nif engine_tensor_info(engine()) :: result(map())
  nif engine_tensor_read(engine()) :: result(binary())
  nif engine_tensor_write(engine(), binary()) :: :ok | {:error, reason()}
  nif engine_tensor_export(engine()) :: result({handle(), ref()})
  nif engine_tensor_destroy(engine()) :: :ok | {:error, reason()}

  @type graph :: reference()
  @type graph_made ::
          {graph(), name :: String.t(), nodes :: non_neg_integer(), outputs :: non_neg_integer()}

  nif graph_create(name :: String.t()) :: result(graph_made())
  nif graph_parse(binary()) :: result(graph_made())
  nif graph_read(path :: String.t()) :: result(graph_made())

  nif graph_add(
        graph(),
        nodes :: non_neg_integer(),
        outputs :: non_neg_integer(),
        {name :: String.t(), op :: atom(), inputs :: [String.t()], keyword()}
        | {output :: String.t(), node :: String.t()}
      ) :: result(graph_made())

  nif graph_write(
        graph(),
        nodes :: non_neg_integer(),
        outputs :: non_neg_integer(),
        :json | :text | :dot
      ) :: result(String.t())

  @type slot :: reference()
  @type slot_reader :: reference()

  nif slot_create(
        context(),
        label :: String.t(),
        max_ref :: non_neg_integer(),
        name :: String.t() | nil
      ) :: result({slot(), token :: String.t()})

  nif slot_publish(slot(), bundle() | nil) :: result(generation :: pos_integer())
  nif slot_generation(slot()) :: result(non_neg_integer())
  nif slot_open(context(), token :: String.t()) :: result(slot_reader())
  nif slot_open_named(context(), name :: String.t()) :: result(slot_reader())

  nif slot_read(slot_reader(), generation :: pos_integer() | nil) ::
        :same | result({pos_integer(), bundle()})

  nif slot_watch(slot_reader(), message :: term()) :: :ok | {:error, reason()}
  nif slot_close(slot() | slot_reader()) :: :ok | {:error, reason()}

  @type page_pool :: reference()
  @type pages :: reference()
  @type sequence :: reference()

  @typedoc "page_bytes, page_tokens, slab_pages, max_pages, devices, heads"
  @type page_pool_opts ::
          {non_neg_integer(), non_neg_integer(), non_neg_integer(), non_neg_integer(),
           non_neg_integer(), non_neg_integer()}

  nif page_pool_create(context() | nil, page_pool_opts()) :: result(page_pool())

  nif page_pool_tenant(page_pool(), max_pages :: non_neg_integer()) ::
        result(token :: String.t())

  nif page_pool_info(page_pool()) :: result(%{atom() => non_neg_integer()})
  nif page_pool_close(page_pool()) :: :ok | {:error, reason()}
  nif pages_open(context() | nil, token :: String.t()) :: result(pages())
  nif pages_info(pages()) :: result(%{atom() => non_neg_integer()})

  nif pages_head(pages(), head :: non_neg_integer()) ::
        result({device :: non_neg_integer(), place :: non_neg_integer()})

  nif pages_hash(pages(), int32 :: binary(), parent :: binary() | nil) :: result(binary())

  @typedoc "The sequence, and its id."
  @type new_sequence :: {sequence(), non_neg_integer()}

  nif pages_sequence(pages()) :: result(new_sequence())
  nif pages_find(pages(), hashes :: binary()) :: result(new_sequence())
  nif pages_open_sequence(pages(), ticket :: String.t()) :: result(new_sequence())
  nif pages_unshare(pages(), ticket :: String.t()) :: :ok | {:error, reason()}
  nif pages_trim(pages()) :: :ok | {:error, reason()}

  nif pages_slab(
        pages(),
        slab :: non_neg_integer(),
        device :: non_neg_integer(),
        [integer()] | nil,
        atom()
      ) :: result({handle(), ref()})

  nif pages_close(pages()) :: :ok | {:error, reason()}
  nif seq_append(sequence(), tokens :: non_neg_integer()) :: :ok | {:error, reason()}
  nif seq_truncate(sequence(), tokens :: non_neg_integer()) :: :ok | {:error, reason()}
  nif seq_fork(sequence()) :: result(new_sequence())
  nif seq_table(sequence()) :: result({int32 :: binary(), tokens :: non_neg_integer()})

  nif seq_slot_mapping(sequence(), first :: non_neg_integer(), count :: non_neg_integer() | nil) ::
        result(int64 :: binary())

  nif seq_read(
        sequence(),
        block :: non_neg_integer(),
        device :: non_neg_integer(),
        offset :: non_neg_integer(),
        bytes :: non_neg_integer() | nil
      ) :: result(binary())

  nif seq_write(
        sequence(),
        block :: non_neg_integer(),
        device :: non_neg_integer(),
        offset :: non_neg_integer(),
        binary()
      ) :: :ok | {:error, reason()}

  nif seq_gather(sequence(), device :: non_neg_integer()) :: result({handle(), ref()})
  nif seq_cache(sequence(), hashes :: binary()) :: :ok | {:error, reason()}
  nif seq_share(sequence()) :: result(ticket :: String.t())
  nif seq_release(sequence()) :: :ok | {:error, reason()}

  @typedoc "replace, lifetime_ns (0: for ever), mode, gid"
  @type keep_opts ::
          {boolean(), non_neg_integer(), non_neg_integer(), non_neg_integer() | nil}

  nif keep_region(context(), handle() | bundle(), name :: String.t(), keep_opts()) ::
        :ok | {:error, reason()}

  nif open_kept(context(), name :: String.t(), uid :: non_neg_integer() | nil) ::
        result(bundle() | [{handle(), ref()}])

  nif keep_folder(
        context(),
        path :: String.t(),
        name :: String.t(),
        keep_opts(),
        pid() | nil
      ) :: :ok | {:error, reason()}

  nif kept_path(context(), name :: String.t(), path :: String.t() | nil) :: result(String.t())
  nif kept_files(context(), name :: String.t()) :: result([map()])
  nif list_kept(context()) :: result([map()])
  nif drop_kept(context(), name :: String.t()) :: :ok | {:error, reason()}

  @type model :: reference()

  nif model_load(
        context(),
        path :: String.t(),
        keep :: boolean(),
        alone :: boolean(),
        hash :: boolean(),
        label :: String.t(),
        pid() | nil,
        lenient :: boolean()
      ) :: result(model())

  nif model_info(model()) :: result({:safetensors | :gguf, [{String.t(), map()}], map()})
  nif model_metadata(model()) :: result(json :: String.t())
  nif model_tensor(model(), index :: non_neg_integer()) :: result({handle(), ref()})
  nif model_bundle(model()) :: result(bundle())
  nif model_release(model()) :: :ok | {:error, reason()}

  nif model_save(
        context(),
        bundle() | [{String.t(), handle()}],
        path :: String.t(),
        max_shard_bytes :: non_neg_integer(),
        metadata :: [String.t()],
        pid() | nil
      ) :: :ok | {:error, reason()}

  nif revoke(handle()) :: :ok | {:error, reason()}

  nif reclaim(handle(), ns :: non_neg_integer()) ::
        :ok
        | {:used, {non_neg_integer(), non_neg_integer(), non_neg_integer()}, String.t()}
        | {:error, reason()}

  nif lease(handle(), ns :: non_neg_integer(), os_pid :: non_neg_integer()) ::
        :ok | {:error, reason()}

  nif touch(handle()) :: :ok | {:error, reason()}
  nif fence_signal(handle(), non_neg_integer()) :: :ok | {:error, reason()}

  nif fence_wait(handle(), non_neg_integer(), ns :: non_neg_integer()) ::
        result(non_neg_integer())

  @type part :: {handle(), offset :: non_neg_integer(), bytes :: non_neg_integer()}

  nif gather(context(), [part()], :read | :write, [integer()] | nil, atom(), region_opts()) ::
        result({handle(), ref()})

  @typedoc "A file descriptor that is closed with it."
  @type descriptor :: reference()

  nif export_dmabuf(handle(), non_neg_integer(), non_neg_integer(), :read | :write) ::
        result({descriptor(), non_neg_integer()})

  nif descriptor_close(descriptor()) :: :ok | {:error, reason()}

  nif from_dmabuf(
        context(),
        descriptor() | integer(),
        [integer()] | nil,
        atom(),
        region_opts()
      ) :: result({handle(), ref()})

  nif hand_over(handle(), socket :: integer(), :read | :write) :: :ok | {:error, reason()}

  nif tensor_recv(
        context(),
        socket :: integer(),
        [integer()] | nil,
        atom(),
        offset :: non_neg_integer()
      ) :: result({handle(), ref()})

  @type bundle :: reference()

  nif bundle_create(
        context(),
        [{String.t(), handle(), made :: boolean()}],
        seal :: boolean(),
        label :: String.t(),
        metadata :: String.t()
      ) :: result(bundle())

  nif bundle_open(context(), json :: String.t(), :read | :write) :: result(bundle())

  nif bundle_info(bundle()) ::
        result({[String.t()], non_neg_integer(), metadata :: String.t(), label :: String.t()})

  nif bundle_tensor(bundle(), name :: String.t()) :: result({handle(), ref()})
  nif bundle_ref(bundle(), :read | :write, hold()) :: result(json :: String.t())

  nif bundle_hand_over(bundle(), socket :: integer(), :read | :write) ::
        :ok | {:error, reason()}

  nif bundle_recv(context(), socket :: integer()) :: result(bundle())
  nif bundle_release(bundle()) :: :ok | {:error, reason()}
  nif release(handle()) :: :ok | :tied | {:error, reason()}

  # :ok also for a handle that was released here.
  nif local(term()) :: :ok | {:error, reason()}
  nif tie(handle()) :: :ok | {:error, reason()}
  nif to_binary(handle(), may_copy :: boolean()) :: result(binary())

  @typedoc "format, name, flags, children, dictionary"
  @type arrow_schema ::
          {String.t(), String.t(), integer(), [arrow_schema()], arrow_schema() | nil}
  @typedoc "length, null count, buffers, children, dictionary"
  @type arrow_array ::
          {non_neg_integer(), non_neg_integer(), [binary()], [arrow_array()], arrow_array() | nil}

  nif arrow_stream(arrow_schema(), [arrow_array()]) :: result({pos_integer(), reference()})
  nif ref_encode(ref()) :: result(String.t())
  nif ref_decode(binary()) :: result(ref())

  @doc "Make a ref from {v, id, token, offset, byte_size, shape, dtype, strides, device} of any map."
  nif ref_from_members(tuple()) :: result(ref())

  @typedoc "A connection to a worker process, owned by the process that connected."
  @type worker_socket :: reference()

  nif json_decode(binary()) :: result(%{String.t() => term()})
  nif worker_connect(name :: binary()) :: result(worker_socket())

  # After eagain, {:select, socket, :undefined, :ready_output} says when to try again.
  nif worker_send(worker_socket(), binary()) :: :ok | :eagain | {:error, reason()}

  # After eagain, {:select, socket, :undefined, :ready_input} comes.
  nif worker_recv(worker_socket(), 0..100) ::
        {:ok, binary()} | :eagain | :closed | {:error, reason()}

  nif worker_kill(worker_socket()) :: :ok | {:error, reason()}

  nif worker_kill_unready(os_pid :: pos_integer(), name :: binary()) :: :ok | {:error, reason()}
  nif worker_close(worker_socket()) :: :ok

  @typedoc "One end of a channel, owned by the process that made or opened it."
  @type channel :: reference()

  @typedoc "capacity, producers, regions, layouts, writable, max_regions, max_bytes, spin_ns, limit"
  @type channel_opts ::
          {non_neg_integer(), non_neg_integer(), non_neg_integer(), non_neg_integer(), boolean(),
           non_neg_integer(), non_neg_integer(), non_neg_integer(), non_neg_integer()}

  nif channel_create(context() | nil, :send | :recv, channel_opts()) ::
        result({channel(), token :: String.t()})

  nif channel_open(context() | nil, token :: String.t(), :send | :recv, channel_opts()) ::
        result(channel())

  # After eagain, call channel_wait/2.
  nif channel_send(channel(), handle() | nil, binary()) :: :ok | :eagain | {:error, reason()}

  @type channel_message :: {nil | :given | {handle(), ref()}, binary()}

  # After again call it at once, after busy a little later. A message with only the handle's own tensor is :given.
  nif channel_recv(channel(), handle() | nil) ::
        :given | result(channel_message()) | :eagain | :again | :busy

  nif channel_call(channel(), channel(), handle() | nil, binary()) ::
        :given | result(channel_message()) | {:sent, :eagain | :again} | :eagain

  nif channel_flush(channel()) :: :ok | :full | {:error, reason()}

  # {:select, _, ref, :ready_input} says when to try again. After full no message comes.
  nif channel_wait(channel(), reference()) :: :ok | :full | {:error, reason()}

  # The message comes once, when there may be something to receive.
  nif channel_watch(channel(), message :: term()) :: :ok | {:error, reason()}

  # How many bytes of tensors passed this end, without those that were known.
  nif channel_passed(channel(), known :: non_neg_integer()) :: result(non_neg_integer())
  nif channel_gone(channel()) :: :ok | {:error, reason()}
  nif channel_cancel(channel()) :: :ok
  nif channel_close(channel()) :: :ok

  @typedoc "Memory of libtmesh-cuda."
  @type gpu :: reference()

  nif gpu_alloc(device :: non_neg_integer(), [integer()], atom(), alone :: boolean()) ::
        result({gpu(), ref()})

  nif gpu_open(
        context(),
        json :: binary(),
        device :: non_neg_integer() | nil,
        writable :: boolean()
      ) ::
        result({gpu(), ref()})

  nif gpu_ref(gpu()) :: result(json :: String.t())
  nif gpu_info(gpu()) :: result(map())
  nif gpu_release(gpu()) :: :ok | {:error, reason()}
  nif xla_register(String.t() | nil) :: :ok | {:error, reason()}
  nif xla_bind(context(), String.t(), String.t(), :send | :recv) :: :ok | {:error, reason()}
  nif xla_unbind(String.t()) :: :ok | {:error, reason()}
  nif xla_cancel(String.t()) :: :ok | {:error, reason()}
  nif xla_flush(String.t(), ns :: non_neg_integer()) :: :ok | {:error, reason()}
  nif xla_limit(non_neg_integer()) :: :ok | {:error, reason()}
end
