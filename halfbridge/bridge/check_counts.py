"""What a check responder counts."""

from __future__ import annotations

from dataclasses import dataclass, fields
from threading import Lock


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckCounts:
    """What a check responder has done so far, and how many of its threads hang now.

    Attributes:
        received: Requests read.
        undecodable: Requests that could not be read; skipped.
        foreign: Requests about a topic this producer does not declare, or of another group;
            left to other members.
        superseded: Requests that a newer one replaced, or whose transaction is being checked.
        refused: Requests for which the pool had no room, or that waited for a thread when this
            member left its group; the daemon asks again.
        answered: Explicit COMMIT, ROLLBACK or UNKNOWN handed to Kafka.
        failed: Checkers that raised, said nothing, or ran out of time.
        timed_out: Of these, the ones that ran out of time; the answer may have come later.
        hung: Checkers that are out of time and have not returned until now.
        replaced: Threads that were started because a checker ran out of time.
        departures: How often this member left its group because all its threads hung.
        unwritten: Answers that did not reach the op topic, or whose half partition's end is not
            known; the daemon asks again.
        unreadable: How often requests were left out because a record of the check topic cannot be
            read; the daemon asks again. The log names the record.
        errors: Errors of the consumer.
    """

    received: int = 0
    undecodable: int = 0
    foreign: int = 0
    superseded: int = 0
    refused: int = 0
    answered: int = 0
    failed: int = 0
    timed_out: int = 0
    hung: int = 0
    replaced: int = 0
    departures: int = 0
    unwritten: int = 0
    unreadable: int = 0
    errors: int = 0


class CheckTally:
    """Counters with the names of CheckCounts's attributes. Thread-safe."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys((each.name for each in fields(CheckCounts)), 0)
        self._lock = Lock()  # checks are rare beside sends

    def add(self, name: str, many: int = 1) -> None:
        """Add `many` to the counter `name`."""
        with self._lock:
            self._counts[name] += many

    def counts(self, **now: int) -> CheckCounts:
        """Return the counts, completed by `now`: the attributes that are counted elsewhere."""
        with self._lock:
            return CheckCounts(**(self._counts | now))
