# SPDX-License-Identifier: MIT
"""Each getenv() is in a function that runs once, at a moment that docs/reference/environment.md states. In a call that is
made again and again it would race with a setenv() of another thread. tests/rooms.py runs this."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROOMS = "lib", "model", "engine", "net", "tools", "bindings"

CONTEXT, START, LIBRARY, ENGINE = "a context is opened", "a program starts", "a library is loaded", "an engine is loaded"
MOMENTS = {
    ("lib/environment.c", "variable"): CONTEXT,
    ("lib/context.c", "wanted_exit_wait"): CONTEXT,
    ("lib/region_pool.c", "tmesh_region_pool_wanted"): CONTEXT,
    ("lib/backend.c", "tmesh_backend_wanted"): CONTEXT,
    ("lib/keeper/main.c", "main"): START,
    ("lib/keeper/store.c", "store_open"): START,
    ("lib/keeper/store.c", "listen_fds"): START,
    ("lib/mount/main.c", "notify"): START,
    ("lib/mount/main.c", "own_folder"): START,
    ("tools/doctor.c", "files_advice"): START,
    ("tools/mount.c", "place_of"): START,
    ("tools/target.c", "for_backends"): START,
    ("engine/plugin.c", "engine_plugin_folders"): ENGINE,
    ("engine/plugin.c", "engine_plugin_find"): ENGINE,
    ("engine/process/confine.c", "allow_libraries"): START,
    ("engine/onnx/library.c", "find_library"): ENGINE,
    ("engine/ggml/library.c", "find_library"): ENGINE,
    ("bindings/cuda/cuda.c", "tmesh_cuda_default"): LIBRARY,
    ("bindings/cuda/hook_driver.c", "hook_driver_is_on"): LIBRARY,
    ("bindings/python/ext/cuda.c", "get_cuda"): LIBRARY,
    ("bindings/python/ext/xla.c", "module_xla_load"): LIBRARY,
    ("bindings/python/ext/net.c", "load"): LIBRARY,
    ("bindings/beam/c_src/gpu.c", "get_cuda"): LIBRARY,
    ("bindings/beam/c_src/xla.c", "load"): LIBRARY,
}


def reads() -> set[tuple[str, str]]:
    """Return the files and functions that call getenv() or one of its kind."""
    found = set()
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.[ch]"):
            text = path.read_text()
            for call in re.finditer(r"\b(?:secure_|enif_)?getenv\(\"?\w", text):
                heads = re.findall(r"^\w[^;{}#]*?\b(\w+)\([^;{}]*\)\n\{", text[:call.start()], re.M)
                found.add((str(path.relative_to(ROOT)), heads[-1] if heads else ""))
    return found


def wrong() -> tuple[set[str], int]:
    """Return what is wrong, and how many functions read the environment."""
    found = reads()
    page = " ".join((ROOT / "docs/reference/environment.md").read_text().split())
    return ({f"{path}: {function}() reads the environment at a moment that is not stated" for path, function in found - MOMENTS.keys()}
            | {f"{path}: {function}() reads it no more" for path, function in MOMENTS.keys() - found}
            | {f"docs/reference/environment.md does not say \"when {moment}\"" for moment in set(MOMENTS.values())
               if f"when {moment}" not in page}), len(found)
