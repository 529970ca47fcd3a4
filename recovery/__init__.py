"""Complete checkpoints: metadata, paths, the catalog, the tile check, and the assignment of state
to subtasks.

Pure: storage is a protocol here.
"""
