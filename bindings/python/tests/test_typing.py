# SPDX-License-Identifier: MIT
"""The stubs have the module's members, and mypy accepts them and a user's program."""

import ast
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tmesh
from test_keeping import KEPT
from tmesh import _tmesh

PACKAGE = Path(tmesh.__file__).parent

# mypy reads only the stubs, and takes minutes in an emulated machine.
same_on_every_backend = pytest.mark.skipif(
    os.environ.get("TMESH_BACKEND") == "kernel",
    reason="mypy says the same on every backend, and is run without TMESH_BACKEND=kernel")

USE = """
import numpy
import tmesh

t: tmesh.Tensor = tmesh.put(numpy.zeros((2, 3)), seal=True, label="x")
ref: tmesh.Ref = t.ref()
rows: list[tmesh.Tensor] = [row for row in t]
array: numpy.ndarray = tmesh.open(t.ref(), writable=False).numpy()
token: str = t.token
shape: tuple[int, ...] = t.shape
with tmesh.empty((4, 4), "bfloat16", huge="try") as other:
    other.view("uint8").reshape(-1)[1:3]
copies: int = tmesh.stats()["copies"]
level: str = tmesh.caps()[0]["level"]
memoryview(t)
with tmesh.Channel("send", capacity=4) as out, tmesh.Channel.open(out.token, "recv") as into:
    out.send((t, b"x"), timeout=1.0)
    message = into.recv()
    if isinstance(message, tuple):
        message[0].numpy()
weights: tmesh.Bundle = tmesh.bundle({"t": t, "x": [1.0]}, metadata="{}")
names: list[str] = list(weights)
weights["t"].lease(1.5)
shown: float = float(weights["t"][0, 0])
async def receive(channel: tmesh.Channel) -> None:
    async for each in channel:
        print(each, await channel.recv_async())
q = tmesh.Queue(8, producers=2)
q.put((t, 1), timeout=1.0)
print(q.get_nowait())
try:
    tmesh.open("")
except tmesh.NotFoundError as error:
    print(error.errno)
"""


def stub():
    return ast.parse((PACKAGE / "_tmesh.pyi").read_text())


def public(names):
    return {name for name in names if not name.startswith("_")}


def test_installed():
    assert (PACKAGE / "py.typed").exists() and (PACKAGE / "_tmesh.pyi").exists()


def test_stub_has_every_name():
    functions = {node.name for node in stub().body if isinstance(node, ast.FunctionDef)}
    assert functions == {name for name in public(vars(_tmesh))
                         if callable(getattr(_tmesh, name)) and not isinstance(getattr(_tmesh, name), type)}
    of_model = [getattr(_tmesh, name) for name in ("SlotHandle", "SlotReaderHandle", "PagePoolHandle", "PagesHandle",
                                                  "SequenceHandle") if hasattr(_tmesh, name)]
    for kind in (*of_model, _tmesh.CudaHandle, _tmesh.InTransit, _tmesh.Held, tmesh.Channel, tmesh.Tensor):
        node = next(node for node in stub().body if getattr(node, "name", "") == kind.__name__)
        members = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
        assert public(members) == public(vars(kind))
    assert {"__dlpack__", "__dlpack_device__", "__array__", "__getitem__", "__len__"} <= members


def test_stub_has_every_member_of_the_dicts():
    def keys(name):
        node = next(node for node in stub().body if getattr(node, "name", "") == name)
        return {item.target.id for item in node.body if isinstance(item, ast.AnnAssign)}

    t = tmesh.put(b"x")
    assert set(tmesh.Ref.__annotations__) == set(t.ref())
    assert keys("Stats") == set(tmesh.stats())
    assert keys("Region") == set(tmesh.regions()[0])
    assert keys("Holder") == set(tmesh.holders(t.id)[0])
    assert keys("Kept") == KEPT


# These fail only by programming errors, such as a wrong number of arguments.
CANNOT_FAIL = {"Pages.close", "Queue.cancel_join_thread", "Slot.close", "SlotReader.close", "SlotValue.release"}
# Only tmesh makes objects of these classes.
MADE = {tmesh.Bundle, tmesh.Description, tmesh.Model, tmesh.Pages, tmesh.SlotReader, tmesh.SlotValue, tmesh.Tensor, tmesh.Ref}


def callables():
    """Yield all public ones by their names, methods as Class.method."""
    for name in {*tmesh.__all__, "open"} - {"__version__"}:
        one = getattr(tmesh, name)
        if not inspect.isclass(one):
            yield name, one
        elif not issubclass(one, Exception):
            if one not in MADE:
                yield name, one
            if one is not tmesh.Ref:
                yield from ((f"{name}.{member}", getattr(one, member)) for member in public(vars(one))
                            if callable(getattr(one, member)))


def test_docstrings_name_errors():
    """Each names an exception, or refers to the errors of another call."""
    known = {name: one.__doc__ for name, one in callables()}
    builtin = {"AttributeError", "TypeError", "ValueError"}
    errors = {name for name in tmesh.__all__ if name.endswith("Error")} | builtin | {"Full", "Empty"}

    def names(name):
        found = set(re.findall(r"\b\w+Error\b", known[name])) | set(re.findall(r"queue\.(Full|Empty)", known[name]))
        assert found <= errors, (name, found - errors)
        others = re.findall(r"rrors as\s+of\s+(?:tmesh\.)?(\w+)\(\)", known[name])
        kind = name.rpartition(".")[0]
        for other in others:
            found |= names(f"{kind}.{other}" if f"{kind}.{other}" in known else other)
        return found

    assert {name for name in known if not names(name)} == CANNOT_FAIL


def test_everything_is_documented():
    for name in tmesh.__all__:
        assert name == "__version__" or getattr(tmesh, name).__doc__
    for kind in (tmesh.Bundle, tmesh.Channel, tmesh.PagePool, tmesh.Pages, tmesh.pages.Sequence, tmesh.Queue, tmesh.Slot,
                 tmesh.SlotReader, tmesh.SlotValue, tmesh.Tensor):
        for name in public(vars(kind)):
            assert getattr(kind, name).__doc__


def test_no_module_takes_a_functions_name():
    """Importing tmesh.NAME would put the module in the function's place."""
    modules = {module.name for module in pkgutil.iter_modules(tmesh.__path__)}
    assert not [name for name in tmesh.__all__ if name in modules and inspect.isroutine(getattr(tmesh, name))]


@pytest.fixture(scope="module")
def mypy(tmp_path_factory):
    """Return a function that runs mypy. The standard library's types are read once."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    folder = tmp_path_factory.mktemp("mypy")

    def ask(*target):
        return subprocess.run([sys.executable, "-P", "-m", "mypy", "--strict", "--allow-any-generics",
                               "--cache-dir", folder, *target],
                              capture_output=True, text=True, cwd=folder)
    return ask


@same_on_every_backend
@pytest.mark.parametrize("target", [["-p", "tmesh"], ["-c", USE]], ids=["package", "use"])
def test_mypy(mypy, target):
    done = mypy(*target)
    assert done.returncode == 0, done.stdout + done.stderr


@same_on_every_backend
def test_mypy_finds_mistakes(mypy):
    done = mypy("-c", "import tmesh; tmesh.put(b'x').shape.append(1)")
    assert done.returncode == 1 and "append" in done.stdout
