"""What can go wrong."""

from __future__ import annotations

from typing import Any, Sequence


class Error(Exception):
    """Base of all errors of this package."""

    #: Whether a change may have taken effect, or may yet.
    outcome_unknown: bool = False


class OutcomeUnknown(Error):
    """A change was sent and no majority could say what became of it: it may have taken effect, or may do so later, or never.

    A later read tells, once it has returned the change or something newer.
    """

    outcome_unknown = True


class UsageError(Error, ValueError):
    """The caller's mistake: an argument, an address, a key file, a key or value over the limits."""


class Unavailable(Error, ConnectionError):
    """Nothing answers, or no majority does. Nothing was changed."""


class Refused(Error):
    """What answers is damaged, foreign, in use or of another version."""


class OutOfSpace(Error):
    """The members that hold the key are full. Nothing was changed."""


class TimedOut(Error, TimeoutError):
    """The client's own time limit has passed. Nothing was changed."""


class Closed(Error):
    """The client was closed. Nothing was changed."""


class NotANumber(Error, ValueError):
    """What is to be counted with is no decimal number of 64 bits, or the sum would be none."""


class BatchError(Error):
    """Some keys of several failed. ``results`` has for each what it would have returned, or its error."""

    def __init__(self, results: Sequence[Any]) -> None:
        errors = [result for result in results if isinstance(result, Error)]
        super().__init__(f"{len(errors)} of {len(results)} keys failed, the first by: {errors[0]}")
        self.results = list(results)
        self.outcome_unknown = any(error.outcome_unknown for error in errors)
