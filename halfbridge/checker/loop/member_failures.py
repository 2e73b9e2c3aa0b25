"""Decides when the daemon's group member must be replaced, and when another worker has its slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.errors import SlotTakenError
from halfbridge.kafka.errors import MEMBER_FENCED, UNREACHABLE, Code

if TYPE_CHECKING:
    from halfbridge.kafka.errors import KafkaFailure
    from halfbridge.kafka.ports import Clock

_FATAL = MEMBER_FENCED | {Code.FATAL}
# How long after a lost connection a static member may find that it has fenced itself. The client
# reports the same trouble only every 30 s.
TROUBLE_S = 60.0


class MemberFailures:
    """What the present member reported, and what follows from that.

    A static member can fence itself in two ways. The answer to its JoinGroup is lost with the
    connection: then the group has given it a member id that it does not know. Or the coordinator
    was silent for a session: then the client sends a heartbeat without a member id. So a fenced
    member means another worker, unless a connection was lost in the last TROUBLE_S. If another
    worker came in that time, this worker takes the slot back and the other one ends.
    """

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._lost_at = -TROUBLE_S
        self._fatal: KafkaFailure | None = None
        self._why = ""

    def note(self, failure: KafkaFailure) -> None:
        """Take a failure that a call or a record of the member reports."""
        if failure.is_fatal or failure.code in _FATAL:
            self._fatal = failure

    def reported(self, failure: KafkaFailure) -> None:
        """Take a failure that the member reports outside of calls; most end by themselves."""
        if failure.code in UNREACHABLE:
            self.connection_lost()
        self.note(failure)

    def connection_lost(self) -> None:
        """Record that a connection to a broker was lost now."""
        self._lost_at = self._monotonic()

    def give_up(self, why: str) -> None:
        """Record that the member must be replaced, for a reason that it did not report."""
        self._why = why

    def why_replace(self) -> str:
        """Return why the member must be replaced, until `replaced`; empty if it can be used.

        Raises:
            SlotTakenError: another worker runs on this slot; the operator stops one of the two.
        """
        if self._fatal is not None:
            text = self._fatal.text
            was_fenced = "fenced" in text.lower() or self._fatal.code in MEMBER_FENCED
            if was_fenced and self._monotonic() - self._lost_at > TROUBLE_S:
                raise SlotTakenError(
                    f"another worker runs on this slot and took its partitions over ({text}):"
                    " stop one of the two, or give each its own --slot"
                )
            self._fatal, self._why = None, f"the consumer could not go on ({text})"
            self._lost_at = -TROUBLE_S  # one lost connection excuses one fence only
        return self._why

    def replaced(self) -> None:
        """Record that a new member joins; its failures have nothing to do with the former's."""
        self._why = ""
