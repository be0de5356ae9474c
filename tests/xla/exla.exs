# SPDX-License-Identifier: MIT
#
# Registers with the stand-in for EXLA's library, which is loaded, and prints what tmesh tells EXLA to write for
# blocks. The protocol and its result are stand-ins too, of the shape that EXLA 0.12 and 0.13 document.
defmodule EXLA.CustomCall.Spec do
  defstruct [:call_target_name, attributes: [], operand_element_types: :default]
end

defprotocol EXLA.CustomCall do
  @fallback_to_any true
  def call(struct, out, args, client)
end

defimpl EXLA.CustomCall, for: Any do
  def call(_, _, _, _), do: :skip
end

[file] = System.argv()
{:ok, _apps} = Application.ensure_all_started(:tmesh)
:ok = Tmesh.XLA.register()
:ok = Tmesh.XLA.register()
Code.compile_file(file)

sequence = %{type: {:u, 32}, shape: {}}
tensor = %{type: {:f, 32}, shape: {4}}
host = %{platform: :host}
push = %Tmesh.XLA.Push{channel: "out", seal: true, timeout_ms: 600_000}
pop = %Tmesh.XLA.Pop{channel: "in \"é\\", timeout_ms: 600_000}

for {tag, out, args} <- [{pop, {sequence, tensor}, [sequence]}, {push, sequence, [sequence, tensor]}] do
  {:ok, spec} = EXLA.CustomCall.call(tag, out, args, host)
  attributes = Enum.map_join(spec.attributes, ", ", fn {name, value} -> "#{name} = #{value}" end)
  IO.puts("#{spec.call_target_name}\t#{attributes}")
  :skip = EXLA.CustomCall.call(tag, out, args, %{platform: :cuda})
  :skip = EXLA.CustomCall.call(tag, out, [tensor], host)
  :skip = EXLA.CustomCall.call(tag, out, [], host)
end
