"""Keyed state in memory, in columns or dictionaries, that can be snapshot while work changes it. Storing and redistributing it is done elsewhere."""
