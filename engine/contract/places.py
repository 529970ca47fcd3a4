"""Directories in users' spelling: paths and URLs."""

from __future__ import annotations

import os
import re

#: User and password of a URL, also of one inside a chain or a sentence.
_CREDENTIALS = re.compile(r"(?<=://)[^/\s]*@")
#: A password among a URL's parameters, or of a database's address in pairs.
_PASSWORD = re.compile(r"(\b(?:ssl)?password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&'\"]+)", re.IGNORECASE)


def redacted(text: str) -> str:
    """Return `text` with `***` for the credentials of each URL in it: for whatever is shown."""
    return _PASSWORD.sub(r"\1***", _CREDENTIALS.sub("***@", text))


def absolute(place: str) -> str:
    """Return the place for a process in another working directory: a path from the root, a URL as
    it is.
    """
    return place if "://" in place else os.path.abspath(place)
