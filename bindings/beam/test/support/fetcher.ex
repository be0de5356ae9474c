# SPDX-License-Identifier: MIT
defmodule Tmesh.Fetcher do
  @moduledoc false
  # Stand-ins for the fetcher, tmesh-net: programs for `Tmesh.Net`, which exist until the test ends.

  @doc "Make a program of that text. The name of its runtime folder is its own, with `.dir` added."
  def program(text) do
    program = Path.join(System.tmp_dir!(), "tmesh-net-#{System.pid()}-#{System.unique_integer()}")
    File.mkdir_p!(program <> ".dir")
    File.write!(program, text)
    File.chmod!(program, 0o700)

    ExUnit.Callbacks.on_exit(fn ->
      for path <- [program, program <> ".dir"], do: File.rm_rf(path)
    end)

    program
  end

  @doc "It says hello, and ends with its input."
  def quiet, do: says_hello("", "exec cat > /dev/null")

  @doc "It says hello, and reads nothing, until the test ends."
  def deaf, do: says_hello("exec 0<&-", ~S(while [ -e "$0" ]; do sleep 1; done))

  @doc "It says hello, and ends for that reason when there is a file of its name with `.end` added."
  def ends_for(why),
    do: says_hello("", ~s(while ! [ -e "$0.end" ]; do sleep 0.05; done\n#{says_end(why)}\nexit 1))

  @doc "It says at once why it cannot begin."
  def refuses(why), do: program("#!/bin/sh\n#{says_end(why)}\nexit 1\n")

  @doc "It says hello, and is killed when there is a file of its name with `.end` added."
  def dies,
    do: says_hello("", ~S(while ! [ -e "$0.end" ]; do sleep 0.05; done; kill -KILL $$))

  defp says_end(why), do: says(~s('{"v":1,"type":"end","message":"#{why}"}'))

  @hello ~S('{"v":1,"type":"hello","runtime_dir":"'"$0"'.dir"}')

  defp says_hello(first, then), do: program("#!/bin/sh\n#{first}\n#{says(@hello)}\n#{then}\n")

  @print ~S"""
  printf '\000\000\000\'$(printf %o ${#json})%s "$json"
  """

  # The message is JSON after four bytes with its length.
  defp says(json), do: "json=#{json}\n#{@print}"
end
