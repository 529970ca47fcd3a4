"""Directories in users' spelling: paths and URLs."""

from __future__ import annotations

import os


def absolute(place: str) -> str:
    """Return the place for a process in another working directory: a path from the root, a URL as
    it is.
    """
    return place if "://" in place else os.path.abspath(place)
