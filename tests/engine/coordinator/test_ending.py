from headrace.engine.coordinator import coordinator_events as d
from headrace.engine.coordinator.ending import Ending


def _stop(kind: d.StopKind, request: int | None = None) -> d.StopRequested:
    return d.StopRequested(kind, request=request)


def test_the_first_stop_counts_and_whoever_comes_later_is_told() -> None:
    ending = Ending()
    effects: list[d.CoordinatorEffect] = []
    assert ending.asked(_stop(d.StopKind.DRAIN, request=1), effects)
    assert not ending.asked(_stop(d.StopKind.WITH_CHECKPOINT, request=2), effects)
    assert ending.is_drained
    assert effects == [d.RequestAnswered(2, None, "the job is ending already")]


def test_a_job_that_has_ended_cannot_be_stopped() -> None:
    ending = Ending()
    ending.outcome = d.JobEnded(d.Outcome.FINISHED, "all is done", "")
    assert not ending.asked(_stop(d.StopKind.DRAIN), [])
    assert ending.stop is None


def test_the_next_checkpoint_is_the_last_unless_the_input_has_to_end_first() -> None:
    ending = Ending()
    assert not ending.takes_last(finished=False)
    assert ending.takes_last(finished=True)
    ending.asked(_stop(d.StopKind.DRAIN), [])
    assert not ending.takes_last(finished=False)
    assert ending.takes_last(finished=True)
    stopped = Ending()
    stopped.asked(_stop(d.StopKind.WITH_CHECKPOINT), [])
    assert stopped.takes_last(finished=False)


def test_who_waits_for_the_last_savepoint_is_answered_once() -> None:
    ending = Ending()
    effects: list[d.CoordinatorEffect] = []
    ending.asked(_stop(d.StopKind.WITH_CHECKPOINT, request=7), effects)
    ending.answer(4, "", effects)
    ending.answer(None, "the job ended without it", effects)
    assert effects == [d.RequestAnswered(7, 4, "")]


def test_when_the_last_savepoint_fails_the_job_may_be_stopped_again() -> None:
    ending = Ending()
    effects: list[d.CoordinatorEffect] = []
    ending.asked(_stop(d.StopKind.DRAIN, request=7), effects)
    ending.called_off("the disk is full", effects)
    assert effects == [d.RequestAnswered(7, None, "the disk is full")]
    assert not ending.is_drained
    assert ending.asked(_stop(d.StopKind.WITH_CHECKPOINT), effects)
