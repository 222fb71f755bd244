# Every target works as the first command of a fresh clone: it makes the virtual environment when it is missing.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEV    := $(VENV)/.installed-dev
TESTS  := $(VENV)/.collected
IMAGE  ?= koord-numa:dev
REPOSITORY ?= koord-numa/koord-numa

# Where the environment forbids byte code, as containers often do, each process that tests start would compile the package anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo test check lint types imports unit system fix bench chaos chaos-round docs docs-output dist krew vex chart schemas lock image cluster-check version clean

help:  ## Show what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml setup.py $(wildcard koord_numa/wire/proto/*.proto)
	$(PYTHON) -c 'import sys; sys.exit("koord-numa needs Python 3.11 or newer, found " + sys.version.split()[0]) if sys.version_info < (3, 11) else 0'
	@echo "Installing koord-numa and its dependencies into $(VENV), only the first time and after changes of them ..."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(DEV): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

setup: $(DEV)  ## Make the virtual environment and install everything in it

demo: $(STAMP)  ## Fill a simulated rack through the real operator and show the result
	$(BIN)/koord-numa demo $(ARGS)

test: check  ## The same as check

check: $(DEV)  ## Lint, types, import contracts and tests, without those of make system and make chaos-round
	$(MAKE) --no-print-directory --jobs 2 lint types imports unit # types and tests side by side

lint: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(DEV)
	$(BIN)/mypy

imports: $(DEV)
	$(BIN)/lint-imports --no-cache

$(TESTS): $(DEV)
	@echo "Compiling the tests once, only in a fresh clone: each worker would else ..."
	-$(BIN)/python -m pytest --collect-only -qq > /dev/null
	@touch $@

unit: $(TESTS)  ## Only the tests of make check
	$(BIN)/python -m compileall -q koord_numa # once, or in a fresh clone each worker would
	$(BIN)/python -m pytest -n 3 --dist worksteal --ignore tests/chaos -m "not e2e" $(ARGS) # for two processors: some of the time is waiting

system: $(DEV)  ## Tests of the whole operator, of its commands as processes and of the page in Chromium (some two minutes)
	$(BIN)/python -m pytest -n 3 --dist worksteal --ignore tests/chaos -m "e2e or rights" --all-rights $(ARGS)

fix: $(DEV)  ## Format, and repair what ruff can repair
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(DEV)  ## Measure every figure beside its target (ONLY=name for one, JSON=file to keep them)
	$(BIN)/python -m compileall -q koord_numa # as an installed package is: a start would else read its source
	$(BIN)/python -m bench $(if $(ONLY),--only $(ONLY)) $(if $(JSON),--json $(JSON))

chaos: $(DEV)  ## Long runs of random faults and of hostile objects (some forty minutes)
	$(BIN)/python -m pytest tests/chaos tests/e2e/test_gangs.py tests/kubelets -n 2 --dist worksteal --chaos-seeds 8 --chaos-pods 1500 --hostile-objects 100000 --law-examples 2000 $(ARGS)
	$(BIN)/python -m pytest tests/chaos -n 2 --dist worksteal --chaos-seeds 4 --chaos-pods 5000 $(ARGS)
	$(BIN)/python -m pytest tests/failure_modes/test_fair_shares.py -n 2 -k nothing_grows --lifecycles 100000 $(ARGS)
	$(BIN)/python -m pytest tests/engine/preemption/test_wakeups.py -n 2 --dist worksteal --stories 10000 $(ARGS)
	$(BIN)/python -m pytest tests/failure_modes/test_growth.py -n 1 --shapes 60000 $(ARGS)
	$(BIN)/python -m pytest tests/core tests/engine tests/wire tests/sandbox -n 2 --dist worksteal --hypothesis-profile random --law-examples 200 $(ARGS)

chaos-round: $(DEV)  ## One shorter round of it, and more examples of the kubelet's laws than make test (some six minutes)
	$(BIN)/python -m pytest tests/chaos tests/e2e/test_gangs.py -n 2 --dist worksteal --chaos-seeds 2 --chaos-pods 1500 --hostile-objects 4000 $(ARGS)
	$(BIN)/python -m pytest tests/core/kubelet tests/kubelets tests/engine/preemption/test_wakeups.py tests/engine/queue/test_wake_ups.py tests/wire/pod/test_bound_text.py -n 2 --dist worksteal --law-examples 60 --stories 1000 $(ARGS)

docs: $(DEV)  ## Build the documentation site, strictly, into build/site
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	$(BIN)/mkdocs build --strict --quiet

docs-output: $(DEV)  ## Write anew what commands print, and what the code says, into the documents
	$(BIN)/python docs/tools/reference.py
	$(BIN)/python deploy/tools/chart.py --schema
	$(BIN)/python docs/tools/regenerate.py
	$(BIN)/python docs/tools/screenshots.py

dist: $(DEV)  ## Source archive, wheel, kubectl plugin with its manifest, and the list of what an installation contains (SBOM), into build/dist
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '.[release]'
	rm -rf build/dist
	$(BIN)/python -m build --outdir build/dist
	$(MAKE) krew vex
	rm -rf build/sbom && $(PYTHON) -m venv build/sbom && build/sbom/bin/python -m pip install --quiet --disable-pip-version-check build/dist/*.whl
	$(BIN)/cyclonedx-py environment build/sbom/bin/python --pyproject pyproject.toml --output-reproducible --output-file build/dist/sbom.json

krew:  ## kubectl plugin archives, which need only Python, and their Krew manifest, into build/dist (REPOSITORY=owner/name on GitHub)
	$(PYTHON) deploy/tools/krew.py build/dist $(REPOSITORY)

vex:  ## Statements about known vulnerabilities of the dependencies (OpenVEX, from deploy/vex.toml), into build/dist
	$(PYTHON) deploy/tools/vex.py build/dist/vex.openvex.json $(REPOSITORY)

chart: $(DEV)  ## Lint, render and pack the Helm chart by Helm's library, into build/chart
	$(BIN)/python deploy/tools/chart.py build/chart

schemas: $(DEV)  ## Write the schemas of built-in kinds for the sandbox anew, from the client of Kubernetes
	$(BIN)/python deploy/tools/schemas.py

lock: $(DEV)  ## Write deploy/requirements.lock, from which the image is installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip compile pyproject.toml --quiet --universal --generate-hashes --no-header --custom-compile-command "make lock" --upgrade --output-file deploy/requirements.lock
	sed -i '1i # Written by "make lock": every dependency of an installation, with the hashes of its archives. The image is installed from it.' deploy/requirements.lock

image:  ## Build the image with buildah or docker (IMAGE=name:tag)
	if command -v buildah >/dev/null; then buildah build -t $(IMAGE) -f deploy/Dockerfile .; else docker build -t $(IMAGE) -f deploy/Dockerfile .; fi

cluster-check: $(STAMP)  ## Apply the pods of examples/kind to the cluster of kubectl, and check where they go
	$(BIN)/python deploy/tools/cluster_check.py $(ARGS)

version:  ## Print the version
	@$(PYTHON) -c 'import re; print(re.search(r"__version__ = \"(.*)\"", open("koord_numa/__init__.py").read())[1])'

clean:  ## Remove the virtual environment and caches
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis
