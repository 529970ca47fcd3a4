"""The recovery benchmark, made small: what it says of a kill and a rescale of a job with state and
full queues.
"""

from __future__ import annotations

import pytest

from headrace.bench import recovery

pytestmark = pytest.mark.slow


def test_the_first_checkpoint_completes_while_records_are_still_replayed() -> None:
    figures = recovery.run(state_bytes=4 << 20, inflight_bytes=8 << 20, kills=1, rescale_to=3)
    assert figures["replaying_at_first_checkpoint"]
    assert figures["restored_bytes"] > 4 << 20
    phases = ("epoch_claimed_ms", "workers_there_ms", "restored_ms", "first_output_ms")
    times = [figures[phase] for phase in phases]
    assert times == sorted(times)
    assert 0 < figures["rescale_stop_ms"] < figures["rescale_first_output_ms"]
    # Reading what is restored: nothing that a recovery does not do, such as a fresh interpreter.
    assert 0 < figures["floor_ms"] < figures["first_output_ms"]
