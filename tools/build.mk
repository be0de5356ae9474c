# SPDX-License-Identifier: MIT
#
# tmeshctl, its completion, and the man pages of everything.

TOOLS_SRC := $(wildcard tools/*.c)
TOOLS_OBJ := $(TOOLS_SRC:tools/%.c=$(B)/tools/%.o)
MAN       := $(B)/man
MAN_PAGES := $(foreach s,1 3 4,$(patsubst docs/man/%.$s.scd,$(MAN)/man$s/%.$s,$(wildcard docs/man/*.$s.scd)))

tools: $(B)/tmeshctl $(MAN_PAGES) ## build tmeshctl and the man pages

$(B)/tools/%.o: tools/%.c tools/build.mk
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(COMMON_CPPFLAGS) $(CFLAGS) $(WARN) -std=gnu11 $(shell pkg-config --cflags jansson) -MMD -MP -c -o $@ $<
-include $(TOOLS_OBJ:.o=.d)

# Against the static library, so that what was built runs from where it lies. Distributions
# take the shared one: TOOLS_LIB=build/libtmesh.so. That hides what it has of lib/common/.
TOOLS_LIB ?= $(LIB_A)
tmeshctl_with = $(TOOLS_OBJ) $(if $(filter %.so,$(1)),$(COMMON_OBJ)) $(1)
$(B)/tmeshctl: $(call tmeshctl_with,$(TOOLS_LIB))
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(LIB_LIBS)

# The first line, which scdoc leaves out, tells formatters that there are tables. A page goes by every
# name that it has, so that man(1) finds each call: `man -M build/man tmesh_region_seal`.
define MAN_PAGE
@mkdir -p $(@D)
{ echo "'\\\" t"; scdoc < $<; } > $@
@find $(@D) -ignore_readdir_race -lname $(@F) -delete
@for name in $$(sed -n '/^# NAME$$/{n;n;s/ - .*//;s/,//g;p}' $<); do \
	[ $$name$(suffix $@) = $(@F) ] || ln -s $(@F) $(@D)/$$name$(suffix $@) || exit; \
done
endef
$(foreach s,1 3 4,$(eval $(MAN)/man$s/%.$s: docs/man/%.$s.scd tools/build.mk; $$(MAN_PAGE)))

install-tools: tools
	$(INSTALL) -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(COMPLETIONS)
	$(INSTALL) -m 755 $(B)/tmeshctl $(DESTDIR)$(BINDIR)/
	$(INSTALL) -m 644 tools/completion/tmeshctl $(DESTDIR)$(COMPLETIONS)/
	for page in $(MAN_PAGES:$(MAN)/%=%); do \
		$(INSTALL) -D -m 644 $(MAN)/$$page $(DESTDIR)$(MANDIR)/$$page || exit; \
	done
	cp -Pf $$(find $(MAN)/man3 -type l) $(DESTDIR)$(MANDIR)/man3/

uninstall-tools:
	rm -f $(DESTDIR)$(BINDIR)/tmeshctl $(DESTDIR)$(COMPLETIONS)/tmeshctl
	for page in $(MAN_PAGES:$(MAN)/%=$(DESTDIR)$(MANDIR)/%); do \
		rm -f $$page; [ ! -d $${page%/*} ] || find $${page%/*} -lname $${page##*/} -delete; \
	done

.PHONY: tools install-tools uninstall-tools
