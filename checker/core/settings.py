"""What the ledger needs to know of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.checker.core.events import HalfRead

# Rule 7: how long, and how many, decisions stay known after H has passed them, so that a late
# duplicate half does not become a new transaction. 10 s, between the append times of decision and
# duplicate, cover a producer's in-flight retries.
# 10,000 a partition are 40,000 a worker with the default four, about 20 MB; a rebuild reads that
# many ops more, in about a tenth of a second.
RECENT_MS = 10_000
RECENT_MAX = 10_000
# Rule 1: how long an op waits for its half offset before it is proven where the half partition
# ends. The consumer has read the half message by then, unless leaders move.
OP_WAIT_MS = 1_000
# And how long in a pair that has had an op beyond the end lately: the consumer reads the half
# message a few ms after the op where both come at once. With such an op every 3 s, each one holds
# up the ops of 20 to 40 ms, which is about one in a hundred.
OP_WAIT_ALERT_MS = 10
# Where machines or brokers are slow, half messages usually come later: twice their usual wait is
# given then, up to this. More would be what somebody makes it, who has ops wait on purpose.
OP_WAIT_ALERT_MS_MAX = 100
# What "lately" is. The first such op of an hour costs OP_WAIT_MS: 1 s of 3,600.
OP_ALERT_MS = 3_600_000
# The policy's answers that a pair remembers. An answer takes 2 us to find anew. Names are of at
# most 249 characters here, so these are 2 MB at most.
ALLOWED_MAX = 1_000
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
        copy_fits: Does the half topic take a copy of this half message?
    """

    transaction_timeout_ms: int
    check_interval_ms: int
    check_count_max: int
    transaction_age_ms_max: int
    check_backoff_ms_max: int
    republish_window_records: int
    republish_window_bytes: int
    ledger_bytes_max: int
    entries_bytes_max: int
    unanswered_before_discard: int
    readiness_before_discard_ms: int
    actor: str
    allows: Callable[[str, str], bool]
    copy_fits: Callable[[HalfRead], bool]

    def shared_by(self, pairs: int) -> LedgerSettings:
        """Return the settings of one ledger of `pairs` that share a worker's memory."""
        return replace(
            self,
            ledger_bytes_max=self.ledger_bytes_max // pairs,
            entries_bytes_max=max(1, self.entries_bytes_max // pairs),
        )
