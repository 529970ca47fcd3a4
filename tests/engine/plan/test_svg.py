"""The picture of a plan: well-formed, every task and edge in it, names escaped."""

from __future__ import annotations

from xml.etree import ElementTree

import headrace as hr
from headrace.engine.plan.svg import svg

NS = {"s": "http://www.w3.org/2000/svg"}


def drawn(job: hr.Job) -> ElementTree.Element:
    return ElementTree.fromstring(svg(job.plan()))


def job_of(name: str) -> hr.Job:
    rows = hr.read.sequence(10, keys=2, name=name)
    counts = rows.key_by("key").aggregate(n=hr.count(), name="counts")
    return hr.Job("drawn", counts.rebalance().write.blackhole(name="out"), parallelism=2)


def texts(picture: ElementTree.Element) -> list[str]:
    return ["".join(text.itertext()) for text in picture.findall("s:text", NS)]


def test_every_task_is_a_box_and_every_edge_an_arrow() -> None:
    picture = drawn(job_of("rows"))
    assert texts(picture) == [
        "hash",
        "rebalance",
        *("rows", "2 subtasks"),
        *("counts", "2 subtasks"),
        *("out", "2 subtasks"),
    ]
    # Sources and sinks are round.
    assert [box.get("rx") for box in picture.findall("s:rect", NS)] == ["23", "4", "23"]
    paths = [path.get("class") for path in picture.findall("s:path", NS)]
    assert paths == [None, "tip", None, "tip"]


def test_names_are_escaped_and_long_ones_cut_with_the_whole_as_a_tooltip() -> None:
    whole = "<script>alert('1')<script> & more than fits"
    picture = drawn(job_of(whole))
    (tooltip,) = picture.findall("s:text/s:title", NS)
    assert tooltip.text == whole
    (shown,) = [text for text in picture.findall("s:text", NS) if len(text)]
    assert tooltip.tail == f"{whole[:33]}…"
    assert len(shown) == 1
    assert not list(picture.iter(f"{{{NS['s']}}}script"))


def test_a_back_edge_is_dashed() -> None:
    rows = hr.read.sequence(10, keys=2, name="rows")

    def body(again: hr.Stream) -> tuple[hr.Stream, hr.Stream]:
        more = again.rebalance().map_batches(lambda batch: batch, name="more")
        return more, more

    looped = rows.iterate(body, name="loop")
    picture = drawn(hr.Job("looped", looped.write.blackhole(name="out"), parallelism=2))
    paths = [path.get("class") for path in picture.findall("s:path", NS)]
    assert paths.count("dashed") == 1


def test_colours_follow_the_text_around_or_the_system() -> None:
    text = svg(job_of("rows").plan())
    assert "prefers-color-scheme:dark" in text
    assert "currentColor" in text
    assert "url(" not in text
    assert text.count("http") == 1  # the name of the namespace
