"""Keyed state in memory: dictionaries of values, rows in columns, sorted runs of records."""
