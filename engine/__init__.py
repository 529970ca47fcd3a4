"""The runtime: whatever does I/O, and the machines of subtask, worker and coordinator that it
drives. Users import `headrace`, not this.
"""
