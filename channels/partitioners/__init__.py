"""Partitioners: the kinds of an edge, a file each."""
