# SPDX-License-Identifier: MIT
#
# Unit tests of the library: one cmocka program per file test_*.c, linked with the static library to reach
# internal functions. They run on memfds unless TMESH_BACKEND says kernel. Built three times: plain (also run
# under valgrind), with the address and undefined-behaviour sanitizers, and with the thread sanitizer.

UNIT_ALL   := $(patsubst $(UNIT)/test_%.c,test_%,$(wildcard $(UNIT)/test_*.c))
# These programs test the module alone, so they do not run on memfds: `make vm-6.12-library` runs them.
UNIT_NAMES := $(if $(filter kernel,$(TMESH_BACKEND)),$(UNIT_ALL),$(filter-out test_module%,$(UNIT_ALL)))
UNIT_FLAGS := -std=gnu11 -pthread -Ilib -I$(UNIT_OUT)
UNIT_LIBS   = -lcmocka $(LIB_LIBS)
# closes.c fails a test that closes a descriptor twice; patient.c lengthens the context's time limit for busy machines.
UNIT_WITH := $(UNIT)/closes.c $(UNIT)/patient.c
UNIT_WRAP := -Wl,--wrap=close,--wrap=tmesh_ctx_open
# calm_fork.c lets no child inherit a lock of the address sanitizer.
UNIT_WRAP_asan := -Wl,--wrap=fork

# The keeper that the library starts; the thread sanitizer has nothing to see in it.
UNIT_KEEPER_plain = $(abspath $(B)/tmesh-keeper)
UNIT_KEEPER_asan  = $(abspath $(B)/asan/tmesh-keeper)
UNIT_KEEPER_tsan  = $(UNIT_KEEPER_plain)

UNIT_KEEPS := test_keep test_keep_files test_keep_hostile test_kept_lent
$(foreach variant,plain tsan,$(UNIT_KEEPS:%=$(UNIT_OUT)/$(variant)/%)): $(B)/tmesh-keeper
$(UNIT_KEEPS:%=$(UNIT_OUT)/asan/%): $(B)/asan/tmesh-keeper
$(UNIT_OUT)/plain/test_module_files: $(B)/tmesh-keeper

# unit_tests(variant, flags, library, objects besides)
unit_tests = $(call c_tests,$(UNIT_OUT)/$(1),$(UNIT),$(UNIT_FLAGS) $(2),$(UNIT_OUT)/$(1)/closes.o $(UNIT_OUT)/$(1)/patient.o $(4) $(3),$(UNIT_WRAP) $(UNIT_WRAP_$(1)) $$(UNIT_LIBS))
$(eval $(call unit_tests,plain,,$(LIB_A)))
$(eval $(call unit_tests,asan,$(ASAN_FLAGS) $(TEST_O),$(LIB_ASAN),$(UNIT_OUT)/asan/calm_fork.o))
$(eval $(call unit_tests,tsan,$(TSAN_FLAGS) $(TEST_O),$(LIB_TSAN),$(UNIT_OUT)/tsan/timed_lock.o))

# The calls of test_null.c, from the headers.
UNIT_NULLS := $(UNIT_OUT)/null_calls.h
$(UNIT_NULLS): $(UNIT)/null_calls.py $(LIB_HEADERS)
	@mkdir -p $(@D)
	@$(PYTHON) -B $< $(LIB_HEADERS) > $@.new && mv $@.new $@

$(foreach variant,plain asan tsan cov,$(UNIT_OUT)/$(variant)/test_null.o): $(UNIT_NULLS)

# unit_run(variant, command in front, programs): in a runtime folder of their own
define unit_run
@export CMOCKA_MESSAGE_OUTPUT=TAP TMESH_BACKEND=$${TMESH_BACKEND:-memfd} TMESH_RUNTIME_DIR=$$(mktemp -d) $(PRELOADED) \
TMESH_KEEPER=$(UNIT_KEEPER_$(1)); \
trap 'rm -rf "$$TMESH_RUNTIME_DIR"' EXIT; status=0; \
for test in $(3); do $(2) $(UNIT_OUT)/$(1)/$$test || status=1; done; exit $$status
endef

# These programs test memfds alone, or no memory at all. On the module they would only repeat the same, ten
# times slower.
UNIT_ANY_BACKEND := test_copy test_failures test_index test_keep test_keep_files test_keep_hostile test_keep_start test_kept_lent test_layout test_memfd_file test_ref
UNIT_NAMES_kernel = $(filter-out $(UNIT_ANY_BACKEND),$(UNIT_NAMES))

# any_backend(programs): left out on the module
hash := \#
any_backend = $(if $(filter kernel,$(TMESH_BACKEND)),@for test in $(1); do \
	echo "1..1"; echo "ok 1 - $$test $(hash) SKIP says nothing of the backend; run on memfds"; done)

unit-check: $(addprefix $(UNIT_OUT)/plain/,$(UNIT_NAMES)) ## Run libtmesh's unit tests.
	$(call any_backend,$(UNIT_ANY_BACKEND))
	$(call unit_run,plain,,$(or $(UNIT_NAMES_$(TMESH_BACKEND)),$(UNIT_NAMES)))

# Programs that find the library's folder by themselves, as on a machine where no variable of tmesh's, XDG's or HOME is set. A new
# TMPDIR keeps the folder from being this user's own. The keeper is found by a variable alone, as long as it is not installed.
BARE_UNIT := $(if $(filter full,$(TMESH_TEST_LENGTH)),$(filter-out $(UNIT_KEEPS),$(UNIT_NAMES)),test_channel test_context test_foreign test_fork \
	test_hold test_holders test_ref test_region test_rundir test_share test_strange_files test_strangers)
# bare(commands, by "$$bare")
define bare
@tmp=$$(mktemp -d) && chmod 1777 "$$tmp" && trap 'rm -rf "$$tmp"' EXIT; \
bare="env -i PATH=$$PATH LC_ALL=C.UTF-8 TMPDIR=$$tmp CMOCKA_MESSAGE_OUTPUT=TAP"; $(1)
endef

unit-bare-check: $(addprefix $(UNIT_OUT)/plain/,$(BARE_UNIT)) ## Run libtmesh's unit tests without any variable that it reads.
	$(call bare,status=0; for test in $^; do $$bare $$test || status=1; done; exit $$status)

unit-asan-check: $(addprefix $(UNIT_OUT)/asan/,$(UNIT_NAMES)) ## Run libtmesh's unit tests with the address sanitizer.
	$(call unit_run,asan,,$(UNIT_NAMES))

# The sanitizer's runtime does not follow threads that a forked child starts, and needs the
# malloc() that test_failures makes fail. Producers that are forked from a process that watches others
# start their thread all the same; what it does not follow there is not what is tested.
UNIT_NO_TSAN := test_channel_deaths test_channel_lanes test_channel_lost test_channel_quiet test_failures test_fork
UNIT_TSAN    := $(filter-out $(UNIT_NO_TSAN),$(UNIT_NAMES))

unit-tsan-check: $(addprefix $(UNIT_OUT)/tsan/,$(UNIT_TSAN)) ## Run libtmesh's unit tests with the thread sanitizer.
	@for test in $(UNIT_NO_TSAN); do \
		echo "1..1"; echo "ok 1 - $$test # SKIP the thread sanitizer cannot run it"; done
	$(call unit_run,tsan,TSAN_OPTIONS=die_after_fork=0,$(UNIT_TSAN))

# Threads take turns: one that waits busily for another would keep it from running for ever. Reachable memory
# is no leak: forked children end while objects of their parent are alive. A thousand processes that are
# killed show valgrind no more than forty do. valgrind has no pidfd_open(), by which the keeper's tests see
# the keeper end. It goes on behind an instruction that a signal's handler was to let happen, and takes a
# mapping that a child lacks for one it has.
UNIT_NO_VALGRIND := $(UNIT_KEEPS) test_fork_seal
UNIT_VALGRIND    := $(filter-out $(UNIT_NO_VALGRIND),$(UNIT_NAMES))

unit-valgrind-check: export TMESH_TEST_LENGTH := short
unit-valgrind-check: $(call needs,valgrind) $(addprefix $(UNIT_OUT)/plain/,$(UNIT_VALGRIND)) ## Run libtmesh's unit tests under valgrind.
	@for test in $(UNIT_NO_VALGRIND); do \
		echo "1..1"; echo "ok 1 - $$test # SKIP valgrind cannot run it"; done
	$(call unit_run,plain,valgrind --quiet --fair-sched=yes --error-exitcode=99 --leak-check=full \
		--show-leak-kinds=definite --errors-for-leak-kinds=definite,$(UNIT_VALGRIND))

# Which lines and branches the unit tests run, by gcov. Without optimisation, which merges branches.
COV_A := $(B)/libtmesh-cov.a
$(eval $(call lib_objects,cov,-O0 --coverage -fprofile-update=atomic))

$(COV_A): $(LIB_OBJ_cov)
	@rm -f $@
	$(SAY)$(AR) rcs $@ $^

$(eval $(call unit_tests,cov,--coverage,$(COV_A)))

lib-coverage: export TMESH_KEEPER := $(UNIT_KEEPER_plain)
lib-coverage: $(addprefix $(UNIT_OUT)/cov/,$(UNIT_NAMES)) $(B)/tmesh-keeper ## Show which lines and branches of libtmesh its unit tests run.
	@$(PYTHON) -B $(UNIT)/lib_coverage.py $(B)/lib-cov $(filter-out %/tmesh-keeper,$^)

.PHONY: unit-check unit-bare-check unit-asan-check unit-tsan-check unit-valgrind-check lib-coverage
