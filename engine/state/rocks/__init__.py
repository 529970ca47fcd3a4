"""Keyed state in RocksDB: rows, ranges and due times in one database.

Committed writes form layers; snapshots are hard links.
"""
