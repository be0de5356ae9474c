# SPDX-License-Identifier: MIT
#
# Test programs for the kernel module: static, so that they run in any guest. Each is one
# file beside t.c unless said below. Those that measure instead of judging go to build/tests/bench.

KST     := tests/kselftest
KST_OUT := $(B)/tests/kselftest
KST_BENCH_OUT := $(B)/tests/bench

KST_BENCHES  := $(filter bench_%,$(basename $(notdir $(wildcard $(KST)/*.c))))
KST_PARTS    := t race fuzz_calls fuzz_system fuzz_input fuzz_cover
KST_PROGRAMS := $(filter-out $(KST_PARTS) $(KST_BENCHES),$(basename $(notdir $(wildcard $(KST)/*.c))))
KST_BINARIES := $(addprefix $(KST_OUT)/,$(KST_PROGRAMS)) $(addprefix $(KST_BENCH_OUT)/,$(KST_BENCHES))

kselftest: $(KST_BINARIES) ## Build the programs that test the module.

KST_NEEDS := $(KST)/t.c $(wildcard $(KST)/*.h tests/vm/peer/*.h) include/uapi/linux/tmesh.h
define KST_LINK
@mkdir -p $(@D)
$(SAY)$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) -static -pthread $(filter %.c,$^) $(KST_LIBS) -o $@
endef

# Further sources of some of them.
KST_FUZZ := $(addprefix $(KST)/,fuzz_calls.c fuzz_system.c fuzz_input.c fuzz_hand.h fuzz.h)
$(KST_OUT)/fuzz: $(KST_FUZZ) $(KST)/fuzz_cover.c
$(KST_OUT)/storm: $(KST_FUZZ)
$(KST_OUT)/races $(KST_OUT)/revoke_races: $(KST)/race.c
$(KST_OUT)/storm: KST_LIBS := -lm
# libnl's static library looks up names, which nothing here asks it to: what the linker says of that.
$(KST_OUT)/rdma: KST_LIBS := -Wl,--no-warnings -Wl,--start-group -libverbs -l:librxe-rdmav34.a -Wl,--end-group -lnl-route-3 -lnl-3

$(KST_OUT)/%: $(KST)/%.c $(KST_NEEDS) | $(call needs,libdrm/drm.h infiniband/verbs.h)
	$(KST_LINK)

$(KST_BENCH_OUT)/%: $(KST)/%.c $(KST_NEEDS) | $(call needs,libdrm/drm.h infiniband/verbs.h)
	$(KST_LINK)

.PHONY: kselftest
