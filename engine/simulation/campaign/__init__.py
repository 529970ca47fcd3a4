"""Many seeds: whole jobs in virtual time with drawn faults, and oracles that judge each run."""
