"""Parameters that every command has."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

Json = Annotated[
    bool,
    Parameter(
        name="--json", negative="", show_default=False, help="Print one JSON object per line."
    ),
]
