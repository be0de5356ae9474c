# SPDX-License-Identifier: MIT
#
# Take guards out one by one: a test has to see each. It takes hours, so no other target asks for it, and it resumes a
# stopped search. MUTATE has more for mutate.py, as in MUTATE='--only lib/ref.c --every 5'

mutation: kselftest $(UNIT_OUT)/null_calls.h ## [Test] Take guards out one by one and list those that no test misses (hours; a stopped run goes on).
	@status=0; for what in kmod lib lib-module; do tests/mutation/mutate.py $$what $(MUTATE) || status=1; done; exit $$status

mutation-lib: lib $(UNIT_OUT)/null_calls.h ## Take out the guards of libtmesh.
	@tests/mutation/mutate.py lib $(MUTATE)

mutation-lib-module: lib $(UNIT_OUT)/null_calls.h ## Take out the guards of libtmesh that need the module, in guests.
	@tests/mutation/mutate.py lib-module $(MUTATE)

mutation-kmod: kselftest ## Take out the guards of the module, in guests.
	@tests/mutation/mutate.py kmod $(MUTATE)

mutation-report: ## Show what is known of all guards. Nothing is run.
	@status=0; for what in kmod lib lib-module; do tests/mutation/mutate.py $$what --tell || status=1; done; exit $$status

.PHONY: mutation mutation-lib mutation-lib-module mutation-kmod mutation-report
