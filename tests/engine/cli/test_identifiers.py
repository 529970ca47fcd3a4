from __future__ import annotations

from pathlib import Path

from headrace.engine.cli.identifiers import identifiers_job, plain_count, written


def test_the_job_counts_what_plain_python_counts(tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (library / "a.py").write_text("def one(two):\r\n    return two + _three # größe\n")
    (library / "b.py").write_bytes(b"caf\xe9 one\xff\n\x0cone = 1\nno_line_end")
    (library / "c.py").write_bytes(b"")
    job = identifiers_job(library, tmp_path / "out", tmp_path / "checkpoints", pause_s=0.0)
    job.run("threads")
    expected = plain_count(library)
    assert expected["one"] == 3
    assert expected["größe"] == 1
    assert written(tmp_path / "out") == expected


def test_a_word_that_was_written_twice_counts_twice(tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (library / "a.py").write_text("one two two\n")
    for run in ("first", "second"):
        job = identifiers_job(library, tmp_path / "out", tmp_path / run, pause_s=0.0)
        job.run("threads", fresh="append")
    assert written(tmp_path / "out") == {"one": 2, "two": 4}
