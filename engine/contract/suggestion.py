"""The second half of a helpful error: "did you mean ...", proposals of names, and word lists as
people write them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Say which of `choices` the user probably meant, or list them all.

    Returns:
        A clause without a leading comma: "did you mean 'amount'?" or "choose from 'a' and 'b'", or
        "there is none to choose from".
    """
    known = list(choices)
    close = get_close_matches(word, known, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    if not known:
        return "there is none to choose from"
    return f"choose from {quoted(known)}"


def name_of_class(class_: type) -> str:
    """Propose a name for an operator that runs `class_`: "late-orders" for `LateOrders`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", class_.__name__).lower()


def quoted(words: Iterable[str]) -> str:
    """Join words as "'a', 'b' and 'c'"."""
    parts = [repr(word) for word in words]
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
