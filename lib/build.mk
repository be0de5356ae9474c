# SPDX-License-Identifier: MIT
#
# libtmesh as a shared and as a static library, and once more for the unit tests with
# the sanitizers. All three come from the same sources and flags.
#
# lib/common/ is what our libraries share: a library of another room links COMMON_OBJ into itself,
# and its sources include "common/..." by COMMON_CPPFLAGS.

LIB_SONAME := libtmesh.so.0
LIB_SO     := $(B)/libtmesh.so.$(VERSION)
LIB_A      := $(B)/libtmesh.a
LIB_ASAN   := $(B)/libtmesh-asan.a
LIB_TSAN   := $(B)/libtmesh-tsan.a

LIB_SRC := $(wildcard lib/*.c lib/common/*.c)
LIB_HEADERS := $(addprefix include/tmesh/,arena.h bundle.h channel.h context.h event.h fence.h gather.h hold.h import.h inspect.h keep.h lease.h \
		 region.h tensor.h tmesh.h)
# The library's calls of its own functions are its own: no way round by a table.
LIB_CFLAGS = -std=gnu11 -fPIC -fvisibility=hidden -fno-semantic-interposition -pthread \
	     $(shell pkg-config --cflags jansson)
LIB_LIBS   = $(shell pkg-config --libs jansson) -pthread
LIB_CPPFLAGS = $(CPPFLAGS) -DTMESH_VERSION='"$(VERSION)"' -DTMESH_KEEPER_PATH='"$(LIBEXECDIR)/tmesh-keeper"'

ASAN_FLAGS := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
TSAN_FLAGS := -fsanitize=thread -fno-omit-frame-pointer -Wno-tsan

lib: $(LIB_SO) $(LIB_A) $(B)/libtmesh.so ## [Build] Build libtmesh.

# lib_objects(variant, flags): one rule per variant, objects under build/lib-<variant>/
define lib_objects
LIB_OBJ_$(1) := $(LIB_SRC:lib/%.c=$(B)/lib-$(1)/%.o)
$(B)/lib-$(1)/%.o: lib/%.c lib/build.mk VERSION | $(call needs,jansson.h pkg-config)
	@mkdir -p $$(@D)
	$$(SAY)$$(CC) $$(LIB_CPPFLAGS) $$(CFLAGS) $$(WARN) $$(LIB_CFLAGS) $(2) -MMD -MP -c -o $$@ $$<
-include $(LIB_SRC:lib/%.c=$(B)/lib-$(1)/%.d)
endef
$(eval $(call lib_objects,plain,))
$(eval $(call lib_objects,asan,$(ASAN_FLAGS)))
$(eval $(call lib_objects,tsan,$(TSAN_FLAGS)))

include lib/keeper/build.mk lib/mount/build.mk

COMMON_OBJ      := $(filter $(B)/lib-plain/common/%,$(LIB_OBJ_plain))
COMMON_CPPFLAGS := -iquote lib

$(LIB_SO): $(LIB_OBJ_plain) lib/libtmesh.map
	$(SAY)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,$(LIB_SONAME) -Wl,-z,defs -Wl,-z,nodelete \
		-Wl,-Bsymbolic-functions -Wl,--version-script=lib/libtmesh.map -o $@ $(LIB_OBJ_plain) $(LIB_LIBS)

$(B)/libtmesh.so: $(LIB_SO)
	@ln -sf $(notdir $(LIB_SO)) $(B)/$(LIB_SONAME)
	@ln -sf $(LIB_SONAME) $@

$(LIB_A): $(LIB_OBJ_plain)
$(LIB_ASAN): $(LIB_OBJ_asan)
$(LIB_TSAN): $(LIB_OBJ_tsan)
$(LIB_A) $(LIB_ASAN) $(LIB_TSAN):
	@rm -f $@
	$(SAY)$(AR) rcs $@ $^

# The headers that each library installs: together they are all of include/tmesh/.
define install_headers
	$(INSTALL) -d $(DESTDIR)$(INCLUDEDIR)/tmesh
	$(INSTALL) -m 644 $(1) $(DESTDIR)$(INCLUDEDIR)/tmesh/
endef
define uninstall_headers
	rm -f $(addprefix $(DESTDIR)$(INCLUDEDIR)/tmesh/,$(notdir $(1)))
	[ ! -d $(DESTDIR)$(INCLUDEDIR)/tmesh ] || rmdir --ignore-fail-on-non-empty $(DESTDIR)$(INCLUDEDIR)/tmesh
endef

install-lib: lib
	$(INSTALL) -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(INCLUDEDIR)/linux
	$(INSTALL) -m 755 $(LIB_SO) $(DESTDIR)$(LIBDIR)/
	ln -sf $(notdir $(LIB_SO)) $(DESTDIR)$(LIBDIR)/$(LIB_SONAME)
	ln -sf $(LIB_SONAME) $(DESTDIR)$(LIBDIR)/libtmesh.so
	$(INSTALL) -m 644 $(LIB_A) $(DESTDIR)$(LIBDIR)/
	sed -e 's|@prefix@|$(PREFIX)|' -e 's|@libdir@|$(LIBDIR)|' \
		-e 's|@includedir@|$(INCLUDEDIR)|' -e 's|@version@|$(VERSION)|' \
		lib/libtmesh.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/libtmesh.pc
	$(call install_headers,$(LIB_HEADERS))
	$(INSTALL) -m 644 include/uapi/linux/tmesh.h $(DESTDIR)$(INCLUDEDIR)/linux/

uninstall-lib:
	rm -f $(addprefix $(DESTDIR)$(LIBDIR)/,$(notdir $(LIB_SO)) $(LIB_SONAME) libtmesh.so \
		libtmesh.a pkgconfig/libtmesh.pc)
	rm -f $(DESTDIR)$(INCLUDEDIR)/linux/tmesh.h
	$(call uninstall_headers,$(LIB_HEADERS))

.PHONY: lib install-lib uninstall-lib
