# SPDX-License-Identifier: MIT
#
# tmesh-mount: shows kept regions as files, on libfuse 3. `make` leaves it out if libfuse3-dev is
# not installed; `make mount` then reports the missing package. From libfuse 3.17 on the kernel
# reads from the keepers' memory itself.

SBINDIR       ?= $(PREFIX)/sbin
SYSTEMUNITDIR ?= $(PREFIX)/lib/systemd/system

MOUNT_SRC := $(wildcard lib/mount/*.c)
MOUNT_OBJ := $(MOUNT_SRC:lib/mount/%.c=$(B)/mount/%.o)
# A look at the file: nothing may be asked of programs before `make deps` has installed them.
MOUNT_BUILT := $(if $(wildcard /usr/include/fuse3/fuse_opt.h),mount)

mount: $(B)/tmesh-mount ## [Build] Build tmesh-mount, which shows what is kept as files.

$(B)/mount/%.o: lib/mount/%.c lib/mount/build.mk | $(call needs,fuse3/fuse_opt.h jansson.h pkg-config)
	@mkdir -p $(@D)
	$(SAY)$(CC) $(LIB_CPPFLAGS) -iquote lib $(shell pkg-config --cflags fuse3) $(CFLAGS) $(WARN) -std=gnu11 -MMD -MP -c -o $@ $<
-include $(MOUNT_OBJ:.o=.d)

$(B)/tmesh-mount: $(MOUNT_OBJ) $(LIB_A)
	$(SAY)$(CC) $(CFLAGS) $(LDFLAGS) $(MOUNT_OBJ) $(LIB_A) $(LIB_LIBS) $(shell pkg-config --libs fuse3) -o $@

install-mount: mount
	$(INSTALL) -d $(DESTDIR)$(SBINDIR) $(DESTDIR)$(SYSTEMUNITDIR)
	$(INSTALL) -m 755 $(B)/tmesh-mount $(DESTDIR)$(SBINDIR)/
	sed -e 's|@sbindir@|$(SBINDIR)|' packaging/systemd/tmesh-mount.service.in > $(DESTDIR)$(SYSTEMUNITDIR)/tmesh-mount.service

uninstall-mount:
	rm -f $(DESTDIR)$(SBINDIR)/tmesh-mount $(DESTDIR)$(SYSTEMUNITDIR)/tmesh-mount.service

.PHONY: mount install-mount uninstall-mount
