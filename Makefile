# Every goal makes .venv first, when it is missing or older than pyproject.toml.
# Needs Python 3.11 or newer; Java is found, or installed into .venv by pip.

PYTHON ?= python3
#: Seeds of `make simulate`, FIRST:LAST.
SEEDS ?= 0:1000

BIN := .venv/bin
READY := .venv/ready
#: Exits with 3 when there is no Java that Spark runs on.
FIND_JAVA := from headrace.engine.spark.java import has_java; exit(0 if has_java() else 3)

.PHONY: demo test simulate explore rescale-matrix bench faults \
    check check-format check-lint check-tidy check-imports check-types

demo: $(READY)
	$(BIN)/headrace demo

# All tests, the slow ones too.
test: $(READY)
	$(BIN)/pytest

# What can be said without running the product. `make -k check` goes on after a finding.
check: check-format check-lint check-tidy check-imports check-types

check-format: $(READY)
	$(BIN)/ruff format --check

check-lint: $(READY)
	$(BIN)/ruff check

check-tidy: $(READY)
	$(BIN)/pytest --quiet tests/test_tidy.py

check-imports: $(READY)
	$(BIN)/lint-imports

check-types: $(READY)
	$(BIN)/mypy

# Every interleaving of small jobs; about half an hour on one core.
explore: $(READY)
	$(BIN)/python -m headrace.engine.simulation.exploration

# 1,000 seeds take about a minute on two cores.
simulate: $(READY)
	$(BIN)/python -m headrace.engine.simulation.campaign --seeds $(SEEDS)

# Every parallelism from 1 to 8 to every other, over every kind of edge; about half an hour on two cores.
rescale-matrix: $(READY)
	$(BIN)/python -m headrace.engine.simulation.campaign.matrix

# Saves the figures in .benchmarks and compares them with the last saved ones.
bench: $(READY)
	$(BIN)/pytest --override-ini addopts=--import-mode=importlib bench \
	    --override-ini 'python_files=test_*.py' --benchmark-only --benchmark-autosave \
	    $(if $(wildcard .benchmarks/*/*.json),--benchmark-compare)

faults: $(READY)
	$(BIN)/pytest tests/faults --long

$(READY): pyproject.toml
	@echo "setting up .venv (a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install -qq --editable . --group dev
	@$(BIN)/python -c '$(FIND_JAVA)' || \
	    { test $$? -eq 3 && $(BIN)/python -m pip install --quiet --group java; }
	@touch $@
