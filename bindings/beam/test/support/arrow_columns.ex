# SPDX-License-Identifier: MIT
defmodule Tmesh.ArrowColumns do
  @moduledoc false
  # A column of each type: its ends, a nil where there may be one.

  @now ~U[2026-01-02 03:04:05.678901Z]
  @columns [
    {:null, [nil, nil, nil]},
    {:bool, [true, nil, false]},
    {:int8, [-128, nil, 127]},
    {:int16, [-32768, nil, 32767]},
    {:int32, [-2_147_483_648, nil, 2_147_483_647]},
    {:int64, [-9_223_372_036_854_775_808, nil, 9_223_372_036_854_775_807]},
    {:uint8, [0, nil, 255]},
    {:uint16, [0, nil, 65535]},
    {:uint32, [0, nil, 4_294_967_295]},
    {:uint64, [0, nil, 18_446_744_073_709_551_615]},
    {:float16, [1.5, :nan, :neg_infinity]},
    {:float32, [1.5, nil, :infinity]},
    {:float64, [0.1, :nan, -2.5]},
    {:utf8, ["", nil, "grüße"]},
    {:large_utf8, ["", nil, "grüße"]},
    {:binary, ["", nil, <<0, 255>>]},
    {:large_binary, ["", nil, <<0, 255>>]},
    {{:fixed_size_binary, 2}, ["ab", nil, <<0, 255>>]},
    {:date32, [~D[2026-01-02], nil, ~D[1900-02-28]]},
    {:date64, [~D[2026-01-02], nil, ~D[1900-02-28]]},
    {{:time32, :second}, [~T[03:04:05], nil, ~T[23:59:59]]},
    {{:time32, :millisecond}, [~T[03:04:05.678], nil, ~T[00:00:00.000]]},
    {{:time64, :microsecond}, [~T[03:04:05.678901], nil, ~T[00:00:00.000000]]},
    {{:timestamp, :microsecond, "UTC"}, [@now, nil, ~U[1900-01-01 00:00:00.000001Z]]},
    {{:timestamp, :second, nil}, [~N[2026-01-02 03:04:05], nil, ~N[1900-01-01 00:00:00]]},
    {{:timestamp, :nanosecond, nil}, [1, nil, -1]},
    {{:duration, :millisecond}, [5, nil, -5]},
    {{:decimal, 128, 10, 2}, [125, nil, -350]},
    {{:decimal, 256, 60, 2}, [125, nil, -350]},
    {{:list, :int64}, [[1, nil], nil, []]},
    {{:large_list, :utf8}, [["a"], nil, []]},
    {{:fixed_size_list, :int16, 2}, [[1, 2], nil, [3, nil]]},
    {{:list, {:list, :utf8}}, [[["a"], nil], nil, [[]]]},
    {{:struct, [{"x", :int64}, {"y", :utf8}]},
     [%{"x" => 1, "y" => nil}, nil, %{"x" => nil, "y" => "b"}]}
  ]

  def all, do: @columns
end
