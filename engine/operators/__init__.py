"""Code inside a subtask: maps, aggregates, windows, joins, processors.

Operators know neither channels nor barriers.
"""
