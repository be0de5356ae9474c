# SPDX-License-Identifier: MIT
"""The extension, and with it all that runs without root: libraries, engines and programs. The repository's Makefile
builds these. Distributions, which have them in packages of their own, set TMESH_SYSTEM_LIBRARY=1.

The library is beside this package in the repository, and all products go to the repository's build/. A source distribution has
what it needs of the repository in its own folder "library".
"""

import os
from pathlib import Path
import re
import shlex
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

# The repository's Makefile has compiled everything. Link the extension and copy the engines.
BUILT = Path(os.environ["TMESH_BUILT"]) if "TMESH_BUILT" in os.environ else None

# The package is enough: it has the libraries, engines and programs, too.
WHOLE = not SYSTEM_LIBRARY and not BUILT

ENGINES = ("tmesh-engine-ggml.so", "tmesh-engine-onnx.so")
# The folder of licences of what is linked in, for a wheel that is given to others.
NOTICES = os.environ.get("TMESH_NOTICES")


class BuildWithLibrary(build_ext):
    """Build the library first, by the repository's Makefile."""

    def run(self):
        self.parts = BUILT
        super().run()

    def build_extension(self, ext):
        place = Path(self.get_ext_fullpath(ext.name)).parent
        place.mkdir(parents=True, exist_ok=True)
        if BUILT:
            self.link(ext)
        else:
            self.complain_of_what_is_missing(ext)
            if WHOLE:
                self.make(ext)
                ext.extra_objects = [*ext.extra_objects, *self.archives()]
            super().build_extension(ext)
        # Programs find each other, the libraries and the engines beside themselves.
        for name in () if SYSTEM_LIBRARY else ENGINES if BUILT else (self.parts / "python-parts").read_text().split():
            shutil.copy(self.parts / name, place / name)
        if NOTICES:
            shutil.copytree(NOTICES, place / "licenses", dirs_exist_ok=True)

    def archives(self):
        return [str(self.parts / f"libtmesh{name}.a") for name in ("-model", "-engine", "")]

    def make(self, ext):
        """Build what the package contains."""
        net = self.has(ext, "rdma/fabric.h")
        if not net:
            print("tmesh: built without tmesh-net and tmesh.fetcher, which need libfabric; on Debian and Ubuntu: "
                  "sudo apt install libfabric-dev", file=sys.stderr)
        self.parts = BUILD / "parts"
        environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
        flags = os.environ.get("LDFLAGS", "")
        done = subprocess.run(["make", "-s", "-C", ROOT, f"-j{os.cpu_count() or 1}", f"B={self.parts.relative_to(ROOT)}",
                               # The shared libtmesh has a name of its own, so that the system's libtmesh.so.0 in
                               # the same process never takes its place.
                               f"NET_BUILT={'net' if net else ''}", "LIB_SONAME=libtmesh-wheel.so.0",
                               rf"LDFLAGS={flags} -Wl,-rpath,\$$ORIGIN",
                               f"CC={os.environ.get('CC', 'cc')}", "python-parts"], env=environment)
        if done.returncode:
            raise SystemExit("tmesh cannot be compiled here: the messages of make above have the reason")

    def link(self, ext):
        objects = [BUILT / "python" / "obj" / f"{Path(source).stem}.o" for source in ext.sources]
        self.compiler.link_shared_object([*map(str, objects), *self.archives()], self.get_ext_fullpath(ext.name),
                                         libraries=ext.libraries, extra_postargs=ext.extra_link_args)

    def has(self, ext, header):
        folders = [f"-I{folder}" for folder in (*ext.include_dirs, *self.include_dirs)]
        return not subprocess.run([*self.compiler.compiler, *folders, "-E", "-x", "c", "-"], text=True,
                                  input=f"#include <{header}>\n", capture_output=True).returncode

    def complain_of_what_is_missing(self, ext):
        """Name all missing packages before a compiler or make fails for the first of them."""
        compiler = self.compiler.compiler
        headers = {"stdio.h": ("the C library's headers", "libc6-dev"), "Python.h": ("Python's headers", "python3-dev")}
        programs = {compiler[0]: ("a C compiler", "gcc")}
        if WHOLE:
            headers |= {"jansson.h": ("jansson, which reads and writes JSON", "libjansson-dev"),
                        "liburing.h": ("liburing, which reads files of tensors", "liburing-dev"),
                        "xxhash.h": ("xxHash, which checks them", "libxxhash-dev")}
            programs |= {"make": ("make", "make"), "pkg-config": ("pkg-config", "pkg-config")}
        missing = [what for program, what in programs.items() if not shutil.which(program)]
        without_compiler = not shutil.which(compiler[0])
        missing += [what for header, what in headers.items() if without_compiler or not self.has(ext, header)]
        if missing:
            raise SystemExit("tmesh cannot be compiled here. Missing, or not found by "
                             f"{compiler[0]}: {'; '.join(what for what, _ in missing)}.\n"
                             "On Debian and Ubuntu:\n\n"
                             f"    sudo apt install {' '.join(package for _, package in missing)}\n")

    def get_ext_filename(self, fullname):
        """By the name that every Python looks for; 3.15 would give it one that it alone knows."""
        return re.sub(r"\.abi3[^.]*\.so$", ".abi3.so", super().get_ext_filename(fullname))


class SourcesWithLibrary(sdist):
    """Files that setuptools does not know to belong to the package."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        self.put(HERE, HERE.glob("ext/*"), Path(base_dir))
        rooms = ("lib", "model", "engine", "net", "tools", "bindings/cuda", "bindings/xla")
        library = [ROOT / "VERSION", ROOT / "Makefile", HERE / "build.mk", *ROOT.glob("include/**/*.h"),
                   *(path for room in rooms for pattern in ("*.[ch]", "*.map", "build.mk") for path in ROOT.glob(f"{room}/**/{pattern}"))]
        self.put(ROOT, library, Path(base_dir, DISTRIBUTED.name))

    def put(self, top, files, target):
        for file in files:
            place = target / file.relative_to(top)
            self.mkpath(str(place.parent))
            self.copy_file(str(file), str(place))


extension = Extension(
    "tmesh._tmesh",
    sources=sorted(str(path.relative_to(HERE)) for path in HERE.glob("ext/*.c")),
    depends=[str(path) for path in (*HERE.glob("ext/*.h"), *ROOT.glob("lib/**/*.[ch]"), *ROOT.glob("model/*/*.[ch]"),
                                    *ROOT.glob("engine/**/*.[ch]"), *ROOT.glob("include/**/*.h"), ROOT / "VERSION")],
    include_dirs=[str(ROOT / "include"), str(ROOT / "include" / "uapi")],
    define_macros=[
        ("_GNU_SOURCE", None),
        ("TMESH_VERSION", f'"{VERSION}"'),
        *([("Py_LIMITED_API", "0x030B0000")] if STABLE_ABI else []),
    ],
    extra_compile_args=[f"-iquote{ROOT / 'lib'}", f"-iquote{ROOT / 'engine'}", "-std=gnu11", "-fvisibility=hidden",
                        "-pthread", "-Wall", "-Wextra", "-Wshadow", "-Wno-unused-parameter", "-Wno-missing-field-initializers",
                        "-Werror=incompatible-pointer-types"],  # as GCC 14 has it
    extra_link_args=["-pthread", f"-Wl,--version-script={HERE / 'ext' / '_tmesh.map'}",
                     *(["-Wl,-rpath,$ORIGIN"] if WHOLE else [])],
    libraries=["tmesh-model", "tmesh-engine", "tmesh"] if SYSTEM_LIBRARY else ["uring", "jansson"],
    py_limited_api=STABLE_ABI,
)

# For the Makefile: the flags that the extension's sources are compiled with.
if sys.argv[1:] == ["cflags"]:
    print(shlex.join([*(f"-D{name}" if value is None else f"-D{name}={value}" for name, value in extension.define_macros),
                      *(f"-I{folder}" for folder in (*extension.include_dirs, sysconfig.get_path("include"))),
                      *extension.extra_compile_args]))
    sys.exit()

BUILD.mkdir(parents=True, exist_ok=True)
setup(
    version=VERSION,
    ext_modules=[extension],
    # All are here: if pyproject.toml lists some, setuptools leaves these out. The system's package has programs of these
    # names already.
    entry_points={"vllm.general_plugins": ["tmesh = tmesh.vllm:register"],
                  "console_scripts": [f"{name} = tmesh.__main__:{name.replace('-', '_')}" for name in
                                      ("tmeshctl", "tmesh-engine", "tmesh-net")] if WHOLE else []},
    cmdclass={"build_ext": BuildWithLibrary, "sdist": SourcesWithLibrary},
    options={
        "build": {"build_base": str(BUILD)},
        "egg_info": {"egg_base": str(BUILD)},
        **({"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE_ABI else {}),
    },
)
