# Everything is installed into .venv, with the versions and hashes of constraints.txt.

PYTHON ?= python3
# The size that `make book` measures; CI takes the smallest.
PROFILE ?= quick
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Every version is named, so each of two cores can install half of what it reads here.
INSTALL := awk '/^[a-zA-Z0-9]/ { n++ } n { print > (".venv/part." n % 2 ".txt") }' \
	&& printf '%s\n' .venv/part.0.txt .venv/part.1.txt \
	| xargs -n 1 -P 2 $(PIP) install --no-compile --no-deps --require-hashes --requirement
# The book imports a third of all there is, and that is compiled as it is imported; in our tests
# the warnings of others' code would then be errors.  Leaving it to pip uses one core.
COMPILE := $(BIN)/python -W ignore -m compileall -qq -j 0 .venv/lib || true
UV_COMPILE := pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-header --no-annotate --no-emit-index-url --no-emit-find-links
MORE_MARK := \# For the tests and for sweeps over hosts
LAB_MARK := \# Only for JupyterLab

.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help install book reference verdicts test test-thorough test-all test-lab test-root lab strip bench bench-readme bench-peers check lint releases tools constraints clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*##/\1:/p' Makefile | awk -F: '{ printf "make %-12s %s\n", $$1, $$2 }'

install: .venv/more  ## install everything but JupyterLab into .venv

.venv/base: constraints.txt
	@command -v $(PYTHON) > /dev/null || { \
	  echo "There is no $(PYTHON) here: install Python 3.11 or newer, or name one, as in make PYTHON=/path/to/python3."; \
	  exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed, and $(PYTHON) is $$($(PYTHON) --version 2>&1): name another, as in make PYTHON=/path/to/python3.11."; \
	  exit 1; }
	@echo "Installing into .venv ..."
	@$(PYTHON) -m venv --clear .venv
	@# Else one of the two below warns of what the other one is removing.
	@$(PIP) --quiet --quiet uninstall --yes setuptools
	@sed '/^$(MORE_MARK)/,$$d' constraints.txt | $(INSTALL)
	@touch $@

.venv/project: .venv/base pyproject.toml
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

.venv/more: .venv/project
	@echo "Adding what the tests and sweeps over hosts need ..."
	@sed '1,/^$(MORE_MARK)/d; /^$(LAB_MARK)/,$$d' constraints.txt | $(INSTALL)
	@$(COMPILE)
	@touch $@

.venv/lab: .venv/project
	@echo "Adding JupyterLab ..."
	@$(PIP) install --no-compile --require-hashes --requirement constraints.txt
	@$(COMPILE)
	@touch $@

book: .venv/project  ## measure every study at quick size and build the report, _build/html/index.html
	$(BIN)/pgstudies run all --profile $(PROFILE)
	$(BIN)/pgstudies book

reference: install  ## measure one set of reference runs, an hour and a quarter with nothing else running; REPO=DIR is a clone of PostgreSQL
	@test -z "$$(git status --porcelain)" || { echo "Commit your changes first: a reference record is of committed code."; exit 1; }
	PGSTUDIES_RECORDS=$(CURDIR)/_build/reference $(BIN)/pgstudies run all --profile standard $(if $(REPO),--repo $(REPO))
	cp --recursive --no-target-directory _build/reference data/records
	rm --recursive _build/reference
	@echo "The set is in data/records: commit it, with git add data/records."

# Counts of the user would judge as well, so it reads none of his records.
verdicts: install  ## judge the reference records anew, after a change of a notebook or of the analysis, and draw README's picture
	@PGSTUDIES_RECORDS=$(CURDIR)/_build/no-records $(BIN)/python -c 'from pgapps.scorecard.judging import keep_reference; print(*keep_reference(), sep="\n")'
	@$(BIN)/python -c 'from pgstudies.charts.claims import claims_chart; from pgstudies.records.reading import read_record; from pgstudies.records.verdicts import reference_verdicts as told; \
	  claims_chart(told("hash_index").verdicts, read_record(told("hash_index").record), None).properties(padding={"left": 40, "top": 4, "right": 16, "bottom": 4}).save("book/_static/example.svg")'

# The tests measure on servers of their own, and keep their records apart from the user's.
# Three workers for two cores, as tests wait for servers as well.
TESTS := $(BIN)/python -m pytest --numprocesses 3 --dist loadscope --book --durations 30 --durations-min 5
test test-thorough test-all test-lab test-root: export PGSTUDIES_SERVER = embedded
test test-thorough test-all test-lab test-root: export PGSTUDIES_RECORDS = $(CURDIR)/_build/records-of-tests
test test-thorough test-all test-lab test-root: export PGSTUDIES_REPLAY =
test: install tools lint  ## check style and types, run the tests on two cores, build the book
	$(TESTS) -m "not thorough and not slow and not lab"
	$(BIN)/python -m pytest --nbval-lax --nbval-current-env notebooks/_template/_template.ipynb
	@$(LIST_TOOLS)

test-thorough: install tools  ## after make test: what takes longer, and guards little more
	$(TESTS) -m "thorough and not slow and not lab"

test-all: install tools lint  ## all of it, and what takes minutes: every release, every study at quick size
	$(TESTS) -m "not lab"
	@$(LIST_TOOLS)

test-lab: .venv/lab tools  ## drive a study in JupyterLab, as a reader would
	$(BIN)/python -m pytest -m lab tests/lab

test-root: install tools  ## what takes root, beside what any account can run
	$(TESTS) -m "root and not slow"

# The rooms whose tests start no server.
CHECKED := tests/analysis tests/charts tests/records tests/ground
check: lint  ## a minute: style, types, and the tests that start no server
	$(BIN)/python -m pytest --quiet --numprocesses 2 $(CHECKED) --ignore tests/ground/test_wheel.py --ignore tests/ground/test_applications.py

lint: install  ## check style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

releases: install  ## look for newer minor versions of the releases, and write them into data/releases.toml
	$(BIN)/python data/update_releases.py

lab: .venv/lab  ## open JupyterLab on the notebooks
	@echo "What you save has its outputs in it: make strip takes them out again."
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) notebooks

strip: .venv/project  ## take outputs out of the notebooks and collapse what pages hide, after JupyterLab has saved them
	$(BIN)/python -m pgapps.authoring.committed notebooks/*/*.ipynb

bench-readme: install  ## measure both commands of README in fresh clones, half an hour with nothing else running
	$(BIN)/python -m book.bench.readme

bench-peers: install  ## ask pgbench, hyperfine and compare of A=DIRECTORY and B=DIRECTORY, or A relinked; TRUTH=same or slower
	$(BIN)/python -m book.bench.peers $(A) $(B) --truth $(TRUTH)

bench: install  ## measure the harness itself
	$(BIN)/python -m book.bench.bench
	$(BIN)/python -m book.bench.fleet

# What some tests and studies need beside Python; lib/pgservers/tools.py knows what, and what for.
# In CI the absence of any is an error, elsewhere what needs it is skipped.
LIST_TOOLS := $(PYTHON) -P lib/pgservers/tools.py
tools:
	@packages=$$($(LIST_TOOLS) packages | paste -sd' ' -); \
	if [ -n "$$packages" ] && [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  echo "Installing $$packages for the tests ..."; \
	  apt-get update -qq \
	    && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$packages > /dev/null; \
	fi; \
	if [ "$$CI" = true ] && [ -n "$$($(LIST_TOOLS) packages)" ]; then $(LIST_TOOLS) >&2; exit 1; fi

constraints:  ## resolve constraints.txt anew, and pin its versions in environment.yml
	@set -e; tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	$(PYTHON) -m venv "$$tmp/venv"; "$$tmp/venv/bin/pip" --disable-pip-version-check --quiet install uv; \
	$(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
	  > "$$tmp/build.in"; \
	uv="$$tmp/venv/bin/uv"; \
	"$$uv" $(UV_COMPILE) --extra book --extra cluster --extra lab --extra test pyproject.toml "$$tmp/build.in" -o "$$tmp/all" > /dev/null; \
	"$$uv" $(UV_COMPILE) --extra book --extra cluster --extra test -c "$$tmp/all" pyproject.toml "$$tmp/build.in" -o "$$tmp/more" > /dev/null; \
	"$$uv" $(UV_COMPILE) --extra book -c "$$tmp/more" pyproject.toml "$$tmp/build.in" -o "$$tmp/base" > /dev/null; \
	beyond() { \
	  awk 'NR == FNR { if (/^[a-zA-Z0-9]/) known[$$0] = 1; next } \
	       /^[a-zA-Z0-9]/ { wanted = !($$0 in known) } wanted' "$$@"; \
	}; \
	{ echo "# Exact versions and hashes of everything that is installed; made by \`make constraints\`."; \
	  cat "$$tmp/base"; \
	  printf '\n%s: %s\n' "$(MORE_MARK)" "the book is measured and built without it."; \
	  beyond "$$tmp/base" "$$tmp/more"; \
	  printf '\n%s: %s\n' "$(LAB_MARK)" "what stands above is installed without it, because it slows imports."; \
	  beyond "$$tmp/more" "$$tmp/all"; \
	} > "$$tmp/constraints.txt"; \
	mv "$$tmp/constraints.txt" constraints.txt; \
	{ sed '/--editable/q' environment.yml; \
	  sed -n 's/^\([a-zA-Z0-9][^\]*\) \\$$/      - "\1"/p' constraints.txt | LC_ALL=C sort -u \
	  | awk '{ line[NR] = $$0; known[$$0] } END { for (n = 1; n <= NR; n++) { plain = line[n]; \
	      if (!sub(/ ;.*/, "\"", plain) || !(plain in known)) print line[n] } }'; } > "$$tmp/environment.yml"; \
	mv "$$tmp/environment.yml" environment.yml; \
	grep -c == constraints.txt | xargs printf '%s packages\n'

clean:  ## remove the book, the caches and .venv; records stay
	rm -rf _build book/studies .venv .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache lib/*.egg-info
	find lib tests notebooks -name __pycache__ -type d -prune -exec rm -rf {} +
