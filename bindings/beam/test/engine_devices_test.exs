# SPDX-License-Identifier: MIT
defmodule Tmesh.EngineDevicesTest do
  @moduledoc false
  use Tmesh.Case, backend: :any

  alias Tmesh.Engine

  unless System.get_env("TMESH_DEVICES_PROGRAM") do
    @moduletag skip: "only where TMESH_DEVICES_PROGRAM names tmeshctl-devices"
  end

  test "processors, their memory and the engines, found by a program" do
    %{devices: devices, engines: engines} = Engine.devices!()
    assert [%{id: "cpu:" <> _number, kind: "cpu", memory: memory} = device | _more] = devices
    assert memory > 0 and device.memory_free <= memory and device.processors > 0
    # Engines without an installed plug-in come last.
    assert [] = ~w(ggml onnx) -- Enum.map(engines, & &1.name)

    for engine <- engines do
      assert is_binary(engine.version) != is_binary(engine.reason)
      assert engine.name in device.engines == is_nil(engine.reason)
      # Until a GPU has run one.
      assert engine.never_seen == if(engine.name in ~w(ggml onnx), do: ["cuda"], else: [])
    end

    assert device.never_seen == []
  end

  test "a program that fails, says something else or is not there is an error" do
    assert {:error, %Tmesh.Error{type: :unsupported}} = Engine.devices(program: "/bin/false")
    assert {:error, %Tmesh.Error{type: :protocol}} = Engine.devices(program: "/bin/echo")
    assert {:error, %Tmesh.Error{type: :unsupported}} = Engine.devices(program: "/nonexistent")
    assert {:error, %Tmesh.Error{type: :invalid}} = Engine.devices(program: 1)
    assert {:error, %Tmesh.Error{type: :invalid}} = Engine.devices(programs: "/bin/false")
  end
end
