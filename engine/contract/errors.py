"""The errors a user of headrace meets, one class per way of ending.

A command line, and a caller that retries, must tell "you wrote something wrong" from "your job
broke" from "your storage is down": each is one class here, with the exit code beside it. Every
class is picklable, because workers raise errors in another process.

Not here: errors of the machines (a malformed frame, a corrupt handle), which stand beside the code
that finds them, and `AssertionError`, which is always a bug of headrace.
"""

from __future__ import annotations

from typing import ClassVar

from .places import redacted


class HeadraceError(Exception):
    """Base of every error headrace raises on purpose. Credentials of URLs are not told."""

    #: Exit code of the command line when this error ends it.
    exit_code: ClassVar[int] = 1

    def __init__(self, *args: object) -> None:
        super().__init__(*(redacted(arg) if isinstance(arg, str) else arg for arg in args))


class UserError(HeadraceError):
    """The user's mistake, in one sentence: what is wrong, where, and what to do."""

    exit_code = 2


class JobFailed(HeadraceError):
    """A job started and ended in failure after its restarts were used up."""

    exit_code = 1


class CommitLost(JobFailed):
    """A pre-committed transaction can never be committed: its records are lost or damaged.

    The only failure of a `SinkCommitter` that is final; every other one is tried again.
    """


class StorageUnreachable(HeadraceError):
    """The checkpoint storage did not answer, after retries."""

    exit_code = 4


class AddressUnreachable(HeadraceError):
    """A Spark master, or this machine's own address, did not answer."""

    exit_code = 4


class JobUnreachable(HeadraceError):
    """The process that runs a job did not answer."""

    exit_code = 4


class UserCodeError(HeadraceError):
    """A user's function raised, or returned a value against its promise.

    Attributes:
        operator: name of the operator whose function failed.
        message: the failure, in one sentence.
        user_traceback: the traceback text of the user's frames; empty if nothing was raised.
        built_at: "job.py:17", the line that built the operator; empty: not known here.
    """

    exit_code = 1

    def __init__(
        self, operator: str, message: str, user_traceback: str = "", built_at: str = ""
    ) -> None:
        # All go to `args`, from which pickle rebuilds the exception in another process.
        super().__init__(operator, message, user_traceback, built_at)
        self.operator = operator
        self.message = message
        self.user_traceback = user_traceback
        self.built_at = built_at

    @property
    def story(self) -> str:
        """The failure in one sentence, without the traceback."""
        place = f" ({self.built_at})" if self.built_at else ""
        return f"operator {self.operator!r}{place}: {self.message}"

    def located(self, built_at: str) -> UserCodeError:
        """Return the same error with the line that built the operator."""
        return UserCodeError(self.operator, self.message, self.user_traceback, built_at)

    def adding(self, text: str) -> UserCodeError:
        """Return the same error with more to its message."""
        return UserCodeError(self.operator, self.message + text, self.user_traceback, self.built_at)

    def __str__(self) -> str:
        return (
            f"{self.story}\n{self.user_traceback.rstrip()}" if self.user_traceback else self.story
        )
