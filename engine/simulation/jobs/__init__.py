"""Random jobs for the simulation: graphs, sources, operators, and the output that a sequential reference expects of them."""
