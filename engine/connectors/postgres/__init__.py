"""PostgreSQL: a sink by two-phase commit, a source by ranges of a column, over ADBC."""
