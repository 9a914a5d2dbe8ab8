# Needs Python 3.11 to 3.13, pip and make; everything else is installed into .venv (Java and uv too).
#   make demo | demo-cluster | test | test-all | lint | docs | wheel | bench | gpu-check     EXTRA=gpu: the CUDA builds instead
#   PYTHON=python3.12 VENV=.venv-3.12: an environment of another Python beside the first

PYTHON ?= python3
EXTRA ?= cpu
VENV := .venv
BIN := $(VENV)/bin
LOCK := requirements/$(EXTRA).lock
UV_VERSION := 0.13.8

# uv does not read pip's settings: it is handed pip's certificate and pip's extra place to look for wheels.
PIP_SETTING = $(shell $(PYTHON) -m pip config get global.$(1) 2>/dev/null)
CERTIFICATE := $(or $(SSL_CERT_FILE),$(PIP_CERT),$(call PIP_SETTING,cert))
FIND_LINKS := $(or $(UV_FIND_LINKS),$(PIP_FIND_LINKS),$(call PIP_SETTING,find-links))
UV := $(if $(CERTIFICATE),SSL_CERT_FILE="$(CERTIFICATE)") UV_LINK_MODE=copy $(BIN)/uv
# PyPI's torch for Linux is the CUDA build. The CPU build comes from the extra place, else from PyTorch's own index.
TORCH_INDEX := --extra-index-url https://download.pytorch.org/whl/cpu --index-strategy unsafe-best-match
SOURCE_cpu := $(if $(FIND_LINKS),--find-links "$(FIND_LINKS)",$(TORCH_INDEX))
SOURCE_gpu :=
OVERRIDES_cpu := --overrides requirements/cpu-overrides.txt
OVERRIDES_gpu :=

# Processes share what one of them has compiled, also where the environment forbids Python to write it: the tests start
# hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=

# One stamp for each state of the lock: a changed lock, extra or project file installs again, nothing else does.
STAMP := $(VENV)/.installed-$(EXTRA)-$(shell cat $(LOCK) pyproject.toml 2>/dev/null | cksum | cut -d ' ' -f 1)

.PHONY: setup lock demo demo-cluster test test-all lint format docs wheel installed-wheel bench gpu-check clean

# An environment keeps the Python that it was made with, so a PYTHON that is named has to be that one.
setup: $(STAMP)
	@test "$(origin PYTHON)" = file || test "$$($(PYTHON) -V)" = "$$($(BIN)/python -V)" \
		|| { echo "error: $(VENV) has $$($(BIN)/python -V); add a folder for $(PYTHON): VENV=.venv-3.12" >&2; exit 1; }

$(BIN)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
		|| { echo "error: $(PYTHON) is not Python 3.11, 3.12 or 3.13; run make PYTHON=python3.12" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv==$(UV_VERSION)

# Bytecode is compiled once here: where Python may not write it, each of Ray's processes would compile torch anew.
$(STAMP): | $(BIN)/uv
	$(UV) pip sync --quiet --require-hashes --compile-bytecode --python $(BIN)/python $(SOURCE_$(EXTRA)) $(LOCK)
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --editable .
	rm -f $(VENV)/.installed-*
	touch $@

# All versions of Python need the same packages, so one lock serves all. A folder of wheels may lack torch for some of
# them: uv keeps the hashes that the lock has, until torch's version changes. Then compile from PyTorch's index.
COMPILE = $(UV) pip compile pyproject.toml --quiet --extra dev --extra mlflow --python-version 3.11 --no-annotate --generate-hashes \
	--custom-compile-command "make lock" --overrides requirements/overrides.txt

lock: $(STAMP)
	$(COMPILE) --extra cpu $(OVERRIDES_cpu) $(SOURCE_cpu) --output-file requirements/cpu.lock
	$(COMPILE) --extra gpu $(SOURCE_gpu) --output-file requirements/gpu.lock

demo: setup
	$(BIN)/rayrec demo

# All of the stack, on a Ray cluster of two nodes of this machine.
demo-cluster: setup
	$(BIN)/rayrec demo --on ray

# Unit tests write thousands of small files, which takes a sixth less time in memory, where there is a gigabyte.
IN_MEMORY = $(shell test "$$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 1000000 && echo TMPDIR=/dev/shm)

UNIT_TESTS = $(IN_MEMORY) $(BIN)/python -m pytest --numprocesses=2 --dist=worksteal -p no:logging tests/unit
# Two processes: each has a Ray session, and waits for processes to start.
OTHER_TESTS = $(BIN)/python -m pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder --durations=10 \
	tests/integration tests/end_to_end

# What every change has to pass: all tests but those with the marker `minutes`. Of the tests that kill something or need
# several nodes, one of each kind has no marker.
test: setup
	$(UNIT_TESTS)
	$(OTHER_TESTS) -m "not minutes"

# Every test, which takes an hour and more on two cores; then Python 3.12, where there is one.
test-all: setup
	$(UNIT_TESTS)
	$(OTHER_TESTS)
	.ci/python-3.12

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site, in site/: a browser reads it from there, without a server or a network. A warning is an error, unless
# mkdocs is told to be quiet.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# The wheel, in DIST; and a new environment, INTO, of the wheel and what it needs alone, at the versions of the lock.
DIST ?= dist
wheel: $(BIN)/uv
	$(UV) build --quiet --wheel --python $(BIN)/python --out-dir $(DIST)

installed-wheel: wheel
	$(UV) venv --quiet --python $(BIN)/python $(INTO)
	$(UV) pip install --quiet --compile-bytecode --python $(INTO)/bin/python $(SOURCE_$(EXTRA)) $(OVERRIDES_$(EXTRA)) \
		--constraints $(LOCK) "$$(echo $(DIST)/rayrec-*.whl)[$(EXTRA)]"

RECIPE ?= dlrm-criteo-debug
DATA ?= demo/dataset
bench: setup
	for what in train inference; do $(BIN)/rayrec benchmark $$what $(RECIPE) --data $(DATA) || exit 1; done

# Also runs where nothing is installed but torch and Triton: `make gpu-check PYTHON=python3`.
gpu-check:
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m benchmarks.gpu_check

clean:
	rm -rf demo build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
