"""Keyed state that a snapshot can read while work changes it. Storing and redistributing snapshots happens in other rooms."""
