# SPDX-License-Identifier: MIT
"""One boot of a guest."""
import subprocess

# Software emulation: the machines that run the checks have no usable KVM. Two memory nodes,
# an NVMe disk behind an IOMMU, and nothing else that is not needed. No cmpxchg16b: QEMU 7.2's can
# leave an operand in the flags. An interrupt that comes then returns with the direction flag set
# from it, and the kernel copies backwards: seen, after hours, as a corrupt list of SLUB's. Nor the features that
# make a kernel and libc clear and copy memory by `rep stosb` and `rep movsb`: the emulator takes a byte at a time.
MACHINE = """
    qemu-system-x86_64 -accel tcg,thread=multi -M q35 -cpu max,-cx16,-erms,-fsrm -smp 2 -m 3G
    -nodefaults -no-user-config -display none -no-reboot
    -object memory-backend-ram,id=near,size=1536M -numa node,memdev=near,cpus=0-1
    -object memory-backend-ram,id=far,size=1536M -numa node,memdev=far
    -device intel-iommu -device virtio-rng-pci
""".split()

# Memory is not zeroed behind our back, so that a missing __GFP_ZERO shows. On a busy host the
# emulated timer is so late that the kernel takes it for broken, and panics: it is not to check. Nor
# is it to doubt the TSC: leaving that clock patches code that the other CPU runs, which the emulator
# does not always survive. What the kernel does against processors that speculate costs an emulated one, which does
# not, a third of its time. Nor are its own watchdogs, made for a machine that is dozens of times faster, to take the
# slowness of this one for a fault: what stands still for ever is told by them too, only later.
COMMAND_LINE = ("console=ttyS0 loglevel=8 panic=-1 oops=panic kasan_multi_shot rdinit=/init "
                "intel_iommu=on random.trust_cpu=on init_on_alloc=0 no_timer_check "
                "tsc=reliable mitigations=off "
                "rcupdate.rcu_cpu_stall_timeout=300 watchdog_thresh=60 sysctl.kernel.hung_task_timeout_secs=600")


def boot(kernel, initramfs, *, logs, arguments, disks=(), shares=(), timeout):
    """Run the guest to its end. Returns None, or why it was ended from outside.

    arguments: more words for the kernel's command line; NAME=VALUE reaches init's environment.
    disks: (image, driver) pairs; what the guest writes is thrown away.
    shares: (folder, tag) pairs, which the guest mounts by 9p; what it writes there stays.
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
