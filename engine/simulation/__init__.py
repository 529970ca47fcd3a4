"""The product's machines under a seeded scheduler, a virtual clock, and failing network and
storage.

No threads, and no machine of its own.
"""
