"""Pages of runs: their address is taken before anything starts."""

from __future__ import annotations

import socket

import pyarrow as pa
import pytest

import headrace as hr
from headrace.engine.contract.errors import AddressUnreachable
from headrace.engine.contract.options import RunOptions
from headrace.engine.session.pages import place_of_page


def job_of(**options: object) -> hr.Job:
    rows = hr.read.batches([pa.record_batch({"id": [1]})], name="rows")
    return hr.Job("shop", rows.write.collect(name="out"), parallelism=1, **options)  # type: ignore[arg-type]


def test_without_the_option_there_is_no_page() -> None:
    with place_of_page(RunOptions()) as place:
        assert place is None


def test_a_job_whose_page_has_no_place_does_not_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        job = job_of(ui=taken.getsockname()[1])
        with pytest.raises(AddressUnreachable, match="the page cannot listen at"):
            job.start("threads")


def test_a_job_that_does_not_start_gives_its_place_up() -> None:
    with pytest.raises(RuntimeError), place_of_page(RunOptions(ui="127.0.0.1:0")) as place:
        assert place is not None
        port = place.socket.getsockname()[1]
        raise RuntimeError
    socket.create_server(("127.0.0.1", port)).close()


def test_a_page_is_told_and_ends_with_its_job(capsys: pytest.CaptureFixture[str]) -> None:
    handle = job_of(ui="127.0.0.1:0").start("threads")
    assert handle.page is not None
    assert capsys.readouterr().err.splitlines() == [
        f"headrace: the page of job 'shop' is {handle.page}"
    ]
    port = int(handle.page.partition("/#")[0].rpartition(":")[2])
    assert handle.wait(60).collected["out"].num_rows == 1
    handle.close_page()
    socket.create_server(("127.0.0.1", port)).close()
