# SPDX-License-Identifier: MIT
#
# Debian packages. debian/ must be at the top of the sources: a copy of them has it there.

DEB_OUT  := $(B)/deb
DEB_TREE := $(DEB_OUT)/tmesh-$(VERSION)

deb-source: ## [Package] Make the source tree that the Debian packages are built from.
	rm -rf $(DEB_OUT)
	mkdir -p $(DEB_TREE)
	tar -c --exclude-vcs --exclude=./build --exclude=_build --exclude=__pycache__ . | tar -x -C $(DEB_TREE)
	cp -a packaging/deb $(DEB_TREE)/debian

deb: deb-source ## [Package] Build the Debian packages.
	cd $(DEB_TREE) && env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL dpkg-buildpackage -b -us -uc

.PHONY: deb-source deb
