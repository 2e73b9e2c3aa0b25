"""Settings of a relay, in one frozen object, checked once."""

from __future__ import annotations

from dataclasses import dataclass

from halfbridge.kafka.errors import ConfigError
from halfbridge.serde.limits import TRANSACTION_BYTES_MAX, TRANSACTION_MESSAGES_MAX
from halfbridge.serde.settings import check, setting
from halfbridge.serde.units import HOUR_MS, MINUTE_MS

WAIT = "wait"
GO_ON = "go-on"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayConfig:
    """Settings of a relay, each documented by `setting`; a ConfigError names what is wrong."""

    refusal = ConfigError

    relay_name: str = setting(
        "", doc="Stable name of this relay: restarted, it has its leases at once; empty: a new one."
    )
    transaction_rows_max: int = setting(
        # More rows share a fence row and COMMITs; but a row that cannot be delivered makes all of
        # its transaction dead letters, which are retried one by one (ADR 13).
        500,
        minimum=1,
        maximum=TRANSACTION_MESSAGES_MAX,
        doc="Rows in one message transaction.",
    )
    transaction_bytes_max: int = setting(
        # Half of a transaction's limit, because headers are counted differently there.
        TRANSACTION_BYTES_MAX // 2,
        minimum=1,
        maximum=TRANSACTION_BYTES_MAX,
        doc="Bytes of keys, values and headers in one message transaction.",
    )
    window_rows: int = setting(
        # Two transactions of transaction_rows_max. More take memory, fewer cost queries.
        1_000,
        minimum=1,
        maximum=100_000,
        doc="Rows that one query reads.",
    )
    window_bytes: int = setting(
        # One batch for each of four half partitions, the default number.
        2 * TRANSACTION_BYTES_MAX,
        minimum=1,
        maximum=1 << 30,
        doc="Bytes of rows that one query reads, for each state, except for the last row.",
    )
    lease_ms: int = setting(
        # As the daemon's session_timeout_ms; renewed three times within it. Longer delays the
        # takeover from a dead relay, shorter moves buckets of a relay whose database is slow.
        10_000,
        minimum=500,
        doc="How long buckets stay with a relay that does not renew its leases, milliseconds.",
    )
    poll_ms_min: int = setting(
        # The query takes 1.5 ms (docs/evidence/benchmarks.md). Longer delays rows where the
        # database sends no notification, shorter keeps it busy.
        10,
        minimum=1,
        doc="First wait for rows without a notification, milliseconds.",
    )
    poll_ms_max: int = setting(
        # The longest delay by a lost notification. An idle relay asks twice a second.
        500,
        minimum=1,
        doc="Longest wait for rows, also where notifications come, milliseconds.",
    )
    retry_ms_min: int = setting(
        # Failures that pass, such as a leader's change, take some seconds. Shorter uses up
        # retries_max during them, longer delays the later rows of the key.
        1_000,
        minimum=1,
        doc="First wait of a row whose attempt failed, milliseconds; it doubles.",
    )
    retry_ms_max: int = setting(
        # Bounds the doubling where retries_max is raised: ten failures do not reach it.
        5 * MINUTE_MS,
        minimum=1,
        doc="Longest wait of a row whose attempt failed, milliseconds.",
    )
    retries_max: int = setting(
        # The waits, 1 s that doubles, are nine minutes in all. More let later rows of the key wait
        # longer, fewer leave more errors to an operator.
        10,
        minimum=1,
        doc="Failed attempts after which a row is MESSAGE_ERROR.",
    )
    row_age_ms_max: int = setting(
        # Above any wait of retries_max, so it ends what waited before its first failure. Longer
        # retries rows that nobody may want any more, shorter gives up what an outage delayed.
        24 * HOUR_MS,
        minimum=1,
        doc="Age after which a row whose attempt fails is MESSAGE_ERROR, milliseconds.",
    )
    after_error: str = setting(
        WAIT,
        words=(WAIT, GO_ON),
        doc=f"What later rows of a MESSAGE_ERROR's key do: {WAIT} or {GO_ON}.",
    )
    unknown_ms_max: int = setting(
        # Longer lets a longer local transaction confirm its row, shorter withdraws the rows of dead
        # writers sooner.
        MINUTE_MS,
        minimum=1,
        doc="Age at which a pre-sent row that nobody confirmed is withdrawn, milliseconds.",
    )
    prepared_ms_min: int = setting(
        # As check_interval_ms. Sooner asks about rows whose writer is about to settle them, later
        # delays the rows of dead writers.
        30_000,
        minimum=0,
        doc="Age at which the callback is asked about a prepared row, ms.",
    )
    housekeeping_ms: int = setting(
        # Longer delays waiting rows and ages the metrics, shorter costs queries that find nothing.
        1_000,
        minimum=10,
        doc="Interval of checking waiting rows and of counting the backlog, milliseconds.",
    )

    def __post_init__(self) -> None:
        check(self)
        for least, most in (("poll_ms_min", "poll_ms_max"), ("retry_ms_min", "retry_ms_max")):
            if getattr(self, least) > getattr(self, most):
                raise ConfigError(
                    field=least,
                    value=str(getattr(self, least)),
                    origin="argument",
                    allowed=f"at most {most}, {getattr(self, most)}",
                )

    def is_last(self, retries: int, *, age_ms: int) -> bool:
        """Return whether a row of this age, with `retries` failed attempts, is given up."""
        return retries >= self.retries_max or age_ms >= self.row_age_ms_max

    def retry_wait_ms(self, retries: int) -> int:
        """Return how long a row waits after `retries` (at least 1) failed attempts."""
        doublings = min(retries - 1, self.retry_ms_max.bit_length())
        return min(self.retry_ms_max, self.retry_ms_min << doublings)
