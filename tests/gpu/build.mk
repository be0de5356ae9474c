# SPDX-License-Identifier: MIT
#
# On a real GPU, with the driver that the loader finds. Set GPU_PYTHON to a Python that has PyTorch, CuPy or JAX for
# CUDA, to try those too. gpu-kit is for a machine that can build and fetch nothing. Copied there, `gpu-kit/run check`
# and `gpu-kit/run bench` are the same.

GPU_PYTHON ?= $(VPYTHON)
GPU_KIT    := $(B)/gpu-kit
GPU_LIBS   := $(B)/libtmesh-cuda.so $(B)/libtmesh-cuda-torch.so $(B)/libtmesh-cuda-hook.so
export GPU_PYTHON

gpu-kit: $(GPU_KIT)/run ## [Package] Make the folder that check-gpu and bench-gpu need on another machine.

$(GPU_KIT)/run: $(GPU_LIBS) $(B)/tmesh-keeper $(VENV)/tmesh.stamp $(CUDA_STATIC_RUNTIME) $(wildcard tests/gpu/*.py) docs/reference/cuda.md tests/gpu/run \
		tests/gpu/build.mk
	@rm -rf $(GPU_KIT) && mkdir -p $(GPU_KIT)
	cp -L $(B)/libtmesh.so.0 $(B)/libtmesh-cuda.so.0 $(filter-out %/libtmesh-cuda.so,$(GPU_LIBS)) \
		$(B)/tmesh-keeper $(CUDA_STATIC_RUNTIME) $(GPU_KIT)
	cp -r $$($(VPYTHON) -P -c 'import os, tmesh; print(os.path.dirname(tmesh.__file__))') $(GPU_KIT)/tmesh
	find $(GPU_KIT) -name __pycache__ -exec rm -r {} +
	cp tests/gpu/*.py docs/reference/cuda.md $(GPU_KIT)
	$(PYTHON) -B tests/gpu/libraries.py $(GPU_KIT) $(CC)
	cp tests/gpu/run $(GPU_KIT)

check-gpu: gpu-kit ## [Test] Run the checks that need an NVIDIA GPU.
	@$(GPU_KIT)/run check

bench-gpu: gpu-kit ## [Measure] Measure on an NVIDIA GPU.
	@$(GPU_KIT)/run bench

# Both on the stand-in for the driver, and on stand-ins for frameworks and tools: that tests the
# tests, and is no proof of anything else.
gpu-dry-check: $(STANDIN) $(CUDA_OUT)/libcudart.so.12 gpu-kit
	@[ ! -f $(ENGINE_TEST_OUT)/libggml-standin.so ] || export TMESH_GGML=$(CURDIR)/$(ENGINE_TEST_OUT)/libggml-standin.so; \
	export TMESH_GPU_STANDIN=1 TMESH_BACKEND=memfd PATH=$(CURDIR)/tests/gpu/standin:$$PATH PYTHONDONTWRITEBYTECODE=1 \
		PYTHONPATH=$(CURDIR)/tests/gpu/standin LD_LIBRARY_PATH=$(CURDIR)/$(CUDA_OUT) GPU_PYTHON=$(VPYTHON); \
	$(GPU_KIT)/run all --budget 540 --out $(CUDA_OUT)/gpu; status=$$?; \
	$(VPYTHON) -P $(CUDA_TESTS)/kit.py $(GPU_KIT) $(CUDA_OUT)/gpu || status=1; exit $$status

.PHONY: gpu-kit check-gpu bench-gpu gpu-dry-check
