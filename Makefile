# SPDX-License-Identifier: MIT
#
# The targets are the contract; `make help` lists them. Each room brings its own
# build.mk, included below, and everything that is built lies under build/.

VERSION := $(shell cat VERSION)
B       := build

PREFIX       ?= /usr/local
BINDIR       ?= $(PREFIX)/bin
LIBDIR       ?= $(PREFIX)/lib
INCLUDEDIR   ?= $(PREFIX)/include
MANDIR       ?= $(PREFIX)/share/man
COMPLETIONS  ?= $(PREFIX)/share/bash-completion/completions
DESTDIR      ?=
INSTALL      ?= install

# The system's Python, because the packages that the tests use come from the system too.
PYTHON ?= /usr/bin/python3
VENV   := $(B)/venv
VPYTHON := $(VENV)/bin/python

CC      ?= cc
CFLAGS  ?= -O2 -g
WARN    := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wformat=2 -Wno-unused-parameter
CPPFLAGS += -D_GNU_SOURCE -Iinclude -Iinclude/uapi

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:

# The library first: the other rooms use what it defines.
include lib/build.mk $(filter-out lib/build.mk,$(wildcard */build.mk tests/*/build.mk bindings/*/build.mk))

# What can be built here is known by now.
all: lib keeper cuda xla model engine $(NET_BUILT) tools ## build the libraries and the tools

deps: ## install the Debian packages that building, the demo and the tests need (as root or with sudo)
	packaging/deps.sh all

demo: ## share a real model's embeddings between Python and Elixir, and show who holds them; MODEL=FILE.gguf: run that model
	@tests/demo/run.sh

# The loader finds the libraries of /usr/local/lib by its cache alone.
LDCONFIG := $(if $(DESTDIR)$(filter-out /usr/%,$(LIBDIR)),,ldconfig)

install: install-lib install-keeper install-cuda install-xla install-model install-engine $(NET_BUILT:%=install-%) install-tools ## install library, headers, tools, man pages (PREFIX, DESTDIR)
	$(LDCONFIG)

uninstall: uninstall-lib uninstall-keeper uninstall-cuda uninstall-xla uninstall-model uninstall-engine uninstall-net uninstall-tools ## remove what install put there
	$(LDCONFIG)

clean: ## remove everything that was built
	rm -rf $(B) bindings/beam/_build

help: ## list the targets
	@grep -hE '^[a-z0-9.-]+:.*## ' $(MAKEFILE_LIST) | \
		awk -F ':.*## ' '{ printf "  %-20s %s\n", $$1, $$2 }'

.PHONY: all deps demo install uninstall clean help
