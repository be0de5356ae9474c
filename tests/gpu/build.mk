# SPDX-License-Identifier: MIT
#
# On a real GPU, with the driver that the loader finds. GPU_PYTHON is one that has PyTorch, CuPy or
# JAX for CUDA, where those are to be tried too.

GPU_PYTHON ?= $(VPYTHON)
GPU_RUN = LD_LIBRARY_PATH=$(CURDIR)/$(B):$$LD_LIBRARY_PATH $(GPU_PYTHON)

check-gpu: $(B)/libtmesh-cuda.so $(B)/libtmesh-cuda-torch.so $(VENV)/tmesh.stamp ## checks that need an NVIDIA GPU
	@$(GPU_RUN) tests/gpu/check.py

bench-gpu: $(B)/libtmesh-cuda.so $(VENV)/tmesh.stamp ## measurements that need an NVIDIA GPU
	@$(GPU_RUN) tests/gpu/bench.py

.PHONY: check-gpu bench-gpu
