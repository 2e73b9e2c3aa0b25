"""What the ledger needs to know of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# Rule 7: how long, and how many, decisions stay known after H has passed them, so that a late
# duplicate half does not become a new transaction. 10 s, between the append times of decision and
# duplicate, cover a producer's in-flight retries.
# 10,000 a partition are 40,000 a worker with the default four, about 20 MB; a rebuild reads that
# many ops more, in about a tenth of a second.
RECENT_MS = 10_000
RECENT_MAX = 10_000
# Rule 1: how long an op waits for its half offset before the half partition's end is asked.
OP_WAIT_MS = 1_000
# And how long after one answer it is asked again. A broker that wakes up learns from its controller
# within a heartbeat (2 s) that its partitions are led by others.
OP_CONFIRM_MS = 5_000
# The policy's answers that are remembered; more distinct (group, topic) pairs than this are forged.
ALLOWED_MAX = 10_000
# Refused ops that one plan describes in words; the counts hold them all.
NOTES_MAX = 20
# The window rule lets this many window records pass per undecided half, so that copies stay
# below 1/3 of what is read.
WINDOW_PER_UNDECIDED = 4


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """Limits of one ledger; names and defaults as in CheckerConfig.

    Attributes:
        allows: (producer group, real topic) -> may that group deliver there? Pure.
        actor: Name that discards carry.
    """

    transaction_timeout_ms: int
    check_interval_ms: int
    check_count_max: int
    transaction_age_ms_max: int
    check_backoff_ms_max: int
    republish_window_records: int
    republish_window_bytes: int
    ledger_bytes_max: int
    unanswered_before_discard: int
    readiness_before_discard_ms: int
    actor: str
    allows: Callable[[str, str], bool]

    def shared_by(self, pairs: int) -> LedgerSettings:
        """Return the settings of one ledger of `pairs` that share a worker's memory."""
        return replace(self, ledger_bytes_max=self.ledger_bytes_max // pairs)
