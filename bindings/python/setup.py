# SPDX-License-Identifier: MIT
"""The extension: its own sources and the library's, so that nothing else need be installed.
Distributions, which have the library in a package of its own, set TMESH_SYSTEM_LIBRARY=1.

The library lies beside this package in the repository; what is built goes to the
repository's build/ as everything else does. A source distribution has what it needs of the
repository in its own folder "library".
"""

import os
from pathlib import Path
import re
import shutil
import subprocess
import sys
import sysconfig

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
DISTRIBUTED = HERE / "library"
ROOT = DISTRIBUTED if DISTRIBUTED.is_dir() else HERE.parents[1]
BUILD = ROOT / "build" / "python"
VERSION = (ROOT / "VERSION").read_text().strip()

# The free-threaded build has no stable ABI.
STABLE_ABI = not sysconfig.get_config_var("Py_GIL_DISABLED")

SYSTEM_LIBRARY = os.environ.get("TMESH_SYSTEM_LIBRARY") == "1"


class BuildWithLibrary(build_ext):
    """The library's sources join late: setuptools wants declared ones below this folder."""

    def build_extension(self, ext):
        if ext in engines:
            wanted = [f"engine/{ext.name.rpartition('-')[2]}/*.c", "lib/common/*.c"]
            if ext is engine_ggml:
                wanted.append("engine/graph_*.c")
            ext.sources = [str(path) for pattern in wanted for path in sorted(ROOT.glob(pattern))]
            super().build_extension(ext)
            return
        self.complain_of_what_is_missing(ext)
        rooms = [] if SYSTEM_LIBRARY else ["lib", "lib/common", "engine"]
        if self.add_model(ext) and not SYSTEM_LIBRARY:
            rooms.append("model")
        ext.sources = [*ext.sources, *(str(path) for room in rooms for path in sorted(ROOT.glob(f"{room}/*.c")))]
        super().build_extension(ext)

    def has(self, ext, header):
        folders = [f"-I{folder}" for folder in (*ext.include_dirs, *self.include_dirs)]
        return not subprocess.run([*self.compiler.compiler, *folders, "-E", "-x", "c", "-"], text=True,
                                  input=f"#include <{header}>\n", capture_output=True).returncode

    def add_model(self, ext):
        """What reads files of tensors, with two libraries more. Without these the package is whole but for
        tmesh.load_model() and tmesh.safetensors, which then say so."""
        wanted = {} if SYSTEM_LIBRARY else {"liburing.h": "liburing-dev", "xxhash.h": "libxxhash-dev"}
        missing = [package for header, package in wanted.items() if not self.has(ext, header)]
        if missing:
            print("tmesh: built without load_model() and tmesh.safetensors. For them, on Debian and Ubuntu: "
                  f"sudo apt install {' '.join(missing)}", file=sys.stderr)
            return False
        ext.define_macros = [*ext.define_macros, ("TMESH_MODEL", None)]
        ext.libraries = [*(["tmesh-model"] if SYSTEM_LIBRARY else ["uring"]), *ext.libraries]
        return True

    def complain_of_what_is_missing(self, ext):
        """Before the compiler does, in words that help."""
        compiler = self.compiler.compiler
        wanted = {"stdio.h": ("the C library's headers", "libc6-dev"),
                  "Python.h": ("Python's headers", "python3-dev")}
        if not SYSTEM_LIBRARY:
            wanted["jansson.h"] = "jansson, which reads and writes JSON", "libjansson-dev"
        missing = [("a C compiler", "gcc"), *wanted.values()]
        if shutil.which(compiler[0]):
            missing = [what for header, what in wanted.items() if not self.has(ext, header)]
        if missing:
            raise SystemExit("tmesh cannot be compiled here. What is missing, or cannot be found by "
                             f"{compiler[0]}: {'; '.join(what for what, _ in missing)}.\n"
                             "On Debian and Ubuntu:\n\n"
                             f"    sudo apt install {' '.join(package for _, package in missing)}\n")

    def get_ext_filename(self, fullname):
        """By the name that every Python looks for; 3.15 would give it one that it alone knows. Engines are no
        modules: libtmesh-engine looks for them by theirs."""
        if "tmesh-engine-" in fullname:
            return os.path.join(*fullname.split(".")) + ".so"
        return re.sub(r"\.abi3[^.]*\.so$", ".abi3.so", super().get_ext_filename(fullname))


class SourcesWithLibrary(sdist):
    """What setuptools does not know to belong to the package."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        self.put(HERE, HERE.glob("ext/*"), Path(base_dir))
        library = [ROOT / "VERSION", *ROOT.glob("lib/*.[ch]"), *ROOT.glob("lib/common/*.[ch]"), *ROOT.glob("model/*.[ch]"),
                   *ROOT.glob("engine/**/*.[ch]"), *ROOT.glob("engine/*.map"), *ROOT.glob("include/**/*.h")]
        self.put(ROOT, library, Path(base_dir, DISTRIBUTED.name))

    def put(self, top, files, target):
        for file in files:
            place = target / file.relative_to(top)
            self.mkpath(str(place.parent))
            self.copy_file(str(file), str(place))


extension = Extension(
    "tmesh._tmesh",
    sources=sorted(str(path.relative_to(HERE)) for path in HERE.glob("ext/*.c")),
    depends=[str(path) for path in (*HERE.glob("ext/*.h"), *ROOT.glob("lib/**/*.h"), *ROOT.glob("model/*.h"),
                                    *ROOT.glob("engine/*.h"), *ROOT.glob("include/**/*.h"), ROOT / "VERSION")],
    include_dirs=[str(ROOT / "include"), str(ROOT / "include" / "uapi")],
    define_macros=[
        ("_GNU_SOURCE", None),
        ("TMESH_VERSION", f'"{VERSION}"'),
        # Where Debian's package has it; the library looks beside itself and in $PATH too.
        ("TMESH_KEEPER_PATH", '"/usr/libexec/tmesh-keeper"'),
        ("TMESH_ENGINE_DIR", '"/usr/lib/tmesh"'),
        *([("Py_LIMITED_API", "0x030B0000")] if STABLE_ABI else []),
    ],
    extra_compile_args=[f"-iquote{ROOT / 'lib'}", f"-iquote{ROOT / 'engine'}", "-std=gnu11", "-fvisibility=hidden",
                        "-pthread", "-Wall", "-Wextra", "-Wshadow", "-Wno-unused-parameter", "-Wno-missing-field-initializers",
                        "-Werror=incompatible-pointer-types"],  # as GCC 14 has it
    extra_link_args=["-pthread", f"-Wl,--version-script={HERE / 'ext' / '_tmesh.map'}"],
    libraries=["tmesh-engine", "tmesh"] if SYSTEM_LIBRARY else ["jansson"],
    py_limited_api=STABLE_ABI,
)



def engine(name, libraries):
    """An engine, which the package's own libtmesh-engine loads: one symbol of it is seen."""
    return Extension(
        f"tmesh.tmesh-engine-{name}",
        sources=[],
        depends=[str(path) for path in (*ROOT.glob("engine/**/*.[ch]"), *ROOT.glob("lib/common/*.[ch]"),
                                        *ROOT.glob("include/**/*.h"))],
        include_dirs=extension.include_dirs,
        define_macros=[("_GNU_SOURCE", None)],
        extra_compile_args=extension.extra_compile_args,
        extra_link_args=["-pthread", f"-Wl,--version-script={ROOT / 'engine' / 'plugin.map'}"],
        libraries=libraries,
    )


engine_ggml = engine("ggml", ["jansson", "m"])
engines = [engine("onnx", []), engine_ggml]

BUILD.mkdir(parents=True, exist_ok=True)
setup(
    version=VERSION,
    ext_modules=[extension, *([] if SYSTEM_LIBRARY else engines)],
    cmdclass={"build_ext": BuildWithLibrary, "sdist": SourcesWithLibrary},
    options={
        "build": {"build_base": str(BUILD)},
        "egg_info": {"egg_base": str(BUILD)},
        **({"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE_ABI else {}),
    },
)
