# SPDX-License-Identifier: MIT
#
# A program for each library, and tools, compiled with today's headers, run with the libraries of a later version, in
# which each growable public structure has grown. Libraries of today also run with a libtmesh that has grown, as after
# an upgrade of one package alone.

GROWN      := tests/grown
GROWN_OUT  := $(B)/grown
GROWN_MORE := libtmesh-cuda libtmesh-xla libtmesh-model libtmesh-engine $(if $(NET_BUILT),libtmesh-net)
GROWN_LIBS := $(addprefix $(GROWN_OUT)/,$(addsuffix .so.0,libtmesh $(GROWN_MORE)))
GROWN_PROGRAMS := $(addprefix $(GROWN_OUT)/,program model engine $(if $(NET_BUILT),net))
GROWN_TOOLS := $(addprefix $(GROWN_OUT)/,tmeshctl tmeshctl-model tmeshctl-devices)

# No lists of their headers: those would be of another room's headers.
grown_flags = $(subst -Iinclude ,-I$(GROWN_OUT)/include ,$(1) ) -O0 -g $(WARN) $(LIB_CFLAGS)

$(GROWN_OUT)/headers.stamp: $(GROWN)/grow.py $(wildcard include/tmesh/*.h include/uapi/linux/*.h)
	@mkdir -p $(@D)
	@$(PYTHON) -B $(GROWN)/grow.py include $(GROWN_OUT)/include
	@touch $@

$(GROWN_OUT)/libtmesh.so.0: $(GROWN_OUT)/headers.stamp $(LIB_SRC) $(wildcard lib/*.h lib/common/*.h) lib/libtmesh.map
	$(SAY)$(CC) $(call grown_flags,$(LIB_CPPFLAGS)) -shared -Wl,-soname,$(LIB_SONAME) \
		-Wl,-Bsymbolic-functions -Wl,--version-script=lib/libtmesh.map -o $@ $(LIB_SRC) $(LIB_LIBS)

# grown_lib(library, folder, flags, sources, other libraries)
define grown_lib
$(GROWN_OUT)/$(1).so.0: $(GROWN_OUT)/libtmesh.so.0 $$(wildcard $(2)/*.[ch]) $(2)/$(1).map
	$$(SAY)$$(CC) $$(call grown_flags,$(3)) -shared -Wl,-soname,$(1).so.0 -Wl,-z,defs -Wl,-Bsymbolic-functions \
		-Wl,--version-script=$(2)/$(1).map -o $$@ $(4) $$(wildcard lib/common/*.c) $$< $(5)
endef
$(eval $(call grown_lib,libtmesh-cuda,bindings/cuda,$$(CPPFLAGS) $$(COMMON_CPPFLAGS),$$(CUDA_SRC),$$(CUDA_LIBS)))
$(eval $(call grown_lib,libtmesh-xla,bindings/xla,$$(CPPFLAGS) $$(COMMON_CPPFLAGS),$$(XLA_SRC),-pthread))
$(eval $(call grown_lib,libtmesh-model,$(MODEL),$$(CPPFLAGS) $$(COMMON_CPPFLAGS),$$(MODEL_SRC),$$(MODEL_LIBS)))
$(eval $(call grown_lib,libtmesh-engine,$(ENGINE),$$(CPPFLAGS) $$(ENGINE_CPPFLAGS),$$(ENGINE_SRC),-ljansson -ldl))
$(eval $(call grown_lib,libtmesh-net,$(NET),$$(CPPFLAGS) $$(COMMON_CPPFLAGS),$$(NET_SRC),$$(NET_LIBS)))

$(GROWN_OUT)/mixed.stamp: $(GROWN_OUT)/libtmesh.so.0 $(GROWN_MORE:%=$(B)/%.so)
	@mkdir -p $(GROWN_OUT)/mixed
	@ln -sf ../libtmesh.so.0 $(addprefix ../../,$(GROWN_MORE:%=%.so.0)) $(GROWN_OUT)/mixed
	@touch $@

grown_links = $(filter %.o,$^) -L$(B) $(patsubst $(B)/lib%.so,-l%,$(filter %.so,$^))

$(GROWN_OUT)/program: $(B)/libtmesh-cuda.so $(B)/libtmesh-xla.so
$(GROWN_OUT)/model: $(B)/libtmesh-model.so
$(GROWN_OUT)/engine: $(B)/libtmesh-engine.so
$(GROWN_OUT)/net: $(B)/libtmesh-net.so
$(GROWN_PROGRAMS): $(GROWN_OUT)/%: $(GROWN)/%.c $(GROWN)/edge.h $(wildcard include/tmesh/*.h) $(B)/libtmesh.so
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) -std=gnu11 -o $@ $< $(grown_links) -lcmocka

# With the shared libraries, as distributions build them.
$(GROWN_OUT)/tmeshctl: $(call tmeshctl_with,$(B)/libtmesh.so)
$(GROWN_OUT)/tmeshctl-model: $(B)/tools/model/model.o $(MODEL_TOOLS_OBJ) $(B)/libtmesh-model.so
$(GROWN_OUT)/tmeshctl-devices: $(B)/tools/engine/devices.o $(ENGINE_TOOLS_OBJ) $(B)/libtmesh-engine.so
$(GROWN_TOOLS): $(B)/libtmesh.so
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(grown_links) $(LIB_LIBS)

# The first run shows that the programs are right about the libraries that they were compiled with.
grown-check: $(GROWN_LIBS) $(GROWN_OUT)/mixed.stamp $(GROWN_PROGRAMS) $(GROWN_TOOLS) $(B)/tmesh-keeper $(STANDIN) $(ENGINE_TEST_ENGINES) ## Run today's programs with libraries whose structures have grown.
	@export CMOCKA_MESSAGE_OUTPUT=TAP TMESH_BACKEND=memfd TMESH_RUNTIME_DIR=$$(mktemp -d) \
		TMESH_KEEPER=$(abspath $(B)/tmesh-keeper) TMESH_TEST_LIBCUDA=$(abspath $(STANDIN)) \
		TMESH_ENGINE_PATH=$(abspath $(ENGINE_TEST_OUT)/engines); \
	trap 'rm -rf "$$TMESH_RUNTIME_DIR"' EXIT; status=0; cd $(GROWN_OUT); \
	for libraries in $(abspath $(B)) $(abspath $(GROWN_OUT)) $(abspath $(GROWN_OUT)/mixed); do \
		export LD_LIBRARY_PATH=$$libraries; \
		./program ./tmeshctl || status=1; \
		./model ./tmeshctl-model || status=1; \
		./engine ./tmeshctl-devices || status=1; \
		$(if $(NET_BUILT),./net || status=1;) \
	done; \
	exit $$status

.PHONY: grown-check
