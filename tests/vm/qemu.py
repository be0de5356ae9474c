# SPDX-License-Identifier: MIT
"""Boot a guest."""
import os
import shlex
import subprocess

# Software emulation, because the machines that run the checks have no usable KVM. Two memory nodes, an NVMe disk behind
# an IOMMU, and nothing else that is not needed. No cmpxchg16b: in QEMU 7.2 it can leave an operand in the flags. An
# interrupt at that moment returns with a wrong direction flag, and the kernel copies backwards, which shows after hours
# as a corrupt list in SLUB. No features that make the kernel and libc use `rep stosb` and `rep movsb`: the emulator
# handles these a byte at a time.
MACHINE = """
    qemu-system-x86_64 -accel tcg,thread=multi -M q35 -cpu max,-cx16,-erms,-fsrm -smp 2 -m 3G
    -nodefaults -no-user-config -display none -no-reboot
    -object memory-backend-ram,id=near,size=1536M -numa node,memdev=near,cpus=0-1
    -object memory-backend-ram,id=far,size=1536M -numa node,memdev=far
    -device intel-iommu -device virtio-rng-pci
""".split()

# init_on_alloc=0: memory is not zeroed by default, so that a missing __GFP_ZERO shows. no_timer_check: on a busy host
# the emulated timer is so late that the kernel would take it for broken and panic. tsc=reliable: leaving this clock
# patches code that the other CPU runs, and the emulator does not always survive that. mitigations=off: they cost a
# third of the time, and an emulated processor does not speculate. Longer limits for the watchdogs: this machine is
# dozens of times slower than they assume. They still report a real hang, only later.
COMMAND_LINE = ("console=ttyS0 loglevel=8 panic=-1 oops=panic kasan_multi_shot rdinit=/init "
                "intel_iommu=on random.trust_cpu=on init_on_alloc=0 no_timer_check "
                "tsc=reliable mitigations=off "
                "rcupdate.rcu_cpu_stall_timeout=300 watchdog_thresh=60 sysctl.kernel.hung_task_timeout_secs=600")


# A balloon that takes memory from the guest. The guest's /dev/vportNp1 is QEMU's monitor, which changes its size.
BALLOON = """
    -device virtio-balloon-pci
    -chardev socket,id=monitor,path={logs}/monitor,server=on,wait=off -mon chardev=monitor,mode=readline
    -chardev socket,id=to-monitor,path={logs}/monitor
    -device virtio-serial-pci -device virtserialport,chardev=to-monitor
"""


def boot(kernel, initramfs, *, logs, arguments, disks=(), shares=(), balloon=False, restarts=False, timeout):
    """Run the guest to its end. Return None, or the reason if it was killed.

    arguments: more words for the kernel's command line; NAME=VALUE reaches init's environment.
    disks: (image, driver) pairs; writes by the guest are discarded.
    shares: (folder, tag) pairs, which the guest mounts by 9p; its writes there stay.
    balloon: the guest has BALLOON
    restarts: the guest may restart, and then finds its disks as it left them. Otherwise a restart is its end.
    """
    nvme = logs / "nvme.img"
    with open(nvme, "wb") as image:
        image.truncate(64 << 20)
    command = [*MACHINE, "-kernel", kernel.vmlinuz, "-initrd", initramfs,
               "-append", " ".join([COMMAND_LINE, *arguments]),
               "-serial", f"file:{logs}/console", "-serial", f"file:{logs}/results"]
    for number, (image, device) in enumerate([*disks, (nvme, "nvme,serial=tmesh")]):
        command += ["-drive", f"file={image},format=raw,snapshot=on,if=none,id=disk{number}",
                    "-device", f"{device},drive=disk{number}"]
    for folder, tag in shares:
        command += ["-fsdev", f"local,id={tag},path={folder},security_model=none",
                    "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
    blackbox = logs / "blackbox"
    with open(blackbox, "wb") as memory:
        memory.truncate(1 << 20)
    command += ["-object", f"memory-backend-file,id=blackbox,size=1M,share=on,mem-path={blackbox}",
                "-device", "ivshmem-plain,memdev=blackbox"]
    if balloon:
        command += BALLOON.format(logs=os.path.relpath(logs)).split()
    if restarts:
        command += ["-action", "reboot=reset"]
    # With TMESH_QEMU='-s -S' the guest waits for a debugger.
    command += shlex.split(os.environ.get("TMESH_QEMU", ""))
    for name in ("console", "results"):
        (logs / name).unlink(missing_ok=True)
    guest = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        output, _ = guest.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"did not end within {timeout} s"
    finally:
        guest.kill()
        guest.wait()
        nvme.unlink()
    return f"QEMU failed: {output.strip()}" if guest.returncode else None
