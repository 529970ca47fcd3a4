"""Pure machines inside a worker: subtask, cuts, attempt, worker.

Events in, ordered effects out; no thread, clock, socket or file.
"""
