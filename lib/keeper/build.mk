# SPDX-License-Identifier: MIT
#
# tmesh-keeper: the process that keeps memfd regions. It uses the library's own files for messages,
# so it is linked with the static library, and with address and undefined-behaviour sanitizers for
# tests.

LIBEXECDIR ?= $(PREFIX)/libexec
UNITDIR    ?= $(PREFIX)/lib/systemd/user
SYSTEMUNITDIR ?= $(PREFIX)/lib/systemd/system

KEEPER_SRC := $(wildcard lib/keeper/*.c)
KEEPER_DEP := $(KEEPER_SRC) $(wildcard lib/keeper/*.h lib/*.h lib/common/*.h)
KEEPER_CPPFLAGS := $(LIB_CPPFLAGS) -iquote lib -iquote lib/keeper

keeper: $(B)/tmesh-keeper ## [Build] Build tmesh-keeper, the program that keeps memory where there is no module.

KEEPER_OBJ := $(KEEPER_SRC:lib/keeper/%.c=$(B)/keeper/%.o)

$(B)/keeper/%.o: lib/keeper/%.c lib/keeper/build.mk | $(call needs,jansson.h xxhash.h pkg-config)
	@mkdir -p $(@D)
	$(SAY)$(CC) $(KEEPER_CPPFLAGS) $(CFLAGS) $(WARN) -std=gnu11 -MMD -MP -c -o $@ $<
-include $(KEEPER_OBJ:.o=.d)

$(B)/tmesh-keeper: $(KEEPER_OBJ) $(LIB_A)
	$(SAY)$(CC) $(CFLAGS) $(LDFLAGS) $(KEEPER_OBJ) $(LIB_A) $(LIB_LIBS) -o $@

$(B)/asan/tmesh-keeper: $(KEEPER_DEP) $(LIB_ASAN)
	@mkdir -p $(@D)
	$(SAY)$(CC) $(KEEPER_CPPFLAGS) $(CFLAGS) $(WARN) $(ASAN_FLAGS) -std=gnu11 $(KEEPER_SRC) $(LIB_ASAN) $(LIB_LIBS) -o $@

install-keeper: keeper
	$(INSTALL) -d $(DESTDIR)$(LIBEXECDIR) $(DESTDIR)$(UNITDIR) $(DESTDIR)$(SYSTEMUNITDIR)
	$(INSTALL) -m 755 $(B)/tmesh-keeper $(DESTDIR)$(LIBEXECDIR)/
	sed -e 's|@libexecdir@|$(LIBEXECDIR)|' packaging/systemd/tmesh-keeper.service.in \
		> $(DESTDIR)$(UNITDIR)/tmesh-keeper.service
	sed -e 's|@libexecdir@|$(LIBEXECDIR)|' packaging/systemd/system/tmesh-keeper.service.in \
		> $(DESTDIR)$(SYSTEMUNITDIR)/tmesh-keeper.service

uninstall-keeper:
	rm -f $(DESTDIR)$(LIBEXECDIR)/tmesh-keeper $(DESTDIR)$(UNITDIR)/tmesh-keeper.service \
		$(DESTDIR)$(SYSTEMUNITDIR)/tmesh-keeper.service

.PHONY: keeper install-keeper uninstall-keeper
