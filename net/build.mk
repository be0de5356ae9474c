# SPDX-License-Identifier: MIT
#
# libtmesh-net: bytes between machines by libfabric, on libtmesh's public API alone; and tmesh-net, the program
# that does it for other programs. Without libfabric-dev `make` leaves both out, and no other part needs them.
# `make net` then lists the missing packages.

NET        := net
NET_SONAME := libtmesh-net.so.0
NET_SO     := $(B)/libtmesh-net.so.$(VERSION)
NET_A      := $(B)/libtmesh-net.a
NET_SRC    := $(wildcard $(NET)/*.c)
NET_PORT_SRC := $(wildcard $(NET)/port/*.c)
NET_HEADERS := include/tmesh/net.h
NET_LIBS    = $(shell pkg-config --libs libfabric) -ljansson -pthread

# This looks at the file alone: no program may be needed before `make deps` has installed it.
NET_BUILT := $(if $(wildcard /usr/include/rdma/fabric.h),net)

net: $(B)/libtmesh-net.so $(NET_A) $(B)/tmesh-net ## [Build] Build libtmesh-net and tmesh-net.

# net_objects(variant, flags): as lib_objects()
define net_objects
NET_OBJ_$(1) := $(NET_SRC:$(NET)/%.c=$(B)/net-$(1)/%.o)
NET_PORT_OBJ_$(1) := $(NET_PORT_SRC:$(NET)/%.c=$(B)/net-$(1)/%.o)
$(B)/net-$(1)/%.o: $(NET)/%.c $(NET)/build.mk | $(call needs,rdma/fabric.h jansson.h xxhash.h pkg-config)
	@mkdir -p $$(@D)
	$$(SAY)$$(CC) $$(CPPFLAGS) $$(COMMON_CPPFLAGS) $$(CFLAGS) $$(WARN) $$(LIB_CFLAGS) $(2) -MMD -MP -c -o $$@ $$<
-include $(NET_SRC:$(NET)/%.c=$(B)/net-$(1)/%.d) $(NET_PORT_SRC:$(NET)/%.c=$(B)/net-$(1)/%.d)
endef
$(eval $(call net_objects,plain,))
$(eval $(call net_objects,asan,$(ASAN_FLAGS)))
$(eval $(call net_objects,tsan,$(TSAN_FLAGS)))

$(NET_SO): $(NET_OBJ_plain) $(COMMON_OBJ) $(NET)/libtmesh-net.map $(B)/libtmesh.so
	$(SAY)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,$(NET_SONAME) -Wl,-z,defs \
		-Wl,-Bsymbolic-functions -Wl,--version-script=$(NET)/libtmesh-net.map -o $@ \
		$(NET_OBJ_plain) $(COMMON_OBJ) -L$(B) -ltmesh $(NET_LIBS)

$(B)/libtmesh-net.so: $(NET_SO)
	@ln -sf $(notdir $(NET_SO)) $(B)/$(NET_SONAME)
	@ln -sf $(NET_SONAME) $@

# The static libraries leave out lib/common/, which is in libtmesh's archive: programs link both.
$(NET_A): $(NET_OBJ_plain)
$(B)/libtmesh-net-asan.a: $(NET_OBJ_asan)
$(B)/libtmesh-net-tsan.a: $(NET_OBJ_tsan)
$(NET_A) $(B)/libtmesh-net-asan.a $(B)/libtmesh-net-tsan.a:
	@rm -f $@
	$(SAY)$(AR) rcs $@ $^

# Link the static libraries, like tmeshctl. Distributions take the shared ones: TOOLS_LIB, NET_PORT_LIB.
NET_PORT_LIB ?= $(NET_A)
TOOLS_LIB ?= $(LIB_A)
$(B)/tmesh-net: $(NET_PORT_OBJ_plain) $(NET_PORT_LIB) $(TOOLS_LIB) $(COMMON_OBJ)
	$(SAY)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(NET_PORT_OBJ_plain) $(NET_PORT_LIB) \
		$(if $(filter %.so,$(TOOLS_LIB)),$(COMMON_OBJ)) $(TOOLS_LIB) $(LIB_LIBS) $(NET_LIBS)

install-net: net
	$(INSTALL) -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(BINDIR)
	$(INSTALL) -m 755 $(NET_SO) $(DESTDIR)$(LIBDIR)/
	ln -sf $(notdir $(NET_SO)) $(DESTDIR)$(LIBDIR)/$(NET_SONAME)
	ln -sf $(NET_SONAME) $(DESTDIR)$(LIBDIR)/libtmesh-net.so
	$(INSTALL) -m 644 $(NET_A) $(DESTDIR)$(LIBDIR)/
	$(INSTALL) -m 755 $(B)/tmesh-net $(DESTDIR)$(BINDIR)/
	sed -e 's|@prefix@|$(PREFIX)|' -e 's|@libdir@|$(LIBDIR)|' \
		-e 's|@includedir@|$(INCLUDEDIR)|' -e 's|@version@|$(VERSION)|' \
		$(NET)/libtmesh-net.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/libtmesh-net.pc
	$(call install_headers,$(NET_HEADERS))

uninstall-net:
	rm -f $(addprefix $(DESTDIR)$(LIBDIR)/,$(notdir $(NET_SO)) $(NET_SONAME) libtmesh-net.so \
		libtmesh-net.a pkgconfig/libtmesh-net.pc) $(DESTDIR)$(BINDIR)/tmesh-net
	$(call uninstall_headers,$(NET_HEADERS))

.PHONY: net install-net uninstall-net
