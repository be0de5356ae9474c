# SPDX-License-Identifier: MIT
"""Arrow tables in regions, with real pyarrow, pandas and Polars; tensors as Arrow arrays."""

import datetime
import decimal
import gc
import json
import random

import numpy as np
import pytest

import tmesh
from conftest import assert_refused

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: make python-arrow-check")

from tmesh.arrow import open_table, write_table  # noqa: E402

DAY = datetime.date(2026, 1, 2)
NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901)

COLUMNS = {
    "null": pa.nulls(4),
    "bool": pa.array([True, None, False, True]),
    **{f"{sign}int{bits}": pa.array([1, None, 3, 100], f"{sign}int{bits}")
       for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": pa.array(np.array([1, 2, 3, 4], "float16")),
    "float32": pa.array([1.5, None, float("inf"), -2], "float32"),
    "float64": pa.array([1.5, None, float("inf"), -2], "float64"),
    "string": pa.array(["a", None, "", "ü" * 40]),
    "large_string": pa.array(["a", None, "", "ü" * 40], pa.large_string()),
    "string_view": pa.array(["a", None, "", "ü" * 40], pa.string_view()),
    "binary": pa.array([b"a", None, b"", b"\0" * 40]),
    "fixed": pa.array([b"abc", None, b"def", b"ghi"], pa.binary(3)),
    "date32": pa.array([DAY, None, DAY, DAY]),
    "timestamp": pa.array([NOW, None, NOW, NOW], pa.timestamp("us", "UTC")),
    "time": pa.array([NOW.time(), None, NOW.time(), NOW.time()]),
    "duration": pa.array([datetime.timedelta(1), None, datetime.timedelta(0, 1), None]),
    "decimal": pa.array([decimal.Decimal("1.25"), None, decimal.Decimal("-3.50"), None]),
    "list": pa.array([[1, 2], None, [], [None, 3]]),
    "struct": pa.array([{"x": 1, "y": "a"}, None, {"x": None, "y": "b"}, {"x": 2, "y": None}]),
    "map": pa.array([[("k", 1)], None, [], [("l", 2)]], pa.map_(pa.string(), pa.int64())),
    "dictionary": pa.array(["x", None, "y", "x"]).dictionary_encode(),
}


def addresses(table):
    for column in table.columns:
        for chunk in column.chunks:
            for buffer in chunk.buffers():
                if buffer is not None and buffer.size:
                    yield buffer.address, buffer.size


def lies_in(table, t):
    start = memoryview(t)
    first = np.frombuffer(start, "uint8").ctypes.data
    return all(first <= address and address + size <= first + t.nbytes
               for address, size in addresses(table))


@pytest.mark.parametrize("name", COLUMNS)
def test_every_type(name):
    for column in (COLUMNS[name], COLUMNS[name][1:3], COLUMNS[name][:0]):
        table = pa.table({name: column})
        t = write_table(table, label=name)
        assert t.sealed and t.label == name and t.dtype == "uint8"
        same = open_table(t)
        assert same.equals(table) and same.schema == table.schema
        assert lies_in(same, t)


def test_all_at_once_in_another_process(python):
    t = write_table(pa.table(COLUMNS))
    assert python("""
import sys, tmesh.arrow
table = tmesh.arrow.open_table(sys.argv[1])
print(table.num_rows, table["string"][3].as_py() == "ü" * 40, table["list"][3].as_py())
""", json.dumps(t.ref())) == "4 True [None, 3]\n"


def test_many_batches_and_no_columns():
    batches = [pa.record_batch({"a": pa.array(range(n), "int64")}) for n in (3, 0, 5)]
    table = pa.Table.from_batches(batches)
    assert open_table(write_table(table)).equals(table)
    reader = pa.RecordBatchReader.from_batches(batches[0].schema, batches)
    assert open_table(write_table(reader)).num_rows == 8
    assert open_table(write_table(batches[2])).num_rows == 5
    assert open_table(write_table(pa.table({}))).num_columns == 0


def test_the_table_keeps_the_memory():
    t = write_table(pa.table({"a": pa.array(range(1000))}))
    table = open_table(t.ref())
    with pytest.raises(tmesh.BusyError):
        held = open_table(t)
        t.release()
    del held
    t.release()
    assert table["a"][999].as_py() == 999
    del table
    gc.collect()


def test_memory_is_read_in_place():
    t = write_table(pa.table({"a": pa.array(range(100_000)), "b": ["text"] * 100_000}))
    before = pa.total_allocated_bytes()
    table = open_table(t)
    assert pa.total_allocated_bytes() - before < 4096
    assert lies_in(table, t)


def test_pandas():
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pd.DataFrame({"n": [1.5, 2.5], "i": [1, 2], "s": ["é", "b"],
                          "c": pd.Categorical(["x", "y"]), "d": pd.to_datetime(["2026", "2027"])})
    t = write_table(frame)
    again = open_table(t).to_pandas()
    pd.testing.assert_frame_equal(again, frame)
    column = open_table(t)["n"].chunk(0).to_numpy(zero_copy_only=True)
    assert not column.flags.writeable and column.tolist() == [1.5, 2.5]
    there = open_table(t).to_pandas(types_mapper=pd.ArrowDtype)
    assert lies_in(pa.table({name: pa.array(there[name]) for name in "nis"}), t)


def test_polars():
    pl = pytest.importorskip("polars", reason="Polars is not installed")
    frame = pl.DataFrame({"n": [1.5, None], "i": [1, 2], "s": ["é", None], "l": [[1], [2, 3]]})
    table = open_table(write_table(frame))
    assert pl.from_arrow(table).equals(frame)
    assert pl.DataFrame(table).equals(frame)
    numbers = pl.DataFrame(table)["i"].to_numpy(allow_copy=False)
    assert table["i"].chunk(0).buffers()[1].address == numbers.ctypes.data


class OnlyCapsules:
    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def test_capsules():
    table = pa.table({"a": [1, 2]})
    t = write_table(OnlyCapsules(table))
    assert pa.table(OnlyCapsules(open_table(t))).equals(table)


def test_what_is_no_table():
    for bad in (5, None, object()):
        assert_refused(lambda: write_table(bad), TypeError)
    live = tmesh.stats()["regions_live"]
    assert_refused(lambda: write_table(pa.table({"a": [1]}), label="x" * 100), tmesh.InvalidError)
    assert tmesh.stats()["regions_live"] == live


def test_what_holds_no_table():
    for bad in (b"", b"x", b"abc" * 100, b"\xff\xff\xff\xff\xff\xff\xff\x7f" + bytes(100)):
        assert_refused(lambda: open_table(tmesh.put(bad, seal=True)), tmesh.ProtocolError)
    assert_refused(lambda: open_table("no token"), tmesh.ProtocolError)


def test_what_is_not_sealed_is_not_trusted():
    t = tmesh.put(write_table(pa.table({"a": [1]})).numpy(), seal=False)
    assert_refused(lambda: open_table(t), tmesh.AccessError, "verify=False")
    assert open_table(t, verify=False)["a"].to_pylist() == [1]


def test_cut_short_or_lying():
    """A stream with any content is refused or read within its region."""
    whole = write_table(pa.table({name: COLUMNS[name] for name in COLUMNS if name != "float16"}))
    data = whole.numpy().copy()
    chance = random.Random(4)
    refused = 0
    for cut in [*range(0, 200), *chance.sample(range(200, data.size), 200)]:
        refused += survives(data[:cut])
    for _ in range(600):
        lie = data.copy()
        for _ in range(chance.choice([1, 1, 4])):
            lie[chance.randrange(lie.size)] = chance.choice([0, 1, 0x7f, 0x80, 0xff])
        refused += survives(lie)
    assert refused > 400


def survives(data):
    t = tmesh.put(data, seal=True)
    try:
        table = open_table(t)
    except tmesh.ProtocolError:
        return True
    table.to_pydict()
    assert lies_in(table, t)
    return False


ARROW = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
         "float32", "float64"]


@pytest.mark.parametrize("dtype", ARROW)
def test_tensor_as_array(dtype):
    t = tmesh.put(np.arange(10).astype(dtype), seal=True)
    array = pa.array(t)
    assert array.type == pa.array(np.zeros(1, dtype)).type
    assert array.to_numpy().tolist() == list(range(10)) and array.null_count == 0
    assert array.buffers()[1].address == t.numpy().ctypes.data
    assert_refused(t.release, tmesh.BusyError)
    del array
    assert pa.array(t[3:5]).to_numpy().tolist() == [3, 4]
    assert len(pa.array(t[:0])) == 0
    assert t.__arrow_c_schema__()
    t.release()


def test_tensor_with_dimensions():
    t = tmesh.put(np.arange(24, dtype="int32").reshape(2, 3, 4))
    array = pa.array(t)
    assert array.type == pa.list_(pa.list_(pa.int32(), 4), 3)
    assert array.to_pylist() == t.numpy().tolist()
    array.validate(full=True)
    child = array.flatten()
    del array
    gc.collect()
    assert child.to_pylist() == t.numpy().reshape(6, 4).tolist()
    assert pa.array(tmesh.empty((2, 0), "int8")).to_pylist() == [[], []]


def test_tensor_capsules_unused():
    t = tmesh.put([1.0])
    capsules = t.__arrow_c_array__()
    assert_refused(t.release, tmesh.BusyError)
    del capsules
    t.release()
    assert_refused(t.__arrow_c_array__, tmesh.ReleasedError)


@pytest.mark.parametrize("t", [
    lambda: tmesh.empty(3, "bool"), lambda: tmesh.empty(3, "bfloat16"),
    lambda: tmesh.empty(4, "int4"), lambda: tmesh.empty(3, "complex64"),
    lambda: tmesh.empty((), "int8"), lambda: tmesh.empty((3, 4), "int8")[:, 1:],
    lambda: tmesh.empty(3, "int8")[::-1]])
def test_tensors_that_are_no_arrays(t):
    for ask in (t().__arrow_c_array__, t().__arrow_c_schema__):
        assert_refused(ask, tmesh.UnsupportedError)
    assert_refused(lambda: t().__arrow_c_array__(1, 2), TypeError)
