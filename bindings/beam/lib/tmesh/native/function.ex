# SPDX-License-Identifier: MIT
defmodule Tmesh.Native.Function do
  @moduledoc false

  # Define a native function by its spec. It raises until the library is loaded, which replaces it.
  defmacro nif({:"::", _meta, [{name, _call, types}, _returned]} = spec) do
    unused = List.duplicate(quote(do: _), length(types))

    quote do
      @spec unquote(spec)
      def unquote(name)(unquote_splicing(unused)), do: :erlang.nif_error(:not_loaded)
    end
  end
end
