"""Pure machine beside the user's program: attempts, checkpoints, commits, restarts.

It never touches a record, a clock or a file.
"""
