# Every goal makes .venv first, when it is missing or older than pyproject.toml.
# Needs Python 3.11 or newer; Java is found, or installed into .venv by pip.

PYTHON ?= python3
#: Seeds of `make simulate`: FIRST:LAST, or how many from a seed drawn at random (1,000).
#: Seeds of `make rescale-matrix`: how many of each pair.
SEEDS ?=
#: Of `make matrix`: versions, as in PYTHONS="3.11 3.13"; empty: all that are here.
PYTHONS ?=
#: Of `make mutants` and `make faults`: anything makes them long.
LONG ?=
#: Of `make services` and `make services-stop`: names, as in SERVICES="kafka s3"; empty: all.
SERVICES ?=

# Where it is set, every process compiles all it imports, and pytest rewrites all tests.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
READY := .venv/ready
DOCS := target/docs-venv
#: One more than there are cores: many tests wait for other processes.
PROCESSES := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
#: tests/conftest.py says which process runs what.
PYTEST := $(BIN)/pytest --numprocesses=$(PROCESSES) --dist=loadgroup --no-loadscope-reorder
MATRIX := $(BIN)/python -m headrace.engine.simulation.campaign.matrix $(if $(SEEDS),--seeds $(SEEDS))
#: Exits with 3 when there is no Java that Spark runs on.
FIND_JAVA := from headrace.engine.spark.java import has_java; exit(0 if has_java() else 3)

.PHONY: demo test spark services services-stop test-services test-browser screenshots \
    docs test-docs matrix first-minute \
    simulate explore rescale-matrix matrix-edges matrix-operators matrix-chains simulation mutants bench faults \
    check check-format check-lint check-tidy check-imports check-types

demo: $(READY)
	$(BIN)/headrace demo

# Some minutes on two cores. Without campaigns, which have goals of their own: faults, simulation,
# simulate, rescale-matrix, explore.
test: $(READY)
	$(PYTEST) -m "not kills and not simulated"

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

# The documentation as a site in target/site/html, every link followed. Its tools have an
# environment of their own.
docs: $(DOCS)/ready
	$(DOCS)/bin/python docs/build.py

$(DOCS)/ready: pyproject.toml
	@test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	@$(DOCS)/bin/python -m pip install --quiet --group docs
	@touch $@

# The tutorial followed to its end, the site built, the wheel outside the clone: two minutes each.
test-docs: $(READY)
	$(BIN)/pytest tests/docs tests/packages --long

# The wheel on each Python that is here, then with each PySpark; about a quarter of an hour for each
# Python. PYTHONS="3.12" tries one.
matrix: $(READY)
	$(BIN)/python -m tests.packages $(PYTHONS)

# From `pip install` to a newcomer's first output, timed.
first-minute: $(READY)
	$(BIN)/python -m tests.packages.first_minute

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

# Whole jobs in virtual time: each campaign in short, seeds that once failed, and planted bugs.
simulation: $(READY)
	$(PYTEST) tests/simulation

# Planted bugs, which the simulation must find: by the run that is known to, or one of a few others;
# with LONG=1 without being told where at first, a quarter of an hour.
mutants: $(READY)
	$(PYTEST) tests/simulation -m mutant $(if $(LONG),--long)

# Saves the figures in .benchmarks and compares them with the last saved ones.
bench: $(READY)
	$(BIN)/pytest --override-ini addopts=--import-mode=importlib bench \
	    --override-ini 'python_files=test_*.py' --benchmark-only --benchmark-autosave \
	    $(if $(wildcard .benchmarks/*/*.json),--benchmark-compare)

# Kills real processes; with LONG=1 many times.
faults: $(READY)
	$(PYTEST) -m kills $(if $(LONG),--long)

$(READY): pyproject.toml
	@echo "setting up .venv (a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install -qq --editable '.[spark]' --group dev
	@$(BIN)/python -c '$(FIND_JAVA)' || \
	    { test $$? -eq 3 && $(BIN)/python -m pip install --quiet --group java; }
	@touch $@
