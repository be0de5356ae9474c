# SPDX-License-Identifier: MIT
#
# libtmesh-cuda against a stand-in for the driver (standin.c), which shows protocols, lifetimes and
# error paths, and nothing about a GPU. With the sanitizers.

CUDA_TESTS := tests/cuda
CUDA_OUT   := $(B)/tests/cuda
CUDA_PLUGINS := $(B)/libtmesh-cuda-torch.so $(B)/libtmesh-cuda-hook.so
CUDA_ASAN  := $(B)/libtmesh-cuda-asan.a
STANDIN    := $(CUDA_OUT)/libcuda.so.1
# The root of a CUDA toolkit, if there is one: test_abi compares with it.
CUDA_HOME  ?= /usr/local/cuda
CUDA_NAMES := $(patsubst $(CUDA_TESTS)/test_%.c,test_%,$(wildcard $(CUDA_TESTS)/test_*.c))

$(STANDIN): $(wildcard $(CUDA_TESTS)/standin*.[ch]) bindings/cuda/driver_api.h
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) -Ibindings/cuda $(CFLAGS) $(WARN) -std=gnu11 -fPIC -pthread -shared \
		-Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic -o $@ $(filter %.c,$^)

# The same as an old driver.
$(CUDA_OUT)/libcuda-old.so: $(wildcard $(CUDA_TESTS)/standin*.[ch]) bindings/cuda/driver_api.h $(CUDA_TESTS)/old.map
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) -Ibindings/cuda $(CFLAGS) $(WARN) -std=gnu11 -fPIC -pthread -shared \
		-Wl,-soname,$(@F) -Wl,-Bsymbolic -Wl,--version-script=$(CUDA_TESTS)/old.map -o $@ $(filter %.c,$^)

# A later libtmesh-cuda, which today's bindings may load.
CUDA_LATER := $(CUDA_OUT)/later/libtmesh-cuda.so.0
$(CUDA_LATER): $(CUDA_TESTS)/later.c $(B)/libtmesh-cuda.so
	@mkdir -p $(@D)
	objcopy --redefine-sym tmesh_cuda_info=tmesh_cuda_info_today $(B)/cuda-plain/memory.o $(@D)/memory.o
	$(SAY)$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) $(LIB_CFLAGS) -shared -Wl,-soname,$(CUDA_SONAME) \
		-Wl,--version-script=$(CUDA)/libtmesh-cuda.map -o $@ $< $(@D)/memory.o \
		$(filter-out %/memory.o,$(CUDA_OBJ_plain)) $(COMMON_OBJ) -L$(B) -ltmesh $(CUDA_LIBS)

# For the preload: a runtime, and a program that uses it.
# The second has a name as wheels give it that carry the runtime.
$(CUDA_OUT)/libcudart.so.12 $(CUDA_OUT)/libcudart-0123abcd.so.12: $(CUDA_TESTS)/runtime.c $(STANDIN)
	$(SAY)$(CC) $(CPPFLAGS) -Ibindings/cuda $(CFLAGS) $(WARN) -std=gnu11 -fPIC -shared -Wl,-Bsymbolic \
		-Wl,-soname,$(notdir $@) -o $@ $^

$(CUDA_OUT)/program: $(CUDA_TESTS)/program.c $(CUDA_OUT)/libcudart.so.12 $(STANDIN) $(B)/libtmesh-cuda.so
	$(SAY)$(CC) $(CPPFLAGS) -Ibindings/cuda $(CFLAGS) $(WARN) -std=gnu11 -o $@ $^ -L$(B) -ltmesh

$(CUDA_OUT)/program_of_wheel: $(CUDA_TESTS)/program.c $(CUDA_OUT)/libcudart-0123abcd.so.12 $(STANDIN) $(B)/libtmesh-cuda.so
	$(SAY)$(CC) $(CPPFLAGS) -Ibindings/cuda $(CFLAGS) $(WARN) -std=gnu11 -o $@ $^ -L$(B) -ltmesh

$(CUDA_OUT)/static: $(CUDA_TESTS)/static.c $(B)/libtmesh-cuda.so
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) -Ibindings/cuda $(CFLAGS) $(WARN) -std=gnu11 -o $@ $^ -L$(B) -ltmesh -ldl

# With the static runtime of a toolkit, if there is one.
CUDART_STATIC := $(firstword $(wildcard $(addsuffix /libcudart_static.a,$(CUDA_HOME)/lib64 $(CUDA_HOME)/lib)))
CUDA_STATIC_RUNTIME := $(if $(CUDART_STATIC),$(CUDA_OUT)/static_runtime)
$(CUDA_OUT)/static_runtime: $(CUDA_TESTS)/static_runtime.c $(CUDART_STATIC)
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) -std=gnu11 -o $@ $^ -ldl -lrt -pthread

$(eval $(call c_tests,$(CUDA_OUT)/asan,$(CUDA_TESTS),$(COMMON_CPPFLAGS) -Ibindings/cuda -isystem $(CUDA_HOME)/include \
	-std=gnu11 -pthread $(ASAN_FLAGS) $(TEST_O),$(CUDA_ASAN) $(LIB_ASAN),-lcmocka $$(LIB_LIBS) -ldl))

cuda-check: $(STANDIN) $(CUDA_LATER) $(CUDA_OUT)/libcuda-old.so $(B)/libtmesh-cuda.so $(CUDA_PLUGINS) $(CUDA_OUT)/program $(CUDA_OUT)/program_of_wheel $(CUDA_OUT)/static $(CUDA_STATIC_RUNTIME) $(B)/tmeshctl $(B)/tmesh-keeper $(B)/asan/tmesh-keeper $(ENGINE_TOOLS) $(VENV)/tmesh.stamp $(addprefix $(CUDA_OUT)/asan/,$(CUDA_NAMES)) ## Test libtmesh-cuda on a stand-in for the driver.
	@export CMOCKA_MESSAGE_OUTPUT=TAP TMESH_BACKEND=memfd TMESH_RUNTIME_DIR=$$(mktemp -d) \
		TMESH_TEST_LIBCUDA=$(CURDIR)/$(STANDIN) TMESH_TEST_OLD_LIBCUDA=$(CURDIR)/$(CUDA_OUT)/libcuda-old.so; \
	trap 'rm -rf "$$TMESH_RUNTIME_DIR"' EXIT; status=0; \
	for test in $(CUDA_NAMES); do \
		TMESH_KEEPER=$(CURDIR)/$(B)/asan/tmesh-keeper $(CUDA_OUT)/asan/$$test || status=1; done; \
	LD_LIBRARY_PATH=$(CURDIR)/$(CUDA_OUT):$(CURDIR)/$(B) $(VPYTHON) -P $(CUDA_TESTS)/python.py || status=1; \
	$(MAKE) -s --no-print-directory gpu-dry-check || status=1; \
	exit $$status

# The tests about regions, on the present backend: in guests, the module. It takes descriptors of character devices, as
# a driver's are, and no memfds.
cuda-backend-check: export CMOCKA_MESSAGE_OUTPUT := TAP
cuda-backend-check: export TMESH_TEST_LIBCUDA := $(CURDIR)/$(STANDIN)
cuda-backend-check: $(STANDIN) $(CUDA_OUT)/asan/test_host $(CUDA_OUT)/asan/test_share
	@$(CUDA_OUT)/asan/test_host; status=$$?; \
	TMESH_STANDIN_FILES=$(if $(filter kernel,$(TMESH_BACKEND)),vgem) $(CUDA_OUT)/asan/test_share && exit $$status

.PHONY: cuda-check cuda-backend-check
