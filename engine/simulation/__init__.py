"""The product's machines in a seeded simulation: virtual clock, failing network and storage.

No threads, and no machine of its own.
"""
