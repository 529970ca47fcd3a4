"""Checkpoints after they were taken: metadata, paths, the catalog, the tile check, and who starts from what. Pure: storage is a protocol here."""
