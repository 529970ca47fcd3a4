"""Random jobs for the simulation: graphs, sources, operators, and a sequential reference of
outputs.
"""
