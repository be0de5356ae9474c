# SPDX-License-Identifier: MIT
#
# One statement of the promises, held against C, Python and Elixir (run.py). C's processes have the sanitizers. If those
# of the host have seen a failure, CONFORM_PLAIN=1 builds without. PROMISES='9-sharing lease' runs these alone.

CONFORM     := tests/conformance
CONFORM_OUT := $(B)/tests/conformance
CONFORM_BEAM := $(CONFORM_OUT)/Elixir.Tmesh.ConformanceDriver.beam

CONFORM_DRIVER := $(CONFORM_OUT)/$(if $(CONFORM_PLAIN),plain,asan)/driver
CONFORM_LIBS   := $(if $(CONFORM_PLAIN),$(MODEL_A) $(LIB_A),$(B)/libtmesh-model-asan.a $(LIB_ASAN))
$(CONFORM_DRIVER): $(wildcard $(CONFORM)/*.[ch] include/tmesh/*.h) $(CONFORM_LIBS)
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) -std=gnu11 -pthread $(if $(CONFORM_PLAIN),,$(ASAN_FLAGS)) $(filter %.c %.a,$^) $(MODEL_LIBS) -o $@

$(CONFORM_BEAM): $(CONFORM)/driver.ex | beam
	@mkdir -p $(@D)
	elixirc --warnings-as-errors -pa $(B)/beam/dev/lib/tmesh/ebin -o $(@D) $<

conformance-check: export TMESH_KEEPER := $(abspath $(B)/tmesh-keeper)
# The drivers wait most of the time, so Elixir's sleeps instead of looking busily.
conformance-check: export ERL_FLAGS := +sbwt none +sbwtdcpu none +sbwtdio none
conformance-check: $(CONFORM_DRIVER) $(B)/tmesh-keeper $(VENV)/tmesh.stamp beam $(CONFORM_BEAM) ## Hold the promises against C, Python and Elixir.
	@$(PYTHON) $(CONFORM)/run.py "c=$(CONFORM_DRIVER)" "python=$(VPYTHON) -P $(CONFORM)/driver.py" \
		"elixir=elixir -pa $(B)/beam/dev/lib/tmesh/ebin -pa $(CONFORM_OUT) -e Tmesh.ConformanceDriver.main()" \
		$(if $(PROMISES),-- $(PROMISES))

.PHONY: conformance-check
