"""In-flight data and its files: handles, segments, the log, replay.

Pure: `headrace.engine` reads and writes.
"""
