# SPDX-License-Identifier: MIT
#
# The C programs of tests/kselftest against the module, then what is left when they ended.
# Sourced by guest/init.

export TMESH_KO=/tmesh.ko # for the program that unloads and loads it

[ -e /fuzz.corpus ] && export TMESH_CORPUS=/fuzz.corpus
for device in /sys/bus/pci/devices/*; do
	# The memory that the host sees: ivshmem.
	if [ "$(cat $device/vendor $device/device)" = "$(printf '0x1af4\n0x1110')" ]; then
		export TMESH_BLACKBOX=$device/resource2
	fi
done

# Print which memory the disk sees: the IOMMU's view, or copies.
translated() { grep -q '^DMA' /sys/class/nvme/nvme0/device/iommu_group/type; }
copied() { [ "$(cat /sys/kernel/debug/swiotlb/io_tlb_used_hiwater)" -gt 0 ]; }

# The kernel for data races boots without looking for them.
[ -e /sys/kernel/debug/kcsan ] && check "KCSAN is on" sh -c "echo on >/sys/kernel/debug/kcsan"

check "module loads" insmod $TMESH_KO
check "the peer that exports and imports loads" insmod /peer.ko
for program in /tests/*; do
	run "${program##*/}" "$program"
done
if grep -q swiotlb=force /proc/cmdline; then
	check "the disk's DMA is copied" copied
else
	check "the disk's DMA is translated" translated
fi
check "module unloads" rmmod tmesh
check "module loads again" insmod $TMESH_KO
check "module unloads again" rmmod tmesh

# What GCOV counted. These files have no size before they are read.
for counts in $(find /sys/kernel/debug/gcov -name '*.gcda' 2>/dev/null); do
	cat "$counts" >"$TMESH_LEFT/${counts##*/}"
done
