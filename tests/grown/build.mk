# SPDX-License-Identifier: MIT
#
# What was compiled with today's headers runs with the libraries of a version to come, in which each
# public structure that may grow has grown: a program of its own, and tmeshctl.

GROWN      := tests/grown
GROWN_OUT  := $(B)/grown
GROWN_LIBS := $(GROWN_OUT)/libtmesh.so.0 $(GROWN_OUT)/libtmesh-cuda.so.0

# No lists of what they include: those would be of another room's headers.
grown_flags = $(subst -Iinclude ,-I$(GROWN_OUT)/include ,$(1) ) -O0 -g $(WARN) $(LIB_CFLAGS)

$(GROWN_OUT)/headers.stamp: $(GROWN)/grow.py $(wildcard include/tmesh/*.h include/uapi/linux/*.h)
	@mkdir -p $(@D)
	@$(PYTHON) -B $(GROWN)/grow.py include $(GROWN_OUT)/include
	@touch $@

$(GROWN_OUT)/libtmesh.so.0: $(GROWN_OUT)/headers.stamp $(LIB_SRC) $(wildcard lib/*.h lib/common/*.h) lib/libtmesh.map
	$(CC) $(call grown_flags,$(LIB_CPPFLAGS)) -shared -Wl,-soname,$(LIB_SONAME) \
		-Wl,-Bsymbolic-functions -Wl,--version-script=lib/libtmesh.map -o $@ $(LIB_SRC) $(LIB_LIBS)

$(GROWN_OUT)/libtmesh-cuda.so.0: $(GROWN_OUT)/libtmesh.so.0 $(wildcard bindings/cuda/*.[ch]) bindings/cuda/libtmesh-cuda.map
	$(CC) $(call grown_flags,$(CPPFLAGS) $(COMMON_CPPFLAGS)) -shared -Wl,-soname,$(CUDA_SONAME) \
		-Wl,--version-script=$(CUDA)/libtmesh-cuda.map -o $@ $(CUDA_SRC) $(wildcard lib/common/*.c) $< $(CUDA_LIBS)

$(GROWN_OUT)/program: $(GROWN)/program.c $(wildcard include/tmesh/*.h) $(B)/libtmesh.so $(B)/libtmesh-cuda.so
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) -std=gnu11 -o $@ $< -L$(B) -ltmesh-cuda -ltmesh -lcmocka

# The first run shows that the program is right about the libraries that it was compiled with.
grown-check: $(GROWN_LIBS) $(GROWN_OUT)/program $(B)/tmesh-keeper $(B)/tmeshctl $(STANDIN) ## programs of today with libraries whose structures have grown
	@export CMOCKA_MESSAGE_OUTPUT=TAP TMESH_BACKEND=memfd TMESH_RUNTIME_DIR=$$(mktemp -d) \
		TMESH_KEEPER=$(abspath $(B)/tmesh-keeper) TMESH_TEST_LIBCUDA=$(abspath $(STANDIN)); \
	trap 'rm -rf "$$TMESH_RUNTIME_DIR"' EXIT; status=0; \
	for libraries in $(abspath $(B)) $(abspath $(GROWN_OUT)); do \
		LD_LIBRARY_PATH=$$libraries $(GROWN_OUT)/program $(abspath $(B)/tmeshctl) || status=1; done; \
	exit $$status

.PHONY: grown-check
