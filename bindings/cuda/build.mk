# SPDX-License-Identifier: MIT
#
# libtmesh-cuda, which loads the CUDA driver at run time: it is built, and tested against a
# stand-in, on any machine.

CUDA        := bindings/cuda
CUDA_SONAME := libtmesh-cuda.so.0
CUDA_SO     := $(B)/libtmesh-cuda.so.$(VERSION)
CUDA_SRC    := $(addprefix $(CUDA)/,block.c caps.c cuda.c dlpack.c driver.c event.c external.c host.c \
		 import.c keep.c memory.c nvml.c order.c register.c share.c stream.c value.c watch.c)
CUDA_HEADERS := include/tmesh/cuda.h
CUDA_LIBS   = $(LIB_LIBS) -ldl
CUDA_TORCH  := $(B)/libtmesh-cuda-torch.so
CUDA_HOOK   := $(B)/libtmesh-cuda-hook.so

cuda: $(B)/libtmesh-cuda.so $(CUDA_TORCH) $(CUDA_HOOK) ## [Build] Build libtmesh-cuda, an allocator for PyTorch and a preload.

# cuda_objects(variant, flags): as lib_objects()
define cuda_objects
CUDA_OBJ_$(1) := $(CUDA_SRC:$(CUDA)/%.c=$(B)/cuda-$(1)/%.o)
$(B)/cuda-$(1)/%.o: $(CUDA)/%.c $(CUDA)/build.mk
	@mkdir -p $$(@D)
	$$(SAY)$$(CC) $$(CPPFLAGS) $$(COMMON_CPPFLAGS) $$(CFLAGS) $$(WARN) $$(LIB_CFLAGS) $(2) -MMD -MP -c -o $$@ $$<
-include $(CUDA_SRC:$(CUDA)/%.c=$(B)/cuda-$(1)/%.d)
endef
$(eval $(call cuda_objects,plain,))
$(eval $(call cuda_objects,asan,$(ASAN_FLAGS)))

$(CUDA_SO): $(CUDA_OBJ_plain) $(COMMON_OBJ) $(CUDA)/libtmesh-cuda.map $(B)/libtmesh.so
	$(SAY)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,$(CUDA_SONAME) -Wl,-z,defs \
		-Wl,--version-script=$(CUDA)/libtmesh-cuda.map -o $@ $(CUDA_OBJ_plain) $(COMMON_OBJ) \
		-L$(B) -ltmesh $(CUDA_LIBS)

# For the tests.
$(B)/libtmesh-cuda-asan.a: $(CUDA_OBJ_asan)
	@rm -f $@
	$(SAY)$(AR) rcs $@ $^

$(B)/libtmesh-cuda.so: $(CUDA_SO)
	@ln -sf $(notdir $(CUDA_SO)) $(B)/$(CUDA_SONAME)
	@ln -sf $(CUDA_SONAME) $@

# Found by their paths, without a version; their functions are all there is.
$(CUDA_TORCH): $(CUDA)/torch.c $(CUDA)/build.mk $(B)/libtmesh-cuda.so
	$(SAY)$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) $(LIB_CFLAGS) $(LDFLAGS) -shared -Wl,-z,defs \
		-Wl,-soname,$(notdir $@) -MMD -MP -MF $(@:.so=.d) -o $@ $< -L$(B) -ltmesh-cuda -ltmesh $(CUDA_LIBS)

CUDA_HOOK_OBJ := $(B)/cuda-hook/hook.o $(B)/cuda-hook/hook_driver.o
$(B)/cuda-hook/%.o: $(CUDA)/%.c $(CUDA)/build.mk
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) $(LIB_CFLAGS) -MMD -MP -c -o $@ $<
-include $(CUDA_HOOK_OBJ:.o=.d)

$(CUDA_HOOK): $(CUDA_HOOK_OBJ) $(B)/libtmesh-cuda.so
	$(SAY)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-z,defs -Wl,-soname,$(notdir $@) -o $@ $(CUDA_HOOK_OBJ) \
		-L$(B) -ltmesh-cuda -ltmesh $(CUDA_LIBS)

install-cuda: cuda
	$(INSTALL) -d $(DESTDIR)$(LIBDIR)/pkgconfig
	$(call install_headers,$(CUDA_HEADERS))
	$(INSTALL) -m 755 $(CUDA_SO) $(DESTDIR)$(LIBDIR)/
	ln -sf $(notdir $(CUDA_SO)) $(DESTDIR)$(LIBDIR)/$(CUDA_SONAME)
	ln -sf $(CUDA_SONAME) $(DESTDIR)$(LIBDIR)/libtmesh-cuda.so
	$(INSTALL) -m 755 $(CUDA_TORCH) $(CUDA_HOOK) $(DESTDIR)$(LIBDIR)/
	sed -e 's|@prefix@|$(PREFIX)|' -e 's|@libdir@|$(LIBDIR)|' \
		-e 's|@includedir@|$(INCLUDEDIR)|' -e 's|@version@|$(VERSION)|' \
		$(CUDA)/libtmesh-cuda.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/libtmesh-cuda.pc

uninstall-cuda:
	$(call uninstall_headers,$(CUDA_HEADERS))
	rm -f $(addprefix $(DESTDIR)$(LIBDIR)/,$(notdir $(CUDA_SO)) $(CUDA_SONAME) libtmesh-cuda.so \
		$(notdir $(CUDA_TORCH) $(CUDA_HOOK)) \
		pkgconfig/libtmesh-cuda.pc)

.PHONY: cuda install-cuda uninstall-cuda
