# SPDX-License-Identifier: MIT
#
# Guards are taken out one by one: a test has to see each. It takes hours, so that no other target asks for it, and
# goes on where it was left. MUTATE has more for mutate.py, as in MUTATE='--only lib/ref.c --every 5'.

mutation: kselftest ## take guards of libtmesh and the module out, and list those that no test misses (hours; goes on where it was left)
	@status=0; for what in kmod lib lib-module; do tests/mutation/mutate.py $$what $(MUTATE) || status=1; done; exit $$status

mutation-lib: lib ## ... those of libtmesh
	@tests/mutation/mutate.py lib $(MUTATE)

mutation-lib-module: lib ## ... those of libtmesh that only come to something on the module, in guests
	@tests/mutation/mutate.py lib-module $(MUTATE)

mutation-kmod: kselftest ## ... those of the module, in guests
	@tests/mutation/mutate.py kmod $(MUTATE)

mutation-report: ## print what is known of all guards, and run nothing
	@status=0; for what in kmod lib lib-module; do tests/mutation/mutate.py $$what --tell || status=1; done; exit $$status

.PHONY: mutation mutation-lib mutation-lib-module mutation-kmod mutation-report
