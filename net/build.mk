# SPDX-License-Identifier: MIT
#
# libtmesh-net: bytes between machines by libfabric, on libtmesh's public face alone; and tmesh-net, the
# program that does it for others. Where libfabric-dev is not installed `make` leaves both out, and nothing else
# misses them; `make net` says what is missing.

NET        := net
NET_SONAME := libtmesh-net.so.0
NET_SO     := $(B)/libtmesh-net.so.$(VERSION)
NET_A      := $(B)/libtmesh-net.a
NET_SRC    := $(wildcard $(NET)/*.c)
NET_PORT_SRC := $(wildcard $(NET)/port/*.c)
NET_HEADERS := include/tmesh/net.h
NET_LIBS    = $(shell pkg-config --libs libfabric) -ljansson -pthread

# A look at the file: nothing may be asked of programs before `make deps` has installed them.
NET_BUILT := $(if $(wildcard /usr/include/rdma/fabric.h),net)

net: $(B)/libtmesh-net.so $(NET_A) $(B)/tmesh-net ## build libtmesh-net and tmesh-net

# net_objects(variant, flags): as lib_objects()
define net_objects
NET_OBJ_$(1) := $(NET_SRC:$(NET)/%.c=$(B)/net-$(1)/%.o)
NET_PORT_OBJ_$(1) := $(NET_PORT_SRC:$(NET)/%.c=$(B)/net-$(1)/%.o)
$(B)/net-$(1)/%.o: $(NET)/%.c $(NET)/build.mk
	@mkdir -p $$(@D)
	$$(CC) $$(CPPFLAGS) $$(COMMON_CPPFLAGS) $$(CFLAGS) $$(WARN) $$(LIB_CFLAGS) $(2) -MMD -MP -c -o $$@ $$<
-include $(NET_SRC:$(NET)/%.c=$(B)/net-$(1)/%.d) $(NET_PORT_SRC:$(NET)/%.c=$(B)/net-$(1)/%.d)
endef
$(eval $(call net_objects,plain,))
$(eval $(call net_objects,asan,$(ASAN_FLAGS)))
$(eval $(call net_objects,tsan,$(TSAN_FLAGS)))

$(NET_SO): $(NET_OBJ_plain) $(COMMON_OBJ) $(NET)/libtmesh-net.map $(B)/libtmesh.so
	$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,$(NET_SONAME) -Wl,-z,defs \
		-Wl,-Bsymbolic-functions -Wl,--version-script=$(NET)/libtmesh-net.map -o $@ \
		$(NET_OBJ_plain) $(COMMON_OBJ) -L$(B) -ltmesh $(NET_LIBS)

$(B)/libtmesh-net.so: $(NET_SO)
	ln -sf $(notdir $(NET_SO)) $(B)/$(NET_SONAME)
	ln -sf $(NET_SONAME) $@

# The static ones have nothing of lib/common/: libtmesh's archive, which they are linked with, has.
$(NET_A): $(NET_OBJ_plain)
$(B)/libtmesh-net-asan.a: $(NET_OBJ_asan)
$(B)/libtmesh-net-tsan.a: $(NET_OBJ_tsan)
$(NET_A) $(B)/libtmesh-net-asan.a $(B)/libtmesh-net-tsan.a:
	rm -f $@
	$(AR) rcs $@ $^

# Against the static libraries, as tmeshctl; distributions take the shared ones: TOOLS_LIB, NET_PORT_LIB.
NET_PORT_LIB ?= $(NET_A)
TOOLS_LIB ?= $(LIB_A)
$(B)/tmesh-net: $(NET_PORT_OBJ_plain) $(NET_PORT_LIB) $(TOOLS_LIB) $(COMMON_OBJ)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(NET_PORT_OBJ_plain) $(NET_PORT_LIB) \
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
