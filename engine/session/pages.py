"""The page of a run, where its options ask for one.

The page's address is taken before anything starts: an address that is taken, or a missing library,
is the user's mistake, and no job runs for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ..contract.execution import ExecutionPlan
from ..contract.options import RunOptions
from ..contract.page_address import page_address
from ..storage.checkpoint_storage import open_store
from ..ui.facts import facts_of
from ..ui.page import Page, Place
from .handle import JobHandle
from .settings import values_of


@contextmanager
def place_of_page(options: RunOptions) -> Iterator[Place | None]:
    """Take the page's address; give it up again if the job does not start. None: no page.

    Raises: UserError, AddressUnreachable.
    """
    address = page_address(options.ui)
    if address is None:
        yield None
        return
    place = Place(address)
    try:
        yield place
    except BaseException:
        place.leave()
        raise


def open_page(
    place: Place | None,
    handle: JobHandle,
    plan: ExecutionPlan,
    options: RunOptions,
    deliveries: Mapping[str, str],
) -> None:
    """Show a started job at the place that was taken for it."""
    if place is None:
        return
    checkpoints = options.checkpoints
    directory = None if checkpoints is None else checkpoints.directory
    facts = facts_of(plan, values_of(options), deliveries, directory)
    store = None if directory is None else open_store(directory)
    handle.shown_on(Page(place, handle, facts, store))
