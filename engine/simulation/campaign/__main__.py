"""Run `campaign.py` as `python -m headrace.engine.simulation.campaign`."""

import sys

from .campaign import main

if __name__ == "__main__":
    sys.exit(main())
