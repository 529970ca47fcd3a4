"""The `headrace` command: arguments in, lines, tables or JSON out, and an exit code.

Whatever it does can be done from Python.
"""
