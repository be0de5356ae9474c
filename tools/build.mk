# SPDX-License-Identifier: MIT
#
# tmeshctl, its completion, and the man pages of everything.

TOOLS_SRC := $(wildcard tools/*.c tools/bench/*.c)
TOOLS_OBJ := $(TOOLS_SRC:tools/%.c=$(B)/tools/%.o)
MAN_SRC   := $(wildcard docs/man/*.scd)
MAN_PAGES := $(MAN_SRC:docs/man/%.scd=$(B)/man/%)

tools: $(B)/tmeshctl $(MAN_PAGES) ## build tmeshctl and the man pages

$(B)/tools/%.o: tools/%.c tools/build.mk
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) -std=gnu11 $(shell pkg-config --cflags jansson) -MMD -MP -c -o $@ $<
-include $(TOOLS_OBJ:.o=.d)

# Against the static library, so that what was built runs from where it lies. Distributions
# take the shared one: TOOLS_LIB=build/libtmesh.so.
TOOLS_LIB ?= $(LIB_A)
$(B)/tmeshctl: $(TOOLS_OBJ) $(TOOLS_LIB)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(LIB_LIBS)

# The first line, which scdoc leaves out, tells formatters that there are tables.
$(B)/man/%: docs/man/%.scd tools/build.mk
	@mkdir -p $(@D)
	{ echo "'\\\" t"; scdoc < $<; } > $@

install-tools: tools
	$(INSTALL) -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(COMPLETIONS)
	$(INSTALL) -m 755 $(B)/tmeshctl $(DESTDIR)$(BINDIR)/
	$(INSTALL) -m 644 tools/completion/tmeshctl $(DESTDIR)$(COMPLETIONS)/
	for page in $(MAN_PAGES); do \
		$(INSTALL) -D -m 644 -t $(DESTDIR)$(MANDIR)/man$${page##*.} $$page || exit; \
	done

uninstall-tools:
	rm -f $(DESTDIR)$(BINDIR)/tmeshctl $(DESTDIR)$(COMPLETIONS)/tmeshctl
	for page in $(notdir $(MAN_PAGES)); do rm -f $(DESTDIR)$(MANDIR)/man$${page##*.}/$$page; done

.PHONY: tools install-tools uninstall-tools
