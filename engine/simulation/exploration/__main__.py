"""Run `exploration.py` as `python -m headrace.engine.simulation.exploration`."""

import sys

from .exploration import main

if __name__ == "__main__":
    sys.exit(main())
