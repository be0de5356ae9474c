# SPDX-License-Identifier: MIT
#
# libtmesh-xla, handlers for XLA's foreign function interface. Building it needs nothing of XLA.

XLA         := bindings/xla
XLA_SONAME  := libtmesh-xla.so.0
XLA_SO      := $(B)/libtmesh-xla.so.$(VERSION)
XLA_SRC     := $(addprefix $(XLA)/,bound.c call.c dtype.c frame.c register.c)
XLA_HEADERS := include/tmesh/xla.h

xla: $(B)/libtmesh-xla.so ## [Build] Build libtmesh-xla, by which JAX's programs send and receive tensors.

# xla_objects(variant, flags): as lib_objects()
define xla_objects
XLA_OBJ_$(1) := $(XLA_SRC:$(XLA)/%.c=$(B)/xla-$(1)/%.o)
$(B)/xla-$(1)/%.o: $(XLA)/%.c $(XLA)/build.mk
	@mkdir -p $$(@D)
	$$(SAY)$$(CC) $$(CPPFLAGS) $$(COMMON_CPPFLAGS) $$(CFLAGS) $$(WARN) $$(LIB_CFLAGS) $(2) -MMD -MP -c -o $$@ $$<
-include $(XLA_SRC:$(XLA)/%.c=$(B)/xla-$(1)/%.d)
endef
$(eval $(call xla_objects,plain,))
$(eval $(call xla_objects,asan,$(ASAN_FLAGS)))
$(eval $(call xla_objects,tsan,$(TSAN_FLAGS)))

$(XLA_SO): $(XLA_OBJ_plain) $(COMMON_OBJ) $(XLA)/libtmesh-xla.map $(B)/libtmesh.so
	$(SAY)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,$(XLA_SONAME) -Wl,-z,defs \
		-Wl,--version-script=$(XLA)/libtmesh-xla.map -o $@ $(XLA_OBJ_plain) $(COMMON_OBJ) \
		-L$(B) -ltmesh -pthread

# For the tests.
$(B)/libtmesh-xla-asan.a: $(XLA_OBJ_asan)
$(B)/libtmesh-xla-tsan.a: $(XLA_OBJ_tsan)
$(B)/libtmesh-xla-asan.a $(B)/libtmesh-xla-tsan.a:
	@rm -f $@
	$(SAY)$(AR) rcs $@ $^

$(B)/libtmesh-xla.so: $(XLA_SO)
	@ln -sf $(notdir $(XLA_SO)) $(B)/$(XLA_SONAME)
	@ln -sf $(XLA_SONAME) $@

install-xla: xla
	$(INSTALL) -d $(DESTDIR)$(LIBDIR)/pkgconfig
	$(call install_headers,$(XLA_HEADERS))
	$(INSTALL) -m 755 $(XLA_SO) $(DESTDIR)$(LIBDIR)/
	ln -sf $(notdir $(XLA_SO)) $(DESTDIR)$(LIBDIR)/$(XLA_SONAME)
	ln -sf $(XLA_SONAME) $(DESTDIR)$(LIBDIR)/libtmesh-xla.so
	sed -e 's|@prefix@|$(PREFIX)|' -e 's|@libdir@|$(LIBDIR)|' \
		-e 's|@includedir@|$(INCLUDEDIR)|' -e 's|@version@|$(VERSION)|' \
		$(XLA)/libtmesh-xla.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/libtmesh-xla.pc

uninstall-xla:
	$(call uninstall_headers,$(XLA_HEADERS))
	rm -f $(addprefix $(DESTDIR)$(LIBDIR)/,$(notdir $(XLA_SO)) $(XLA_SONAME) libtmesh-xla.so \
		pkgconfig/libtmesh-xla.pc)

.PHONY: xla install-xla uninstall-xla
