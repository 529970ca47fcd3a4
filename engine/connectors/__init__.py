"""Sources and sinks: files, generated records, memory.

Offsets and transactions are plain data that travels in checkpoints.
"""
