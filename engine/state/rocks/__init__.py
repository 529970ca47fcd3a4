"""Keyed state in RocksDB: rows, ranges and due times in one database, layers of committed
writes, snapshots by hard links.
"""
