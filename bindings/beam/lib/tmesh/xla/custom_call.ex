# SPDX-License-Identifier: MIT
# EXLA calls this for a block's tag while it compiles. It is compiled if EXLA is present. A project that adds EXLA
# later must compile tmesh anew (mix deps.compile tmesh --force).
if Code.ensure_loaded?(EXLA.CustomCall) do
  defimpl EXLA.CustomCall, for: [Tmesh.XLA.Push, Tmesh.XLA.Pop] do
    # The handlers run on the host. Elsewhere the block's default runs, and reports that.
    def call(tag, _out, [%{type: {:u, 32}, shape: {}} | _tensors], %{platform: :host}) do
      attributes = [
        {"channel", text(tag.channel)},
        {"timeout_ms", "#{tag.timeout_ms} : i64"} | seal(tag)
      ]

      {:ok, struct!(EXLA.CustomCall.Spec, call_target_name: target(tag), attributes: attributes)}
    end

    def call(_tag, _out, _args, _client), do: :skip

    defp target(%Tmesh.XLA.Push{}), do: "tmesh_push"
    defp target(%Tmesh.XLA.Pop{}), do: "tmesh_pop"

    defp seal(%Tmesh.XLA.Push{seal: seal}), do: [{"seal", "#{seal}"}]
    defp seal(%Tmesh.XLA.Pop{}), do: []

    # A string of MLIR: letters and digits stay, every other byte becomes its number.
    defp text(name) do
      bytes =
        for <<byte <- name>>, into: "" do
          if byte in ?a..?z or byte in ?A..?Z or byte in ?0..?9,
            do: <<byte>>,
            else: "\\" <> Base.encode16(<<byte>>)
        end

      ~s("#{bytes}")
    end
  end
end
