# SPDX-License-Identifier: MIT
#
# libtmesh-engine: graphs on shared tensors, on libtmesh's public API alone; and the engines, which are plug-ins
# that it loads. Each plug-in has a folder here and links nothing of libtmesh except lib/common/.

ENGINE        := engine
ENGINE_SONAME := libtmesh-engine.so.0
ENGINE_SO     := $(B)/libtmesh-engine.so.$(VERSION)
ENGINE_A      := $(B)/libtmesh-engine.a
ENGINE_SRC    := $(wildcard $(ENGINE)/*.c)
ENGINE_HEADERS := include/tmesh/engine.h include/tmesh/graph.h include/tmesh/placement.h
ENGINE_CPPFLAGS = $(COMMON_CPPFLAGS) -iquote $(ENGINE) -DTMESH_ENGINE_DIR='"$(ENGINE_PLUGIN_DIR)"'

ENGINE_ONNX     := $(B)/tmesh-engine-onnx.so
ENGINE_ONNX_SRC := $(wildcard $(ENGINE)/onnx/*.c)
ENGINE_GGML     := $(B)/tmesh-engine-ggml.so
ENGINE_GGML_SRC := $(wildcard $(ENGINE)/ggml/*.c)
ENGINE_PLUGINS  := $(ENGINE_ONNX) $(ENGINE_GGML)
ENGINE_PLUGIN_DIR = $(LIBDIR)/tmesh

# The program that serves an engine. Code that it shares with its clients is linked into both.
ENGINE_PROCESS     := $(B)/tmesh-engine
ENGINE_PROCESS_SRC := $(wildcard $(ENGINE)/process/*.c)

engine: $(B)/libtmesh-engine.so $(ENGINE_A) $(ENGINE_PLUGINS) $(ENGINE_PROCESS) ## [Build] Build libtmesh-engine, the engines and tmesh-engine.

# engine_objects(variant, flags): as lib_objects()
define engine_objects
ENGINE_OBJ_$(1) := $(ENGINE_SRC:$(ENGINE)/%.c=$(B)/engine-$(1)/%.o)
ENGINE_ONNX_OBJ_$(1) := $(ENGINE_ONNX_SRC:$(ENGINE)/%.c=$(B)/engine-$(1)/%.o)
ENGINE_PROCESS_OBJ_$(1) := $(ENGINE_PROCESS_SRC:$(ENGINE)/%.c=$(B)/engine-$(1)/%.o)
ENGINE_GGML_OBJ_$(1) := $(ENGINE_GGML_SRC:$(ENGINE)/%.c=$(B)/engine-$(1)/%.o)
$(B)/engine-$(1)/%.o: $(ENGINE)/%.c $(ENGINE)/build.mk | $(call needs,jansson.h pkg-config)
	@mkdir -p $$(@D)
	$$(SAY)$$(CC) $$(CPPFLAGS) $$(ENGINE_CPPFLAGS) $$(CFLAGS) $$(WARN) $$(LIB_CFLAGS) $(2) -MMD -MP -c -o $$@ $$<
-include $(ENGINE_PROCESS_SRC:$(ENGINE)/%.c=$(B)/engine-$(1)/%.d)
-include $(ENGINE_SRC:$(ENGINE)/%.c=$(B)/engine-$(1)/%.d) $(ENGINE_ONNX_SRC:$(ENGINE)/%.c=$(B)/engine-$(1)/%.d)
-include $(ENGINE_GGML_SRC:$(ENGINE)/%.c=$(B)/engine-$(1)/%.d)
endef
$(eval $(call engine_objects,plain,))
$(eval $(call engine_objects,asan,$(ASAN_FLAGS)))
$(eval $(call engine_objects,tsan,$(TSAN_FLAGS)))

$(ENGINE_SO): $(ENGINE_OBJ_plain) $(COMMON_OBJ) $(ENGINE)/libtmesh-engine.map $(B)/libtmesh.so
	$(SAY)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,$(ENGINE_SONAME) -Wl,-z,defs \
		-Wl,-Bsymbolic-functions -Wl,--version-script=$(ENGINE)/libtmesh-engine.map -o $@ \
		$(ENGINE_OBJ_plain) $(COMMON_OBJ) -L$(B) -ltmesh -ljansson -pthread

$(B)/libtmesh-engine.so: $(ENGINE_SO)
	@ln -sf $(notdir $(ENGINE_SO)) $(B)/$(ENGINE_SONAME)
	@ln -sf $(ENGINE_SONAME) $@

# A plug-in contains its own copy of lib/common/.
$(ENGINE_ONNX): $(ENGINE_ONNX_OBJ_plain) $(COMMON_OBJ)
	$(SAY)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-z,defs -o $@ $^ -ldl

# ENGINE_LIB=build/libtmesh-engine.so and TOOLS_LIB=build/libtmesh.so link the shared ones.
ENGINE_LIB ?= $(ENGINE_A)
TOOLS_LIB  ?= $(LIB_A)

ENGINE_PROCESS_WITH := $(addprefix $(B)/engine-plain/,remote_wire.o identity.o plugin.o)

$(ENGINE_PROCESS): $(ENGINE_PROCESS_OBJ_plain) $(ENGINE_PROCESS_WITH) $(COMMON_OBJ) $(ENGINE_LIB) $(TOOLS_LIB)
	$(SAY)$(CC) $(CFLAGS) $(LDFLAGS) $(ENGINE_PROCESS_OBJ_plain) $(if $(filter %.so,$(ENGINE_LIB)),$(ENGINE_PROCESS_WITH)) \
		$(if $(filter %.so,$(TOOLS_LIB)),$(COMMON_OBJ)) $(ENGINE_LIB) $(TOOLS_LIB) $(LIB_LIBS) -ldl -o $@

# For the tests with hostile clients.
$(B)/asan/tmesh-engine: $(ENGINE_PROCESS_OBJ_asan) $(B)/libtmesh-engine-asan.a $(LIB_ASAN)
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CFLAGS) $(ASAN_FLAGS) $^ $(LIB_LIBS) -ldl -o $@

# This plug-in contains libtmesh-engine's reader of graphs. plugin.map exports one symbol, so the copies do not
# meet.
$(ENGINE_GGML): $(ENGINE_GGML_OBJ_plain) $(filter $(B)/engine-plain/graph_%.o,$(ENGINE_OBJ_plain)) $(COMMON_OBJ) $(ENGINE)/plugin.map
	$(SAY)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-z,defs -Wl,--version-script=$(ENGINE)/plugin.map -o $@ \
		$(filter %.o,$^) -ljansson -lm -ldl

# tmeshctl's verbs of this room are programs of their own: loaded engines do not run inside tmeshctl.
ENGINE_TOOLS     := $(addprefix $(B)/tmeshctl-,devices graph)
ENGINE_TOOLS_OBJ := $(addprefix $(B)/tools/,options.o text.o target.o progress.o hold.o)

tools: $(ENGINE_TOOLS)
-include $(wildcard $(B)/tools/engine/*.d)
$(ENGINE_TOOLS): $(B)/tmeshctl-%: $(B)/tools/engine/%.o $(ENGINE_TOOLS_OBJ) $(ENGINE_LIB) $(TOOLS_LIB)
	$(SAY)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter-out %.o,$^) $(LIB_LIBS) -ldl

install-tools: install-engine-tools
install-engine-tools: $(ENGINE_TOOLS)
	$(INSTALL) -d $(DESTDIR)$(BINDIR)
	$(INSTALL) -m 755 $(ENGINE_TOOLS) $(DESTDIR)$(BINDIR)/

uninstall-tools: uninstall-engine-tools
uninstall-engine-tools:
	rm -f $(addprefix $(DESTDIR)$(BINDIR)/,$(notdir $(ENGINE_TOOLS)))

.PHONY: install-engine-tools uninstall-engine-tools

# The static libraries leave out lib/common/, which is in libtmesh's archive: programs link both.
$(ENGINE_A): $(ENGINE_OBJ_plain)
$(B)/libtmesh-engine-asan.a: $(ENGINE_OBJ_asan)
$(B)/libtmesh-engine-tsan.a: $(ENGINE_OBJ_tsan)
$(ENGINE_A) $(B)/libtmesh-engine-asan.a $(B)/libtmesh-engine-tsan.a:
	@rm -f $@
	$(SAY)$(AR) rcs $@ $^

install-engine: engine
	$(INSTALL) -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(ENGINE_PLUGIN_DIR)
	$(INSTALL) -m 755 $(ENGINE_SO) $(DESTDIR)$(LIBDIR)/
	ln -sf $(notdir $(ENGINE_SO)) $(DESTDIR)$(LIBDIR)/$(ENGINE_SONAME)
	ln -sf $(ENGINE_SONAME) $(DESTDIR)$(LIBDIR)/libtmesh-engine.so
	$(INSTALL) -m 644 $(ENGINE_A) $(DESTDIR)$(LIBDIR)/
	$(INSTALL) -m 644 $(ENGINE_PLUGINS) $(DESTDIR)$(ENGINE_PLUGIN_DIR)/
	$(INSTALL) -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(UNITDIR)
	$(INSTALL) -m 755 $(ENGINE_PROCESS) $(DESTDIR)$(BINDIR)/
	sed -e 's|@bindir@|$(BINDIR)|' packaging/systemd/tmesh-engine@.service.in > $(DESTDIR)$(UNITDIR)/tmesh-engine@.service
	sed -e 's|@prefix@|$(PREFIX)|' -e 's|@libdir@|$(LIBDIR)|' \
		-e 's|@includedir@|$(INCLUDEDIR)|' -e 's|@version@|$(VERSION)|' \
		$(ENGINE)/libtmesh-engine.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/libtmesh-engine.pc
	$(call install_headers,$(ENGINE_HEADERS))

uninstall-engine:
	rm -f $(addprefix $(DESTDIR)$(LIBDIR)/,$(notdir $(ENGINE_SO)) $(ENGINE_SONAME) libtmesh-engine.so \
		libtmesh-engine.a pkgconfig/libtmesh-engine.pc)
	rm -f $(DESTDIR)$(BINDIR)/tmesh-engine $(DESTDIR)$(UNITDIR)/tmesh-engine@.service
	rm -f $(addprefix $(DESTDIR)$(ENGINE_PLUGIN_DIR)/,$(notdir $(ENGINE_PLUGINS)))
	[ ! -d $(DESTDIR)$(ENGINE_PLUGIN_DIR) ] || rmdir --ignore-fail-on-non-empty $(DESTDIR)$(ENGINE_PLUGIN_DIR)
	$(call uninstall_headers,$(ENGINE_HEADERS))

.PHONY: engine install-engine uninstall-engine
