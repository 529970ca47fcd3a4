# Every goal makes .venv first, when it is missing or older than pyproject.toml.
# Needs Python 3.11 or newer; Java is found, or installed into .venv by pip.

PYTHON ?= python3
#: Seeds of `make simulate`: FIRST:LAST, or how many from a seed drawn at random (1,000).
#: Seeds of `make rescale-matrix`: how many of each pair.
SEEDS ?=
#: Of `make services` and `make services-stop`: names, as in SERVICES="kafka s3"; empty: all.
SERVICES ?=

# Where it is set, every process compiles all it imports, and pytest rewrites all tests.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
READY := .venv/ready
#: One more than there are cores: many tests wait for other processes.
PROCESSES := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
#: tests/conftest.py says which process runs what.
PYTEST := $(BIN)/pytest --numprocesses=$(PROCESSES) --dist=loadgroup --no-loadscope-reorder
MATRIX := $(BIN)/python -m headrace.engine.simulation.campaign.matrix $(if $(SEEDS),--seeds $(SEEDS))
#: Exits with 3 when there is no Java that Spark runs on.
FIND_JAVA := from headrace.engine.spark.java import has_java; exit(0 if has_java() else 3)

.PHONY: demo test spark services services-stop test-services test-browser screenshots \
    simulate explore rescale-matrix matrix-edges matrix-operators matrix-chains mutants bench faults \
    check check-format check-lint check-tidy check-imports check-types

demo: $(READY)
	$(BIN)/headrace demo

# All tests, and the campaigns in short; some minutes on two cores. Campaigns have goals of their
# own: simulate, rescale-matrix, mutants, explore, faults.
test: $(READY)
	$(PYTEST)

# What takes Java machines of its own: the demonstration, a cluster whose parts die, and more.
spark: $(READY)
	$(PYTEST) tests/engine/cli tests/spark/test_standalone.py tests/spark/test_local_cluster.py \
	    tests/faults/test_sparks.py -m spark --long

# Kafka (by Maven), PostgreSQL (by apt-get) and an object store (by pip) on the loopback address;
# found where they run already. Ports and pids lie in .services/.
services: $(READY)
	$(BIN)/python -m tests.services start $(SERVICES)

services-stop: $(READY)
	$(BIN)/python -m tests.services stop $(SERVICES)

# Tests against real services, which are started before and stopped after, unless they ran.
test-services: $(READY)
	$(BIN)/pytest -m services --services

# The page in a real chromium (by apt-get), over real jobs; some minutes.
test-browser: $(READY)
	@$(BIN)/python -m pip install --quiet --group browser
	$(BIN)/pytest -m browser --browser

# The pictures of docs/images, from a real job in a real chromium.
screenshots: $(READY)
	@$(BIN)/python -m pip install --quiet --group browser
	$(BIN)/python -m tests.browser.screenshots docs/images

# What can be said without running the product: five checks side by side, each to its end.
check: $(READY)
	@$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=target \
	    check-types check-tidy check-imports check-lint check-format

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

# Whole jobs under faults. Without SEEDS the range is drawn and printed; 1,000 seeds take about a
# minute on two cores.
simulate: $(READY)
	$(BIN)/python -m headrace.engine.simulation.campaign $(if $(SEEDS),--seeds $(SEEDS))

# Every parallelism from 1 to 8 to every other, over every kind of edge, into every kind of
# operator, then over forward edges behind keyed tasks; about half an hour each on two cores, with
# SEEDS=10 two minutes.
rescale-matrix: matrix-edges matrix-operators matrix-chains

matrix-edges: $(READY)
	$(MATRIX)

matrix-operators: $(READY)
	$(MATRIX) --operators

matrix-chains: $(READY)
	$(MATRIX) --chains

# Planted bugs, which the simulation must find, without being told where at first.
mutants: $(READY)
	$(PYTEST) tests/simulation -m mutant --long

# Saves the figures in .benchmarks and compares them with the last saved ones.
bench: $(READY)
	$(BIN)/pytest --override-ini addopts=--import-mode=importlib bench \
	    --override-ini 'python_files=test_*.py' --benchmark-only --benchmark-autosave \
	    $(if $(wildcard .benchmarks/*/*.json),--benchmark-compare)

# Kills real processes, at length.
faults: $(READY)
	$(BIN)/pytest tests/faults --long

$(READY): pyproject.toml
	@echo "setting up .venv (a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install -qq --editable '.[spark]' --group dev
	@$(BIN)/python -c '$(FIND_JAVA)' || \
	    { test $$? -eq 3 && $(BIN)/python -m pip install --quiet --group java; }
	@touch $@
