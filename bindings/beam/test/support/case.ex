# SPDX-License-Identifier: MIT
defmodule Tmesh.Case do
  @moduledoc false
  # Common parts of the tests.

  use ExUnit.CaseTemplate

  @patient [timeout_ms: 600_000]

  using opts do
    quote do
      import Tmesh.Case
      alias Tmesh.{Error, Peer, ZeroCopy}
      alias Tmesh.ZeroCopy.TensorRef
      if unquote(opts)[:backend] == :any, do: any_backend(:moduletag)
    end
  end

  # The marked tests do not depend on the backend: a guest would repeat them ten times slower. A file that is marked
  # as a whole (`backend: :any`) is not even compiled in guests: see build.mk.
  defmacro any_backend(what \\ :tag) do
    quote do
      if Tmesh.backend() == {:ok, :kernel},
        do:
          Module.put_attribute(__MODULE__, unquote(what),
            skip: "says nothing of the backend; run on memfds"
          )
    end
  end

  # Release the tensors of earlier tests, also the garbage of processes that live on. Open everything that the library
  # opens once. Then counters show only this test.
  setup do
    [1] |> Tmesh.ZeroCopy.allocate!(:uint8) |> Tmesh.ZeroCopy.release!()

    eventually(fn -> nothing_lives?() or collect() end)
  end

  defp nothing_lives? do
    Tmesh.Native.sweep()
    stat(:regions_live) == 0
  end

  # Return false: destructors take their time.
  defp collect do
    Enum.each(Process.list(), &:erlang.garbage_collect/1)
    false
  end

  @doc "Wait until `condition` holds. Destructors and the janitor take time, and a busy machine ten times that."
  def eventually(condition, tries \\ 6_000) do
    cond do
      condition.() ->
        :ok

      tries == 0 ->
        raise "it did not come about"

      true ->
        Process.sleep(50)
        eventually(condition, tries - 1)
    end
  end

  @doc "Restart the application with this configuration, for the rest of the test. By default a peer may take its time."
  def configure(config) do
    on_exit(&patient/0)
    restart(fn -> Application.put_env(:tmesh, :zero_copy, Keyword.merge(@patient, config)) end)
  end

  @doc """
  Restart the application with its defaults, except for a long timeout of peers. On a busy machine an answering thread
  may not run for two seconds.
  """
  def patient do
    restart(fn -> Application.put_env(:tmesh, :zero_copy, @patient) end)
    Application.delete_env(:tmesh, :zero_copy)
  end

  defp restart(between) do
    :ok = Application.stop(:tmesh)
    between.()
    :ok = Application.start(:tmesh)
  end

  @doc "A counter of `Tmesh.stats/0`."
  def stat(name) do
    {:ok, stats} = Tmesh.stats()
    Map.fetch!(stats, name)
  end

  @doc "End a linked process, and see it gone, with its name and its tables."
  def kill(pid) do
    monitor = Process.monitor(pid)
    Process.unlink(pid)
    Process.exit(pid, :kill)
    receive(do: ({:DOWN, ^monitor, :process, ^pid, _reason} -> :ok))
  end

  @doc "Run `fun` in a process of its own, which is gone, with its heap, on return."
  def in_process(fun) do
    {pid, monitor} = spawn_monitor(fn -> exit({:done, fun.()}) end)

    receive do
      {:DOWN, ^monitor, :process, ^pid, {:done, result}} -> result
      {:DOWN, ^monitor, :process, ^pid, reason} -> raise "the process ended: #{inspect(reason)}"
    end
  end

  @doc "Run `fun` while this VM has no free descriptor."
  def without_files(fun) do
    limit_files(
      soft: 64 + Enum.max(for(name <- File.ls!("/proc/self/fd"), do: String.to_integer(name)))
    )

    taken = take_files([])

    try do
      fun.()
    after
      Enum.each(taken, &File.close/1)
    end
  end

  defp take_files(files) do
    case File.open("/dev/null", [:read, :raw]) do
      {:ok, file} -> take_files([file | files])
      {:error, :emfile} -> files
    end
  end

  @doc "Lower the number of files, for the rest of the test."
  def limit_files(soft: soft) do
    [_, now, most] = Regex.run(~r/Max open files +(\d+) +(\d+)/, File.read!("/proc/self/limits"))

    if soft < String.to_integer(now) do
      on_exit(fn -> prlimit("#{now}:#{most}") end)
      prlimit("#{soft}:#{most}")
    end
  end

  defp prlimit(files) do
    {"", 0} = System.cmd("prlimit", ["--pid=#{System.pid()}", "--nofile=#{files}"])
  end

  @doc """
  Run `fun` in a process whose mailbox has 200,000 messages. Return its result, and the most messages that it looked
  at: each look costs a reduction. Without a backlog `fun` itself takes some thousand reductions.
  """
  def with_backlog(fun) do
    in_process(fn ->
      # Messages off the heap are not collected: that costs reductions, too.
      Process.flag(:message_queue_data, :off_heap)
      for n <- 1..200_000, do: send(self(), n)
      {:message_queue_len, 200_000} = Process.info(self(), :message_queue_len)
      before = reductions()
      result = fun.()
      looked_at = reductions() - before
      {:message_queue_len, 200_000} = Process.info(self(), :message_queue_len)
      {result, looked_at}
    end)
  end

  defp reductions, do: self() |> Process.info(:reductions) |> elem(1)

  @doc "How many descriptors of tmesh this VM has open."
  def open_files do
    for name <- File.ls!("/proc/self/fd"),
        {:ok, target} <- [File.read_link("/proc/self/fd/#{name}")],
        target =~ "memfd:" or target =~ "tmesh",
        reduce: 0,
        do: (count -> count + 1)
  end
end
