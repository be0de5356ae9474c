# SPDX-License-Identifier: MIT
defmodule Tmesh.Net.Parallel do
  @moduledoc false
  # Send several requests to a server at once, from a process that ends with the caller. The end of that process
  # cancels its requests.

  @type watch :: reference()

  @doc "Return the result of `fun`, whose argument is for `all/4`."
  @spec run((watch() -> result)) :: result | {:ended, term()} when result: term()
  def run(fun) do
    {_pid, monitor} = spawn_monitor(__MODULE__, :answer, [fun, self()])

    receive do
      {:DOWN, ^monitor, :process, _pid, {__MODULE__, result}} -> result
      {:DOWN, ^monitor, :process, _pid, reason} -> {:ended, reason}
    end
  end

  @doc false
  @spec answer((watch() -> term()), pid()) :: no_return()
  def answer(fun, caller), do: exit({__MODULE__, fun.(Process.monitor(caller))})

  @doc "Send the requests, `width` at a time, and return the answers in order, or the first that is no `{:ok, ...}`."
  @spec all(watch(), GenServer.server(), [term()], pos_integer()) :: {:ok, [tuple()]} | term()
  def all(watch, server, requests, width) do
    {first, rest} = requests |> Enum.with_index() |> Enum.split(width)
    collect(watch, server, Map.new(first, &ask(server, &1)), rest, [])
  end

  defp ask(server, {request, number}), do: {:gen_server.send_request(server, request), number}

  defp collect(_watch, _server, asked, [], got) when asked == %{},
    do: {:ok, for({_number, answer} <- Enum.sort(got), do: answer)}

  defp collect(watch, server, asked, rest, got) do
    receive do
      {:DOWN, ^watch, :process, _pid, _reason} ->
        exit(:normal)

      message ->
        answer =
          Enum.find_value(asked, fn {request, number} ->
            case :gen_server.check_response(message, request) do
              :no_reply -> nil
              answer -> {request, number, answer}
            end
          end)

        case answer do
          nil ->
            collect(watch, server, asked, rest, got)

          {request, number, {:reply, good}} when elem(good, 0) == :ok ->
            {next, rest} = Enum.split(rest, 1)
            asked = asked |> Map.delete(request) |> Map.merge(Map.new(next, &ask(server, &1)))
            collect(watch, server, asked, rest, [{number, good} | got])

          {_request, _number, {:reply, bad}} ->
            bad

          {_request, _number, {:error, {reason, _server}}} ->
            {:ended, reason}
        end
    end
  end
end
