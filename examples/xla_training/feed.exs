# SPDX-License-Identifier: MIT
#
# Elixir feeds a training that is one compiled JAX program, and draws its loss. It publishes the weights as
# generations of a slot. Another process serves from those pages meanwhile.
#
#     make lib xla python beam      (and a Python with tmesh and jax: TMESH_PYTHON names it)
#     elixir -pa build/beam/dev/lib/tmesh/ebin examples/xla_training/feed.exs [STEPS]
#
# The weights learn to repeat the first columns of their input.
defmodule Training do
  alias Tmesh.{Slot, Stream, ZeroCopy}

  @features 128
  @outputs 16
  @rows 32
  @generations 5
  # Long enough for JAX to start and compile.
  @patience 120_000
  @bars ~w(▁ ▂ ▃ ▄ ▅ ▆ ▇ █)

  def run(steps) do
    {:ok, stream} = Stream.start_link()
    {:ok, batches} = Stream.attach_channel(stream, feed: :infeed)
    {:ok, results} = Stream.attach_channel(stream)
    {:ok, slot} = Slot.create(label: "weights")
    every = max(div(steps, @generations), 1)

    numbers = Enum.map([@features, @outputs, @rows, steps, every], &Integer.to_string/1)
    training = python("train.py", [batches, results | numbers])
    server = python("serve.py", [slot.token])

    feeder = Task.async(fn -> for _ <- 1..steps, do: feed(stream) end)
    losses = follow(stream, slot, server, steps + div(steps, every), [])
    Task.await(feeder)

    IO.puts(
      "#{steps} steps, loss #{Float.round(List.last(losses), 3)} to #{Float.round(hd(losses), 3)}"
    )

    Port.close(training)
    Port.close(server)
  end

  defp python(script, args) do
    name = System.get_env("TMESH_PYTHON", "python3")
    python = System.find_executable(name) || raise "there is no #{name}"
    args = ["-P", Path.join(__DIR__, script) | args]
    Port.open({:spawn_executable, python}, [:binary, :exit_status, line: 200, args: args])
  end

  # A push waits while the training is behind.
  defp feed(stream) do
    rows = for _ <- 1..@rows, do: for(_ <- 1..@features, do: :rand.normal())
    put(stream, rows, @features)
    put(stream, Enum.map(rows, &Enum.take(&1, @outputs)), @outputs)
  end

  defp put(stream, rows, columns) do
    bytes = for row <- rows, value <- row, into: <<>>, do: <<value::float-32-native>>
    :ok = Stream.push_infeed(stream, ZeroCopy.from_binary!(bytes, [@rows, columns], :float32))
  end

  defp follow(_stream, _slot, _server, 0, losses) do
    if IO.ANSI.enabled?(), do: IO.write("\n")
    losses
  end

  defp follow(stream, slot, server, left, losses) do
    {:ok, ref} = Stream.pop_outfeed(stream, @patience)
    follow(stream, slot, server, left - 1, take(ref, slot, server, losses))
  end

  # A loss has no dimensions, weights have two.
  defp take(%{shape: []} = ref, _slot, _server, losses) do
    <<loss::float-32-native>> = ZeroCopy.to_binary!(ref)
    ZeroCopy.release!(ref)
    if IO.ANSI.enabled?(), do: IO.write(["\r", picture([loss | losses])])
    [loss | losses]
  end

  defp take(ref, slot, server, losses) do
    {:ok, generation} = Slot.publish(slot, %{"weights" => ref})
    %{"id" => id} = ZeroCopy.TensorRef.to_map!(ref)
    unless IO.ANSI.enabled?(), do: IO.puts(picture(losses))
    say("generation #{generation}: region #{id} published")

    receive do
      {^server, {:data, {:eol, text}}} -> say(text)
      {^server, {:exit_status, status}} -> raise "the server ended with status #{status}"
    after
      @patience -> raise "the server does not answer"
    end

    losses
  end

  # The last 40 losses, on a logarithmic scale between the smallest and the largest of all.
  defp picture(losses) do
    logs = Enum.map(losses, &:math.log(&1 + 1.0e-9))
    {low, high} = Enum.min_max(logs)
    bar = &Enum.at(@bars, round((&1 - low) / max(high - low, 1.0e-9) * 7))
    bars = logs |> Enum.take(40) |> Enum.reverse() |> Enum.map_join(bar)
    "loss #{:erlang.float_to_binary(hd(losses), decimals: 4)} #{bars} step #{length(losses)} "
  end

  # In a terminal the picture is drawn anew below it.
  defp say(text) do
    if IO.ANSI.enabled?(), do: IO.write(["\r", IO.ANSI.clear_line()])
    IO.puts(text)
  end
end

{:ok, _apps} = Application.ensure_all_started(:tmesh)
Training.run(String.to_integer(List.first(System.argv()) || "400"))
