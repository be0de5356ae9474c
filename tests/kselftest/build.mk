# SPDX-License-Identifier: MIT
#
# Test programs for the kernel module: static, so that they run in any guest. Each is one
# file beside t.c. Those that measure instead of judging go to build/tests/bench.

KST     := tests/kselftest
KST_OUT := $(B)/tests/kselftest
KST_BENCH_OUT := $(B)/tests/bench

KST_BENCHES  := $(filter bench_%,$(basename $(notdir $(wildcard $(KST)/*.c))))
KST_PROGRAMS := $(filter-out t $(KST_BENCHES),$(basename $(notdir $(wildcard $(KST)/*.c))))
KST_BINARIES := $(addprefix $(KST_OUT)/,$(KST_PROGRAMS)) $(addprefix $(KST_BENCH_OUT)/,$(KST_BENCHES))

kselftest: $(KST_BINARIES) ## build the programs that test the kernel module

KST_NEEDS := $(KST)/t.c $(KST)/t.h $(KST)/drm.h $(KST)/v4l2.h include/uapi/linux/tmesh.h
define KST_LINK
@mkdir -p $(@D)
$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) -static -pthread $(filter %.c,$^) -o $@
endef

$(KST_OUT)/%: $(KST)/%.c $(KST_NEEDS)
	$(KST_LINK)

$(KST_BENCH_OUT)/%: $(KST)/%.c $(KST_NEEDS)
	$(KST_LINK)

.PHONY: kselftest
