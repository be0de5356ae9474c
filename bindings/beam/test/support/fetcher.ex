# SPDX-License-Identifier: MIT
defmodule Tmesh.Fetcher do
  @moduledoc false
  # Stand-ins for the fetcher, tmesh-net: programs for `Tmesh.Net`, there until the test ends.

  @doc "A program of that text. Its runtime folder is called as it is, with `.dir` behind."
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

  # The message is JSON, four bytes of its length ahead.
  defp says_hello(first, then) do
    program("""
    #!/bin/sh
    #{first}
    hello="{\\"v\\":1,\\"type\\":\\"hello\\",\\"runtime_dir\\":\\"$0.dir\\"}"
    printf "\\\\000\\\\000\\\\000\\\\$(printf %o ${#hello})%s" "$hello"
    #{then}
    """)
  end
end
