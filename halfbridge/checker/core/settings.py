"""The part of the configuration that the ledger needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.checker.core.events import HalfRead

# Rule 7: how long, and how many, decisions stay known after H has passed them, so that a late
# duplicate half does not become a new transaction. 10 s between the append times of the decision
# and of the duplicate cover a producer's in-flight retries.
# 10,000 decisions a partition are 40,000 a worker with the default of four partitions, about 20 MB.
# A rebuild reads as many ops more, in about a tenth of a second.
RECENT_MS = 10_000
RECENT_MAX = 10_000
# Rule 1: how long an op waits for its half offset before the worker proves where the half partition
# ends. Unless leaders move, the consumer has read the half message by then.
OP_WAIT_MS = 1_000
# The same wait in a pair that has lately had an op beyond the end. Where the half message and the
# op are stored at the same time, the consumer reads the half message a few ms after the op. If
# somebody writes an op beyond the end every 3 s, each of them delays the ops of 20 to 40 ms: about
# one op in a hundred.
OP_WAIT_ALERT_MS = 10
# Where machines or brokers are slow, half messages usually come later: the wait is then twice the
# usual one, up to this maximum. Without a maximum, a client that writes ops that wait on purpose
# could make the usual wait as long as it likes.
OP_WAIT_ALERT_MS_MAX = 100
# How long "lately" is. The first op beyond the end of each hour costs OP_WAIT_MS: 1 s of 3,600 s.
OP_ALERT_MS = 3_600_000
# Answers of the policy that a pair remembers. Computing an answer again takes 2 us. Names have at
# most 249 characters here, so the answers take at most 2 MB.
ALLOWED_MAX = 1_000
# Conflicts and refused ops that one plan describes in words; the counts include all of them. As
# many as the log takes a second (loop.report.LINES_A_SECOND_MAX).
NOTES_MAX = 20
# Records that the window rule allows in the window for each undecided half, so that copies stay
# below a third of what is read.
WINDOW_PER_UNDECIDED = 4


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """Limits of one ledger; names and defaults as in CheckerConfig.

    Attributes:
        allows: Tells whether a producer group may deliver to a real topic. Pure.
        actor: Name of the worker, written into its discards.
        copy_fits: Tells whether the half topic accepts a copy of a half message, by size.
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
        """Return the settings of one of `pairs` ledgers that share a worker's memory equally."""
        return replace(
            self,
            ledger_bytes_max=self.ledger_bytes_max // pairs,
            entries_bytes_max=max(1, self.entries_bytes_max // pairs),
        )
