"""From streams to an execution plan: graph, validation, chaining, numbering.

No I/O, and nothing of one attempt: a plan outlives all attempts.
"""
