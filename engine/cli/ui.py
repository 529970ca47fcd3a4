"""`headrace ui DIRECTORY`: the page of a job that does not run, from its checkpoint directory."""

from __future__ import annotations

from headrace.recovery.layout import job_folder

from ..contract.errors import UserError
from ..contract.page_address import PageAddress, page_address
from ..inspection.directory import answers
from ..storage.checkpoint_storage import FsspecStore
from ..ui.page import Place, RecordedPage, read_recording, recorded_jobs
from .reporter import print_object
from .streams import say


def show_recorded(directory: str, job: str | None, port: str | None, *, as_json: bool) -> int:
    """Serve the page until Ctrl-C.

    Args:
        job: None: the only job of the directory that has a history.
        port: a port or HOST:PORT; None: the usual.

    Raises: UserError, StorageUnreachable, AddressUnreachable.
    """
    address = PageAddress() if port is None else page_address(port, name="--port")
    assert address is not None, port
    with answers(directory):
        store = FsspecStore(directory)
        name = job_folder(job) if job else _only(recorded_jobs(store), directory)
        recording = read_recording(store, directory, name)
    place = Place(address)
    page = RecordedPage(place, recording)
    if as_json:
        print_object({"event": "page", "job": name, "link": page.link})
    else:
        say(f"headrace: the page of job {name} is {page.link}; Ctrl-C ends it")
    try:
        page.wait()
    finally:
        page.close()
    return 0


def _only(found: list[str], directory: str) -> str:
    if len(found) == 1:
        return found[0]
    if not found:
        raise UserError(
            f"{directory} holds no history of a page: run the job with --ui, and its history is"
            " kept there"
        )
    raise UserError(f"{directory} holds several jobs; name one by --job: {', '.join(found)}")
