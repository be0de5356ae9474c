# SPDX-License-Identifier: MIT
#
# The targets are the contract; `make help` lists them. Each room brings its own build.mk, included below. All built
# files lie under build/.

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

# A recipe that begins with $(SAY) shows a short line in place of its command; V=1 shows commands, -s nothing.
SILENT = $(findstring s,$(firstword $(filter-out --% %=%,$(MAKEFLAGS))))
SAY    = $(if $(V),,@$(if $(SILENT),,printf '  %-3s %s\n' $(if $(filter %.o,$@),CC,$(if $(filter %.a,$@),AR,$(if $(filter $(B)/man/%,$@),MAN,LD))) $@;))

# A missing header or program is named with its Debian package before the compiler fails.
# Rules list what they need: `target: sources | $(call needs,jansson.h scdoc)`.
NEED_jansson.h     := libjansson-dev
NEED_liburing.h    := liburing-dev
NEED_xxhash.h      := libxxhash-dev
NEED_cmocka.h      := libcmocka-dev
NEED_libdrm@drm.h  := libdrm-dev
NEED_infiniband@verbs.h := libibverbs-dev
NEED_rdma@fabric.h := libfabric-dev
NEED_fuse3@fuse_opt.h := libfuse3-dev
NEED_clang         := clang
NEED_elixir        := elixir
NEED_erlc          := erlang-dev
NEED_pkg-config    := pkg-config
NEED_scdoc         := scdoc
NEED_valgrind      := valgrind
needs = $(addprefix $(B)/needs/,$(subst /,@,$(1)))

# cmocka.h asks its includer for other headers, which -E does not notice.
has_header  = echo '\#include <$(subst @,/,$(@F))>' | $(CC) $(CPPFLAGS) -E -x c - >/dev/null 2>&1
has_program = command -v $(@F) >/dev/null
$(B)/needs/%:
	@mkdir -p $(@D)
	@{ $(if $(filter %.h,$*),$(has_header),$(has_program)); } || { \
		echo "make: $(subst @,/,$*) is missing; on Debian: sudo apt install $(NEED_$*) (or make deps)" >&2; exit 1; }
	@touch $@
.PRECIOUS: $(B)/needs/%

# The library first: the other rooms use what it defines.
include lib/build.mk $(filter-out lib/build.mk,$(wildcard */build.mk tests/*/build.mk bindings/*/build.mk))

all: lib keeper $(MOUNT_BUILT) cuda xla model engine $(NET_BUILT) tools ## [Build] Build the libraries and the tools that this machine has the packages for.

# TIER: build, demo, test, bench or all.
deps: ## [First] Install Debian packages, as root or with sudo. TIER=build, demo, test or bench installs fewer.
	packaging/deps.sh $(or $(TIER),all)

demo: ## [First] Share a real model between Python, Elixir and engines, and show the holders. MODEL=FILE.gguf runs that model.
	@tests/demo/run.sh

INSTALLED_FOLDERS = $(BINDIR) $(SBINDIR) $(LIBEXECDIR) $(LIBDIR)/pkgconfig $(ENGINE_PLUGIN_DIR) $(INCLUDEDIR)/linux $(INCLUDEDIR)/tmesh \
	$(UNITDIR) $(SYSTEMUNITDIR) $(DATADIR)/monitoring $(COMPLETIONS) $(foreach s,1 3 4 5 8,$(MANDIR)/man$s)

# The loader finds the libraries of /usr/local/lib by its cache alone.
LDCONFIG := $(if $(DESTDIR)$(filter-out /usr/%,$(LIBDIR)),,ldconfig)

install: install-lib install-keeper $(MOUNT_BUILT:%=install-%) install-cuda install-xla install-model install-engine $(NET_BUILT:%=install-%) install-tools ## [Install] Install libraries, headers, tools and man pages under PREFIX (/usr/local), below DESTDIR.
	$(LDCONFIG)

uninstall: uninstall-lib uninstall-keeper uninstall-mount uninstall-cuda uninstall-xla uninstall-model uninstall-engine uninstall-net uninstall-tools ## [Install] Remove what `make install` installed.
	@packaging/folders.sh '$(DESTDIR)' '$(PREFIX)' $(INSTALLED_FOLDERS)
	$(LDCONFIG)

clean: ## [Build] Remove everything that was built.
	rm -rf $(B) bindings/beam/_build

# How each file is compiled, for clangd and other tools: `.clangd` has the rest.
COMMANDS_OF = $(foreach test,$(UNIT_NAMES),$(UNIT_OUT)/plain/$(test).o) $(foreach test,$(MODEL_TESTS),$(MODEL_TEST_OUT)/plain/$(test).o) \
	$(foreach test,$(ENGINE_TESTS),$(ENGINE_TEST_OUT)/plain/$(test).o) $(NET_BUILT:net=$(NET_TEST_OUT)/plain/test_net.o)
compile_commands.json: $(B)/python/cflags ## [Build] Write the flags of each C file for editors (clangd).
	@$(MAKE) -nB V=1 --no-print-directory all python-lists beam-nif $(COMMANDS_OF) 2>/dev/null | $(PYTHON) -B tests/compile_commands.py $@

hooks: ## [First] Install the commit hook, which refuses subjects other than `area: imperative`.
	$(INSTALL) -D -m 755 packaging/git/commit-msg $$(git rev-parse --git-path hooks)/commit-msg

# A description that begins with [Section] is one of the contract; the others are suites and parts.
help: ## [First] List the targets that most people need. SUITES=1 lists each suite and each part, too.
	@awk -v suites="$(SUITES)" -f tests/help.awk $(MAKEFILE_LIST)

.PHONY: all deps demo install uninstall clean help hooks compile_commands.json
