"""Rollback by frontiers of logical times; usable without the engine."""
