"""Many seeds: whole jobs in virtual time with faults drawn from the seed, and oracles that judge
each run.
"""
