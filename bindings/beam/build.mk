# SPDX-License-Identifier: MIT
#
# The Elixir application: a NIF library over libtmesh.a and libtmesh-model.a, built here, and a mix project whose
# compiler asks for it. mix writes under build/ too.

BEAM_NIF := $(B)/beam/tmesh_nif.so
BEAM_PEER := $(B)/beam/peer
BEAM_CONSUMER := $(B)/beam/arrow_consumer.so
BEAM_PRELOADS := $(B)/beam/hole.so $(B)/beam/close.so
BEAM_SRC := $(wildcard bindings/beam/c_src/*.c)
BEAM_OBJ := $(BEAM_SRC:bindings/beam/c_src/%.c=$(B)/beam/obj/%.o)

# Found only when a NIF is compiled: the other rooms need no Erlang.
BEAM_INCLUDE = $(shell erl -noshell -eval 'io:put_chars([code:root_dir(), "/usr/include"]), halt().')

# Make here the files that mix would make by itself.
BEAM_MIX = cd bindings/beam && MIX_DEPS_PATH=$(CURDIR)/$(B)/beam/deps MIX_QUIET=1 TMESH_NIF=$(CURDIR)/$(BEAM_NIF)

# The unpacked package for Hex. It has the sources that it needs of libtmesh.
BEAM_PACKAGE := $(B)/beam/tmesh-$(VERSION)

beam: $(B)/beam/dev/compiled.stamp ## [Build] Build the Elixir application.

# On an emulated machine mix takes half a minute to find that nothing is to do. A folder is newer after a file was removed.
$(B)/beam/dev/compiled.stamp: $(BEAM_NIF) bindings/beam/mix.exs VERSION $(shell find bindings/beam/lib)
	@$(if $(SILENT)$(V),,echo '  MIX bindings/beam')
	$(if $(V),,@)$(BEAM_MIX) MIX_BUILD_PATH=$(CURDIR)/$(B)/beam/dev mix compile --warnings-as-errors
	@touch $@

beam-nif: $(BEAM_NIF)

# Files that are marked so are left out on the module: its guests compile each slowly, too.
BEAM_ANY_BACKEND = $(shell grep -l '^ *use Tmesh.Case, backend: :any' bindings/beam/test/*_test.exs)
BEAM_TESTS = $(patsubst bindings/beam/%,%,$(if $(filter kernel,$(TMESH_BACKEND)),$(filter-out $(BEAM_ANY_BACKEND),$(wildcard bindings/beam/test/*_test.exs))))

# The loader finds the stand-in for the CUDA driver.
beam-check: $(BEAM_NIF) $(B)/tmesh-keeper $(BEAM_PEER) $(BEAM_CONSUMER) $(BEAM_PRELOADS) $(STANDIN) $(CUDA_LATER) $(B)/libtmesh-cuda.so $(B)/libtmesh-xla.so \
		$(ENGINE_PROCESS) $(ENGINE_TOOLS) $(ENGINE_PLUGINS) $(B)/tests/engine/models.stamp ## Run the Elixir tests.
	$(call any_backend,$(notdir $(basename $(BEAM_ANY_BACKEND))))
	@$(BEAM_MIX) MIX_BUILD_PATH=$(CURDIR)/$(B)/beam/test MIX_ENV=test \
		LD_LIBRARY_PATH=$(CURDIR)/$(dir $(STANDIN)):$(CURDIR)/$(B) \
		TMESH_TEST_PEER=$(CURDIR)/$(BEAM_PEER) TMESH_KEEPER=$(CURDIR)/$(B)/tmesh-keeper TMESH_MOUNT=$(CURDIR)/$(B)/beam/tree \
		TMESH_TEST_ARROW_CONSUMER=$(CURDIR)/$(BEAM_CONSUMER) TMESH_TEST_HOLE=$(CURDIR)/$(B)/beam/hole.so \
		TMESH_TEST_CLOSE_LIBRARY=$(CURDIR)/$(B)/beam/close.so TMESH_TEST_PYTHON=$(CURDIR)/$(VPYTHON) \
		TMESH_TEST_ARROW_PYTHON=$(CURDIR)/$(ARROW_VENV)/bin/python \
		TMESH_ENGINE_PROGRAM=$(CURDIR)/$(ENGINE_PROCESS) TMESH_ENGINE_MODELS=$(CURDIR)/$(B)/tests/engine/models \
		TMESH_ONNXRUNTIME=$(abspath $(ENGINE_ONNXRUNTIME)) TMESH_GGML=$(abspath $(ENGINE_GGML_LIBRARY)) TMESH_DEVICES_PROGRAM=$(CURDIR)/$(B)/tmeshctl-devices \
		TMESH_TEST_TAP=1 mix do compile --warnings-as-errors, test $(BEAM_TESTS)

# Keep dialyzer's analysis of Erlang and Elixir themselves.
beam-dialyzer: beam ## Look for mistakes in the Elixir code with dialyzer.
	@elixir bindings/beam/test/dialyzer.exs $(B)/beam/plt $(B)/beam/dev/lib/tmesh/ebin

beam-package: ## [Package] Lay out the Elixir package in build/beam/tmesh-VERSION.
	@rm -rf $(BEAM_PACKAGE)
	@mkdir -p $(addprefix $(BEAM_PACKAGE)/c_src/tmesh/,lib/common model engine include/uapi/linux)
	@cp -r $(addprefix bindings/beam/,lib mix.exs .formatter.exs README.md) VERSION LICENSES $(BEAM_PACKAGE)
	@cp bindings/beam/c_src/*.[ch] bindings/beam/c_src/Makefile $(BEAM_PACKAGE)/c_src
	@cp lib/*.[ch] $(BEAM_PACKAGE)/c_src/tmesh/lib
	@cp lib/common/*.[ch] $(BEAM_PACKAGE)/c_src/tmesh/lib/common
	@cp -r model/files model/pages model/shared model/slots $(BEAM_PACKAGE)/c_src/tmesh/model
	@cp engine/*.[ch] $(BEAM_PACKAGE)/c_src/tmesh/engine
	@cp -r include/tmesh $(BEAM_PACKAGE)/c_src/tmesh/include
	@cp include/uapi/linux/tmesh.h $(BEAM_PACKAGE)/c_src/tmesh/include/uapi/linux

beam-package-check: beam-package ## Build a stranger's application on the Elixir package.
	@elixir bindings/beam/test/package.exs $(BEAM_PACKAGE) bindings/beam $(B)/beam/stranger

$(B)/beam/obj/%.o: bindings/beam/c_src/%.c bindings/beam/build.mk | $(call needs,elixir erlc)
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) $(COMMON_CPPFLAGS) -I$(BEAM_INCLUDE) $(CFLAGS) $(WARN) -std=gnu11 -fPIC -fvisibility=hidden \
		-pthread -MMD -MP -c -o $@ $<
-include $(BEAM_OBJ:.o=.d)

# nodelete: see c_src/nif.c.
$(BEAM_NIF): $(BEAM_OBJ) $(MODEL_A) $(ENGINE_A) $(LIB_A)
	$(SAY)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-z,nodelete -Wl,--exclude-libs,ALL \
		-o $@ $(BEAM_OBJ) $(MODEL_A) $(ENGINE_A) $(LIB_A) $(MODEL_LIBS)

$(BEAM_CONSUMER): bindings/beam/test/support/arrow_consumer.c lib/common/arrow_abi.h
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) $(COMMON_CPPFLAGS) -I$(BEAM_INCLUDE) $(CFLAGS) $(WARN) -std=gnu11 -fPIC -shared -pthread -o $@ $<

$(BEAM_PRELOADS): $(B)/beam/%.so: bindings/beam/test/support/%.c
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) -std=gnu11 -fPIC -shared -o $@ $<

$(BEAM_PEER): bindings/beam/test/support/peer.c $(LIB_A)
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) -std=gnu11 -pthread -o $@ $< $(LIB_A) $(LIB_LIBS)

.PHONY: beam beam-nif beam-check beam-dialyzer beam-package beam-package-check
