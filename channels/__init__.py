"""Bytes and barriers between subtasks: pure data structures and machines, no I/O."""
