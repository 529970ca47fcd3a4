"""Tables of data files behind a log: Delta and Iceberg. Workers write files, one place commits."""
