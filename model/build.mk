# SPDX-License-Identifier: MIT
#
# libtmesh-model: model/files, model/slots, model/pages, and model/shared for all three. One library on
# libtmesh alone. Every file of the room is in it.

MODEL        := model
MODEL_SONAME := libtmesh-model.so.0
MODEL_SO     := $(B)/libtmesh-model.so.$(VERSION)
MODEL_A      := $(B)/libtmesh-model.a
MODEL_SRC    := $(wildcard $(MODEL)/*/*.c)
MODEL_HEADERS := include/tmesh/model.h include/tmesh/pages.h include/tmesh/page_table.h include/tmesh/slot.h
MODEL_LIBS    = $(shell pkg-config --libs jansson liburing) -pthread

model: $(B)/libtmesh-model.so $(MODEL_A) ## [Build] Build libtmesh-model: model files, slots and pages.

# model_objects(variant, flags): as lib_objects()
define model_objects
MODEL_OBJ_$(1) := $(MODEL_SRC:$(MODEL)/%.c=$(B)/model-$(1)/%.o)
$(B)/model-$(1)/%.o: $(MODEL)/%.c $(MODEL)/build.mk | $(call needs,jansson.h liburing.h xxhash.h pkg-config)
	@mkdir -p $$(@D)
	$$(SAY)$$(CC) $$(CPPFLAGS) $$(COMMON_CPPFLAGS) $$(CFLAGS) $$(WARN) $$(LIB_CFLAGS) $(2) -MMD -MP -c -o $$@ $$<
-include $(MODEL_SRC:$(MODEL)/%.c=$(B)/model-$(1)/%.d)
endef
$(eval $(call model_objects,plain,))
$(eval $(call model_objects,asan,$(ASAN_FLAGS)))
$(eval $(call model_objects,tsan,$(TSAN_FLAGS)))

$(MODEL_SO): $(MODEL_OBJ_plain) $(COMMON_OBJ) $(MODEL)/libtmesh-model.map $(B)/libtmesh.so
	$(SAY)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,$(MODEL_SONAME) -Wl,-z,defs \
		-Wl,-Bsymbolic-functions -Wl,--version-script=$(MODEL)/libtmesh-model.map -o $@ \
		$(MODEL_OBJ_plain) $(COMMON_OBJ) -L$(B) -ltmesh $(MODEL_LIBS)

$(B)/libtmesh-model.so: $(MODEL_SO)
	@ln -sf $(notdir $(MODEL_SO)) $(B)/$(MODEL_SONAME)
	@ln -sf $(MODEL_SONAME) $@

# The static ones have nothing of lib/common/: libtmesh's archive, which they are linked with, has.
$(MODEL_A): $(MODEL_OBJ_plain)
$(B)/libtmesh-model-asan.a: $(MODEL_OBJ_asan)
$(B)/libtmesh-model-tsan.a: $(MODEL_OBJ_tsan)
$(MODEL_A) $(B)/libtmesh-model-asan.a $(B)/libtmesh-model-tsan.a:
	@rm -f $@
	$(SAY)$(AR) rcs $@ $^

install-model: model
	$(INSTALL) -d $(DESTDIR)$(LIBDIR)/pkgconfig
	$(INSTALL) -m 755 $(MODEL_SO) $(DESTDIR)$(LIBDIR)/
	ln -sf $(notdir $(MODEL_SO)) $(DESTDIR)$(LIBDIR)/$(MODEL_SONAME)
	ln -sf $(MODEL_SONAME) $(DESTDIR)$(LIBDIR)/libtmesh-model.so
	$(INSTALL) -m 644 $(MODEL_A) $(DESTDIR)$(LIBDIR)/
	sed -e 's|@prefix@|$(PREFIX)|' -e 's|@libdir@|$(LIBDIR)|' \
		-e 's|@includedir@|$(INCLUDEDIR)|' -e 's|@version@|$(VERSION)|' \
		$(MODEL)/libtmesh-model.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/libtmesh-model.pc
	$(call install_headers,$(MODEL_HEADERS))

uninstall-model:
	rm -f $(addprefix $(DESTDIR)$(LIBDIR)/,$(notdir $(MODEL_SO)) $(MODEL_SONAME) libtmesh-model.so \
		libtmesh-model.a pkgconfig/libtmesh-model.pc)
	$(call uninstall_headers,$(MODEL_HEADERS))

.PHONY: model install-model uninstall-model

# tmeshctl's verbs of this room: programs of their own, with the tools' helpers in them.
MODEL_TOOLS     := $(B)/tmeshctl-load $(B)/tmeshctl-model
MODEL_TOOLS_OBJ := $(addprefix $(B)/tools/,model/model_args.o options.o text.o target.o progress.o hold.o)
MODEL_TOOLS_LIB ?= $(MODEL_A)

tools: $(MODEL_TOOLS)
-include $(wildcard $(B)/tools/model/*.d)
$(MODEL_TOOLS): $(B)/tmeshctl-%: $(B)/tools/model/%.o $(MODEL_TOOLS_OBJ) $(MODEL_TOOLS_LIB) $(LIB_A)
	$(SAY)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $< $(MODEL_TOOLS_OBJ) $(MODEL_TOOLS_LIB) $(or $(TOOLS_LIB),$(LIB_A)) $(MODEL_LIBS)

install-tools: install-model-tools
install-model-tools: $(MODEL_TOOLS)
	$(INSTALL) -d $(DESTDIR)$(BINDIR)
	$(INSTALL) -m 755 $(MODEL_TOOLS) $(DESTDIR)$(BINDIR)/

uninstall-tools: uninstall-model-tools
uninstall-model-tools:
	rm -f $(addprefix $(DESTDIR)$(BINDIR)/,$(notdir $(MODEL_TOOLS)))

.PHONY: install-model-tools uninstall-model-tools
