# SPDX-License-Identifier: MIT
#
# kbuild puts objects beside sources: the module is built from a copy, one for each kernel.

KDIR ?= /lib/modules/$(shell uname -r)/build
# The version in the module's stamp; Debian's kernel.release may be shorter.
KRELEASE = $(or $(shell sed -n 's/.*UTS_RELEASE "\(.*\)"/\1/p' \
		$(KDIR)/include/generated/utsrelease.h 2>/dev/null),$(shell uname -r))
KMOD_DIR = $(B)/kmod/$(KRELEASE)
# Arguments for kbuild, such as CC=gcc-14 or W=1.
KBUILD_ARGS ?=

kmod: ## [Build] Build tmesh.ko for the kernel in KDIR (default: the running one).
	@test -e $(KDIR)/Makefile || { echo "kmod: no kernel headers in $(KDIR): install" \
		"linux-headers-$(KRELEASE), or name another kernel's with KDIR=" >&2; exit 1; }
	@mkdir -p $(KMOD_DIR)/include
	@cp -a Kbuild kmod $(KMOD_DIR)/
	@cp -a include/uapi $(KMOD_DIR)/include/
	+$(MAKE) -C $(KDIR) M=$(abspath $(KMOD_DIR)) $(KBUILD_ARGS) modules

.PHONY: kmod
