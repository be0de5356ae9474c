# SPDX-License-Identifier: MIT
"""tmesh-mount from outside: kills, namespaces, a container, fio, and a user's own mount."""
import errno
import hashlib
import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
import time

from mounts import FULL, Mount, OTHER, PROGRAM, a_model, as_user, errno_of, read
from test_keep import PATIENCE, StandIn, TOOL, tool


def test_service_killed(folder):
    """mappings outlive the service, which makes its mount anew"""
    model, files = a_model(folder)
    with Mount(folder) as mount:
        tool("keep", "--folder", model, "llama")
        path = mount.path("llama/weights.bin")
        with open(path, "rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
            if mount.way() != b"passthrough":
                assert mapping[:] == files["weights.bin"]  # in the page cache from here on
            small = os.open(mount.path("llama/config.json"), os.O_RDONLY)
            for _ in range(3):
                mount.end(signal.SIGKILL)
                assert errno_of(os.stat, path) == errno.ENOTCONN
                # As the manual page says of what the page cache has not.
                assert errno_of(os.pread, small, 1, 0) == errno.ENOTCONN
                mount.start()
                assert mapping[:] == files["weights.bin"] == read(path)
            os.close(small)


READER = """
import hashlib, mmap, os, sys
path, wanted = sys.argv[1:]
held = None
while True:
    try:
        with open(path, "rb") as file:
            data = file.read()
            mapped = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
    except OSError:
        continue
    except ValueError:
        continue
    if hashlib.sha256(data).hexdigest() != wanted:
        os._exit(3)
    print("read", flush=True)
    if sys.argv[0] and os.environ.get("HOLDS"):
        if held is not None and hashlib.sha256(held).hexdigest() != wanted:
            os._exit(4)
        held = mapped
"""


def test_kills(folder):
    """service, keeper and readers killed at random moments: each reader gets the file's bytes"""
    model, files = a_model(folder, large=400_000)
    wanted = hashlib.sha256(files["weights.bin"]).hexdigest()
    dice = random.Random(5)
    with Mount(folder) as mount:
        systemd = StandIn(folder)
        systemd.start()
        readers = []

        def read_on():
            environment = dict(os.environ)
            if mount.way() == b"passthrough":
                environment["HOLDS"] = "1"
            readers.append(subprocess.Popen([sys.executable, "-c", READER, mount.path("llama/weights.bin"), wanted],
                                            stdout=subprocess.PIPE, env=environment))

        try:
            tool("keep", "--folder", model, "llama")
            for _ in range(3):
                read_on()
            for number in range(300 if FULL else 10):
                what = number % 3
                if what == 0:
                    mount.end(signal.SIGKILL)
                    mount.start()
                elif what == 1:
                    systemd.end(signal.SIGKILL)
                    systemd.start()
                else:
                    victim = readers.pop(0)
                    victim.kill()
                    victim.wait()
                    read_on()
                time.sleep(dice.random() * 0.02)
                assert all(reader.poll() is None for reader in readers), [reader.poll() for reader in readers]
            for reader in readers:
                for _ in range(2):
                    assert reader.stdout.readline() == b"read\n"
        finally:
            for reader in readers:
                reader.kill()
                reader.wait()
            systemd.end()


def test_namespaces(folder):
    """another pid, mount, net, ipc and user namespace, a mapped uid, a read-only bind mount"""
    model, files = a_model(folder, large=100_000)
    inside = ('mount --bind "$1" "$2" && mount -o remount,bind,ro "$2" && cat "$2/0/open/config.json" '
              '&& sha256sum < "$2/0/open/weights.bin" && ls "$2" && ! cat "$2/0/closed/config.json" 2>/dev/null')
    with Mount(folder) as mount:
        tool("keep", "--mode", "0644", "--folder", model, "open")
        tool("keep", "--folder", model, "closed")
        place = os.path.join(folder, "container")
        os.makedirs(place)
        done = as_user(OTHER, "unshare", "--user", "--map-root-user", "--mount", "--pid", "--net", "--ipc", "--fork", "sh", "-c",
                       inside, "-", mount.place, place)
        if "Operation not permitted" in done.stderr and "unshare" in done.stderr:
            return "this machine has no user namespaces for users"
        assert done.returncode == 0, done
        assert done.stdout.startswith("{}" + hashlib.sha256(files["weights.bin"]).hexdigest()), done
        assert done.stdout.split()[-1] == "0"
    return None


CONTAINER = """
busybox sha256sum /run/tmesh/0/open/weights.bin && busybox cat /run/tmesh/0/open/config.json && busybox id -u
busybox cat /run/tmesh/0/closed/config.json 2>/dev/null || echo closed
busybox touch /x 2>/dev/null || busybox touch /run/tmesh/0/open/x 2>/dev/null || echo read-only
"""


def test_container(folder):
    """podman: a read-only container of another user without capabilities and network, with the tree bind-mounted"""
    if not shutil.which("podman") or not shutil.which("runc") or not shutil.which("busybox"):
        return "podman, runc and busybox-static are not all installed"
    model, files = a_model(folder, large=100_000)
    root = os.path.join(folder, "root")
    for name in "bin", "dev", "etc", "proc", "run/tmesh", "sys", "tmp":
        os.makedirs(os.path.join(root, name))
    shutil.copy(shutil.which("busybox"), os.path.join(root, "bin"))
    limits = [word for what in ("nofile", "nproc") for word in ("--ulimit", f"{what}=1024:1024")]
    with Mount(folder) as mount:
        tool("keep", "--mode", "0644", "--folder", model, "open")
        tool("keep", "--folder", model, "closed")
        done = subprocess.run(
            ["podman", "--root", os.path.join(folder, "store"), "--runroot", os.path.join(folder, "state"), "--storage-driver", "vfs",
             "--runtime", "runc", "--cgroup-manager", "cgroupfs", "run", "--rm", "--read-only", "--network", "none", "--cap-drop", "all",
             *limits, "--user", f"{OTHER}:{OTHER}", "-v", f"{mount.place}:/run/tmesh:ro", "--rootfs", root, "/bin/busybox", "sh", "-c",
             CONTAINER], capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done
        digest = hashlib.sha256(files["weights.bin"]).hexdigest()
        assert done.stdout == f"{digest}  /run/tmesh/0/open/weights.bin\n{{}}{OTHER}\nclosed\nread-only\n", done
    return None


def fio(path, engine, *words):
    return subprocess.run(["fio", "--name=x", f"--filename={path}", f"--ioengine={engine}", "--bs=4k", "--size=4m", "--verify=crc32c",
                           "--verify_fatal=1", "--verify_state_save=0", "--random_generator=tausworthe64", "--output-format=terse", *words],
                          capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_fio(folder):
    """fio: each block has its checksum, by read, mmap, splice, libaio and io_uring, in order and at random"""
    if not shutil.which("fio"):
        return "fio is not installed"
    model = os.path.join(folder, "blocks")
    os.makedirs(model)
    done = fio(os.path.join(model, "good"), "psync", "--rw=write", "--do_verify=0")
    assert done.returncode == 0, done
    data = bytearray(read(os.path.join(model, "good")))
    data[len(data) // 2] ^= 1
    with open(os.path.join(model, "bad"), "wb") as file:
        file.write(data)
    with Mount(folder) as mount:
        tool("keep", "--folder", model, "blocks")
        for engine in "psync", "mmap", "splice", "libaio", "io_uring":
            for order in "read", "randread":
                done = fio(mount.path("blocks/good"), engine, "--readonly", f"--rw={order}")
                assert done.returncode == 0, (engine, order, done)
            assert fio(mount.path("blocks/bad"), engine, "--readonly", "--rw=read").returncode != 0, engine
    return None


OWN = r"""
cd "$1"; export TMESH_RUNTIME_DIR="$1/run" TMESH_MOUNT="$1/tree"; program="$2" tool="$3"
mkdir tree m && echo hello > m/f
wait_for() { i=0; until mountpoint -q tree; do i=$((i + 1)); [ $i -lt 6000 ] || exit 9; sleep 0.01; done; }
"$program" tree 2> said & service=$!
wait_for
"$tool" keep --folder m n && cat tree/*/n/f && cat said
kill -9 $service; wait $service
"$program" tree 2> /dev/null & service=$!
i=0; until cat tree/*/n/f 2>/dev/null; do i=$((i + 1)); [ $i -lt 6000 ] || exit 8; sleep 0.01; done
kill $service; wait $service
mountpoint -q tree && exit 7
"$tool" drop n; exit 0
"""


def test_own_mount(folder):
    """a user's own mount, by fusermount3: it serves that user, is made anew after a kill, and goes with its end"""
    if not shutil.which("fusermount3"):
        return "fusermount3 is not installed"
    if len(PROGRAM) > 1:
        return "a program of another root has no fusermount3"
    own = os.path.join(folder, "own")
    os.makedirs(own)
    os.chown(own, OTHER, OTHER)
    os.chmod(folder, 0o755)
    script = os.path.join(folder, "script")
    with open(script, "w", encoding="ascii") as file:
        file.write(OWN)
    os.chmod(script, 0o755)
    # A device that users may open, as udev makes it; here in a mount namespace.
    outside = ('mount --make-rprivate / && mknod -m 666 "$1" c 10 229 && mount --bind "$1" /dev/fuse && '
               f'exec setpriv --reuid {OTHER} --regid {OTHER} --clear-groups sh "$2" "$3" "$4" "$5"')
    done = subprocess.run(["unshare", "--mount", "sh", "-c", outside, "-", os.path.join(folder, "fuse"), script, own, PROGRAM[0], TOOL],
                          capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done
    assert done.stdout.count("hello") == 2 and "user_allow_other" in done.stdout, done
    assert f"{own}/tree/{OTHER}/n" in done.stdout
    return None


TESTS = [test_service_killed, test_kills, test_namespaces, test_container, test_fio, test_own_mount]
