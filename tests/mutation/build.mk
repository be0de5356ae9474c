# SPDX-License-Identifier: MIT
#
# Guards are taken out one by one: a test has to see each. It takes hours, so that no other target asks for it.
# MUTATE has more for mutate.py, as in MUTATE='--only lib/ref.c --every 5'.

mutation: kselftest ## take guards of libtmesh and the module out, and list those that no test misses (hours)
	@status=0; for what in lib kmod; do tests/mutation/mutate.py $$what $(MUTATE) || status=1; done; exit $$status

mutation-lib: lib ## ... those of libtmesh
	@tests/mutation/mutate.py lib $(MUTATE)

mutation-kmod: kselftest ## ... those of the module
	@tests/mutation/mutate.py kmod $(MUTATE)

.PHONY: mutation mutation-lib mutation-kmod
