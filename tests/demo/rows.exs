# SPDX-License-Identifier: MIT
#
# The demo's Elixir side, a port program: packets of a 4-byte length on the two descriptors that
# are its arguments, each a word, a newline and the rest. It ends when the first is closed.
defmodule Rows do
  alias Tmesh.ZeroCopy
  alias Tmesh.ZeroCopy.TensorRef

  def run(input, output) do
    port = Port.open({:fd, input, output}, [:binary, :eof, packet: 4])
    loop(port, [])
  end

  # `held` keeps what was opened and made until the other side says "release".
  defp loop(port, held) do
    receive do
      {^port, {:data, packet}} ->
        [request, body] = :binary.split(packet, "\n")
        {reply, held} = answer(request, body, held)
        Port.command(port, reply)
        loop(port, held)

      {^port, :eof} ->
        :ok
    end
  end

  # The mean of the table's rows with these numbers, as a tensor of its own.
  defp answer("mean", body, _held) do
    [numbers, json] = :binary.split(body, "\n")
    table = json |> TensorRef.from_json() |> elem(1) |> ZeroCopy.open!()
    [_rows, columns] = table.shape

    # Without a copy or not at all: every row is a part of one binary that points into the region.
    memory = ZeroCopy.to_binary!(table, copy: false)
    row_bytes = columns * 4

    rows =
      for number <- String.split(numbers, ",") do
        binary_part(memory, String.to_integer(number) * row_bytes, row_bytes)
      end

    mean = ZeroCopy.from_binary!(mean(rows), [columns], :float32, label: "query mean")
    {:ok, reply} = TensorRef.to_json(mean)
    {reply, [table, mean, memory]}
  end

  defp answer("copied", _body, held) do
    {:ok, stats} = Tmesh.stats()
    {Integer.to_string(stats.bytes_copied), held}
  end

  defp answer("release", _body, held) do
    for %TensorRef{} = ref <- held, do: ZeroCopy.release!(ref)
    {"", []}
  end

  # The second act: logits that an engine writes, and a token by chance, of the likeliest 40.
  defp answer("logits", body, held) do
    [name, json] = :binary.split(body, "\n")
    {:ok, ref} = TensorRef.from_json(json)
    {"", [{name, ZeroCopy.open!(ref)} | held]}
  end

  defp answer("sample", name, held) do
    {^name, logits} = List.keyfind(held, name, 0)
    values = for <<x::float-32-native <- ZeroCopy.to_binary!(logits)>>, do: x
    {Integer.to_string(choose(values)), held}
  end

  defp answer("forget", _body, held) do
    for {_name, ref} <- held, do: ZeroCopy.release!(ref)
    {"", []}
  end

  # For the table of hand-overs: the first value of a tensor that came as bytes, or as a ref.
  defp answer("bytes", body, held), do: {binary_part(body, 0, 4), held}

  defp answer("tmesh", json, held) do
    {:ok, ref} = TensorRef.from_json(json)
    ref = ZeroCopy.open!(ref)
    value = ref |> ZeroCopy.to_binary!(copy: false) |> binary_part(0, 4) |> :binary.copy()
    ZeroCopy.release!(ref)
    {value, held}
  end

  defp choose(values) do
    best = values |> Enum.with_index() |> Enum.sort(:desc) |> Enum.take(40)
    {top, _token} = hd(best)
    chances = for {x, token} <- best, do: {:math.exp((x - top) / 0.6), token}
    sum = chances |> Enum.map(&elem(&1, 0)) |> Enum.sum()

    Enum.reduce_while(chances, :rand.uniform() * sum, fn {chance, token}, left ->
      if left <= chance, do: {:halt, token}, else: {:cont, left - chance}
    end)
    |> then(&if is_integer(&1), do: &1, else: elem(hd(best), 1))
  end

  defp mean(rows) do
    count = length(rows)

    rows
    |> Enum.map(fn row -> for <<x::float-32-native <- row>>, do: x end)
    |> Enum.zip_with(fn column -> Enum.sum(column) / count end)
    |> Enum.map(&<<&1::float-32-native>>)
    |> IO.iodata_to_binary()
  end
end

{:ok, _apps} = Application.ensure_all_started(:tmesh)
[input, output] = Enum.map(System.argv(), &String.to_integer/1)
Rows.run(input, output)
