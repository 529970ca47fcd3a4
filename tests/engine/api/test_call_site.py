"""The call site: the user's line, not ours."""

from __future__ import annotations

import inspect

import pyarrow as pa

from headrace.engine.api.call_site import call_site
from headrace.engine.api.read import batches


def test_the_line_of_the_caller_is_named() -> None:
    frame = inspect.currentframe()
    assert frame is not None
    site, line = call_site(), frame.f_lineno
    assert site == f"test_call_site.py:{line}"


def test_frames_of_headrace_are_passed_over() -> None:
    frame = inspect.currentframe()
    assert frame is not None
    rows = pa.record_batch({"a": [1]})
    stream, line = batches([rows], name="rows"), frame.f_lineno
    assert stream.inputs[0].node.built_at == f"test_call_site.py:{line}"
