# SPDX-License-Identifier: MIT
#
# Kept regions from outside: the keeper under a stand-in for systemd and under a real one, tmeshctl's verbs, and the
# protocol as a small model under seeds.

KEEP_HASH := $(B)/tests/keep/kept_hash
KEEP_DEVICE := $(B)/tests/keep/kept_device

$(KEEP_HASH) $(KEEP_DEVICE): $(B)/%: %.c $(LIB_A)
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) $(COMMON_CPPFLAGS) $(CFLAGS) $(WARN) -std=gnu11 -pthread -o $@ $< $(LIB_A) $(LIB_LIBS)

KEEP_PRELOADS := $(addprefix $(B)/tests/keep/,late_signal.so short_memory.so other_kernel.so)

# They define poll() and ppoll() themselves: fortified headers would have them inline.
$(KEEP_PRELOADS): $(B)/%.so: %.c
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) -U_FORTIFY_SOURCE -std=gnu11 -shared -fPIC -o $@ $<

keep-check: tools keeper $(B)/tmesh-engine $(B)/tests/engine/engines/tmesh-engine-fake.so $(KEEP_HASH) $(KEEP_DEVICE) $(KEEP_PRELOADS) ## Test kept regions: a killed keeper, tmeshctl keep, a real systemd.
	@status=0; $(PYTHON) -B tests/sim/keep.py || status=1; \
	$(PYTHON) -B tests/keep/test_keep.py $(abspath $(B)) || status=1; \
	$(PYTHON) -B tests/keep/test_kexec.py $(abspath $(B)) || status=1; \
	$(PYTHON) -B tests/keep/test_systemd.py $(abspath $(B)) || status=1; exit $$status

.PHONY: keep-check
