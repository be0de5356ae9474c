# SPDX-License-Identifier: MIT
#
# tmeshctl, its completion, and the man pages of everything.

TOOLS_SRC := $(wildcard tools/*.c)
TOOLS_OBJ := $(TOOLS_SRC:tools/%.c=$(B)/tools/%.o)
MAN       := $(B)/man
DATADIR   ?= $(PREFIX)/share/tmesh
MAN_PAGES := $(foreach s,1 3 4 5 8,$(patsubst docs/man/%.$s.scd,$(MAN)/man$s/%.$s,$(wildcard docs/man/*.$s.scd)))

tools: $(B)/tmeshctl $(MAN_PAGES) ## [Build] Build tmeshctl and the man pages.

$(B)/tools/%.o: tools/%.c tools/build.mk | $(call needs,jansson.h pkg-config)
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) $(COMMON_CPPFLAGS) $(CFLAGS) $(WARN) -std=gnu11 $(shell pkg-config --cflags jansson) -MMD -MP -c -o $@ $<
-include $(TOOLS_OBJ:.o=.d)

# Link the static library, so that the program runs from the build folder. Distributions take the shared one:
# TOOLS_LIB=build/libtmesh.so. That one hides its copy of lib/common/, so the program brings its own.
TOOLS_LIB ?= $(LIB_A)
tmeshctl_with = $(TOOLS_OBJ) $(if $(filter %.so,$(1)),$(COMMON_OBJ)) $(1)
$(B)/tmeshctl: $(call tmeshctl_with,$(TOOLS_LIB))
	$(SAY)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(LIB_LIBS)

# A page of calls has their declarations from the headers. scdoc does not write the first line, which announces tables
# to formatters. Each page also gets a link for every name that it documents, so that man(1) finds each call:
# `man -M build/man tmesh_region_seal`.
define MAN_PAGE
@mkdir -p $(@D)
$(SAY)awk -f docs/man/synopsis.awk $< > $@.scd && { echo "'\\\" t"; scdoc < $@.scd; } > $@ && rm $@.scd
@find $(@D) -ignore_readdir_race -lname $(@F) -delete
@for name in $$(sed -n '/^# NAME$$/{n;n;s/ - .*//;s/,//g;p}' $<); do \
	[ $$name$(suffix $@) = $(@F) ] || ln -sf $(@F) $(@D)/$$name$(suffix $@) || exit; \
done
endef
$(foreach s,1 3 4 5 8,$(eval $(MAN)/man$s/%.$s: docs/man/%.$s.scd docs/man/synopsis.awk tools/build.mk | $$(call needs,scdoc); $$(MAN_PAGE)))
$(filter $(MAN)/man3/%,$(MAN_PAGES)): $(wildcard include/tmesh/*.h)

# Leave out the pages of a library or program that this machine lacks the packages for.
MAN_INSTALLED = $(filter-out $(if $(NET_BUILT),,$(MAN)/man1/tmesh-net.1 $(MAN)/man3/tmesh_net.3) $(if $(MOUNT_BUILT),,$(MAN)/man8/tmesh-mount.8),$(MAN_PAGES))

install-tools: tools
	$(INSTALL) -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(COMPLETIONS)
	$(INSTALL) -m 755 $(B)/tmeshctl $(DESTDIR)$(BINDIR)/
	$(INSTALL) -m 644 tools/completion/tmeshctl $(DESTDIR)$(COMPLETIONS)/
	$(INSTALL) -d $(DESTDIR)$(SYSTEMUNITDIR) $(DESTDIR)$(DATADIR)/monitoring
	sed -e 's|@bindir@|$(BINDIR)|' packaging/systemd/tmesh-metrics.service.in > $(DESTDIR)$(SYSTEMUNITDIR)/tmesh-metrics.service
	$(INSTALL) -m 644 packaging/systemd/tmesh-metrics.timer packaging/systemd/run-tmesh.mount $(DESTDIR)$(SYSTEMUNITDIR)/
	$(INSTALL) -m 644 packaging/monitoring/* $(DESTDIR)$(DATADIR)/monitoring/
	for page in $(MAN_INSTALLED:$(MAN)/%=%); do \
		$(INSTALL) -D -m 644 $(MAN)/$$page $(DESTDIR)$(MANDIR)/$$page || exit; \
	done
	for link in $$(find $(MAN)/man3 -type l); do \
		[ ! -e $(DESTDIR)$(MANDIR)/man3/$$(readlink $$link) ] || cp -Pf $$link $(DESTDIR)$(MANDIR)/man3/ || exit; \
	done

uninstall-tools:
	rm -f $(DESTDIR)$(BINDIR)/tmeshctl $(DESTDIR)$(COMPLETIONS)/tmeshctl $(DESTDIR)$(SYSTEMUNITDIR)/tmesh-metrics.* \
		$(DESTDIR)$(SYSTEMUNITDIR)/run-tmesh.mount
	rm -rf $(DESTDIR)$(DATADIR)/monitoring
	for page in $(MAN_PAGES:$(MAN)/%=$(DESTDIR)$(MANDIR)/%); do \
		rm -f $$page; [ ! -d $${page%/*} ] || find $${page%/*} -lname $${page##*/} -delete; \
	done

.PHONY: tools install-tools uninstall-tools
