"""Directories as users name them: paths and URLs."""

from __future__ import annotations

import os


def absolute(place: str) -> str:
    """The same place for a process that stands in another folder: a path from the root, a URL as it is."""
    return place if "://" in place else os.path.abspath(place)
