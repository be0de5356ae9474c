# SPDX-License-Identifier: MIT
"""The pyarrow side of the Elixir tests: each line of input is answered with one line.

names      of the tables below
put NAME   a table of that name: its ref and its values, as Elixir has them, after a tab
get REF    the values of a table that Elixir made, verified in full, as Elixir has them
schema REF its schema
compressed a ref of a table whose batches are compressed
frame REF  the sum of the column "n" by way of pandas and of Polars
"""

import datetime
import decimal
import json
import math
import random
import sys

import numpy
import pyarrow as pa
import tmesh
import tmesh.arrow

DAY = datetime.date(2026, 1, 2)
NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901)
LONG = "ü" * 40

COLUMNS = {
    "null": pa.nulls(4),
    "bool": pa.array([True, None, False, True]),
    **{f"{sign}int{bits}": pa.array([1, None, 3, 100], f"{sign}int{bits}")
       for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": pa.array(numpy.array([1, -2, numpy.inf, numpy.nan], "float16")),
    "float32": pa.array([1.5, None, float("inf"), float("-inf")], "float32"),
    "float64": pa.array([1.5, None, float("nan"), -2]),
    "utf8": pa.array(["a", None, "", LONG]),
    "large_utf8": pa.array(["a", None, "", LONG], pa.large_string()),
    "utf8_view": pa.array(["a", None, "", LONG], pa.string_view()),
    "binary": pa.array([b"a", None, b"", b"\0\xff" * 20]),
    "large_binary": pa.array([b"a", None, b"", b"\0\xff" * 20], pa.large_binary()),
    "binary_view": pa.array([b"a", None, b"\xff", b"\0\xff" * 20], pa.binary_view()),
    "fixed_size_binary": pa.array([b"abc", None, b"\xff\0f", b"ghi"], pa.binary(3)),
    "date32": pa.array([DAY, None, datetime.date(1900, 2, 28), DAY]),
    "date64": pa.array([DAY, None, datetime.date(1900, 2, 28), DAY], pa.date64()),
    "time32": pa.array([datetime.time(3, 4, 5), None, datetime.time(0), None], pa.time32("s")),
    "time64": pa.array([NOW.time(), None, datetime.time(0), None], pa.time64("us")),
    "seconds": pa.array([NOW.replace(microsecond=0), None], pa.timestamp("s")),
    "naive": pa.array([NOW, None, datetime.datetime(1900, 1, 1, 1, 1, 1, 1)], pa.timestamp("us")),
    "zoned": pa.array([NOW, None], pa.timestamp("us", "UTC")),
    "nanoseconds": pa.array([1, None, -1], pa.int64()).cast(pa.timestamp("ns")),
    "duration": pa.array([5, None, -5], pa.int64()).cast(pa.duration("ms")),
    "decimal128": pa.array([decimal.Decimal("1.25"), None, decimal.Decimal("-3.5")],
                           pa.decimal128(10, 2)),
    "decimal256": pa.array([decimal.Decimal("1.25"), None], pa.decimal256(60, 2)),
    "list": pa.array([[1, 2], None, [], [None, 3]]),
    "large_list": pa.array([[1, 2], None, [], [None, 3]], pa.large_list(pa.int64())),
    "fixed_size_list": pa.array([[1, 2], None, [None, 3]], pa.list_(pa.int16(), 2)),
    "nested": pa.array([[["a"], None, []], None, [], [["b", "c"]]]),
    "struct": pa.array([{"x": 1, "y": "a"}, None, {"x": None, "y": "b"}, {"x": 2, "y": None}]),
    "map": pa.array([[("k", 1)], None, [], [("l", 2), ("m", None)]],
                    pa.map_(pa.string(), pa.int64())),
    "dictionary": pa.array(["x", None, "y", "x"]).dictionary_encode(),
    "nested_dictionary": pa.array([["x"], None, ["y", "x"]],
                                  pa.list_(pa.dictionary(pa.int8(), pa.string()))),
}


def many(column):
    chance = random.Random(5)
    return pa.concat_arrays([column.slice(chance.randrange(len(column)), 1) for _ in range(300)])


def tables():
    for name, column in COLUMNS.items():
        table = pa.table({name: column})
        yield name, table
        yield f"{name}/slice", table.slice(1, 2)
        yield f"{name}/empty", table.slice(0, 0)
        for first, count in ((0, 300), (0, 8), (1, 8), (3, 67), (9, 64), (299, 1)):
            yield f"{name}/{first}+{count}", pa.table({name: many(column)}).slice(first, count)
        yield f"{name}/many", pa.concat_tables([table, table.slice(1), table.slice(0, 0)])
    long = {name: column for name, column in COLUMNS.items() if len(column) == 4}
    yield "all", pa.table(long)
    yield "nothing", pa.table({})
    yield "doubles", pa.table({"n": numpy.arange(100_000.0)})


TABLES = dict(tables())
kept = []


DIGITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds"}


def elixir(value, kind):
    """As Elixir writes it."""
    if value is None:
        return "nil"
    if pa.types.is_duration(kind) or pa.types.is_timestamp(kind) and kind.unit == "ns":
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isnan(value):
            return ":nan"
        if math.isinf(value):
            return ":infinity" if value > 0 else ":neg_infinity"
        return repr(value)
    if isinstance(value, str):
        return bits(value.encode())
    if isinstance(value, bytes):
        return bits(value)
    if isinstance(value, decimal.Decimal):
        return str(int(value.scaleb(kind.scale)))
    if isinstance(value, datetime.datetime):
        text = value.replace(tzinfo=None).isoformat(timespec=DIGITS[kind.unit])
        return f"~U[{text}Z]" if kind.tz else f"~N[{text}]"
    if isinstance(value, datetime.date):
        return f"~D[{value}]"
    if isinstance(value, datetime.time):
        return f"~T[{value.isoformat(timespec=DIGITS[kind.unit])}]"
    if isinstance(value, list):
        if pa.types.is_map(kind):
            return "[" + ", ".join(f"{{{elixir(k, kind.key_type)}, {elixir(v, kind.item_type)}}}"
                                   for k, v in value) + "]"
        return "[" + ", ".join(elixir(item, kind.value_type) for item in value) + "]"
    if isinstance(value, dict):
        return "%{" + ", ".join(f"{bits(name.encode())} => {elixir(item, kind.field(name).type)}"
                                for name, item in value.items()) + "}"
    return str(value)


def bits(data):
    return "<<" + ", ".join(map(str, data)) + ">>"


def plain(column):
    """Nanoseconds and durations as their numbers, dictionaries as their words."""
    if pa.types.is_duration(column.type) or pa.types.is_timestamp(column.type) and \
            column.type.unit == "ns":
        return column.cast(pa.int64())
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def all_of(table):
    columns = []
    for name, column in zip(table.column_names, table.columns):
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        values = ", ".join(elixir(value, kind) for value in plain(column).to_pylist())
        columns.append(f"{bits(name.encode())} => [{values}]")
    return "%{" + ", ".join(columns) + "}"


def obey(verb, rest):
    if verb == "names":
        return " ".join(TABLES)
    if verb == "put":
        kept.append(tmesh.arrow.write_table(TABLES[rest]))
        return json.dumps(kept[-1].ref()) + "\t" + all_of(TABLES[rest])
    if verb == "get":
        return all_of(tmesh.arrow.open_table(rest))
    if verb == "schema":
        return str(tmesh.arrow.open_table(rest).schema).replace("\n", "; ")
    if verb == "frame":
        import polars
        table = tmesh.arrow.open_table(rest)
        return f"{table.to_pandas()['n'].sum()} {polars.from_arrow(table)['n'].sum()}"
    if verb == "compressed":
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(sink, TABLES["doubles"].schema, options=options) as writer:
            writer.write_table(TABLES["doubles"])
        kept.append(tmesh.put(sink.getvalue(), seal=True))
        return json.dumps(kept[-1].ref())
    return "no such command"


for line in sys.stdin:
    command, _, argument = line.rstrip("\n").partition(" ")
    try:
        print(obey(command, argument), flush=True)
    except Exception as error:
        print(f"{type(error).__name__}: {error}".replace("\n", " "), flush=True)
