# SPDX-License-Identifier: MIT
#
# Fuzz targets (clang's libFuzzer): all code that reads strangers' bytes.

FUZZ       := tests/fuzz
FUZZ_OUT   := $(B)/tests/fuzz
FUZZ_CC    ?= clang
FUZZ_NAMES := $(patsubst $(FUZZ)/fuzz_%.c,%,$(wildcard $(FUZZ)/fuzz_*.c))
FUZZ_FLAGS := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all
FUZZ_OBJ   := $(LIB_SRC:lib/%.c=$(FUZZ_OUT)/lib/%.o)

$(FUZZ_OUT)/lib/%.o: lib/%.c lib/build.mk VERSION | $(call needs,jansson.h pkg-config clang)
	@mkdir -p $(@D)
	$(SAY)$(FUZZ_CC) $(LIB_CPPFLAGS) $(LIB_CFLAGS) $(FUZZ_FLAGS) -fsanitize=fuzzer-no-link -MMD -MP -c -o $@ $<
-include $(FUZZ_OBJ:.o=.d)

$(FUZZ_OUT)/%: $(FUZZ)/fuzz_%.c $(FUZZ)/bounds.h $(FUZZ)/sockets.h $(FUZZ_OBJ)
	$(SAY)$(FUZZ_CC) $(CPPFLAGS) -Ilib -std=gnu11 $(WARN) $(FUZZ_FLAGS) -fsanitize=fuzzer \
		$< $(FUZZ_OBJ) $(LIB_LIBS) -o $@

$(FUZZ_OUT)/npy: tools/npy.c tools/npy.h

.SECONDARY: $(FUZZ_OBJ)

fuzz-check: $(addprefix $(FUZZ_OUT)/,$(FUZZ_NAMES)) ## Fuzz the readers of refs, layouts, DLPack and messages.
	@$(FUZZ)/run $(FUZZ_OUT) $(FUZZ_NAMES)

.PHONY: fuzz-check
