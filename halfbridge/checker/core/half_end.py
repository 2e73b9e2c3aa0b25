"""Decides when the worker must prove that an op names a half offset that does not exist. Pure.

Rule 1: an op waits until the half partition has been read to the op's half offset. The half message
was acknowledged before the op was sent. So if the half partition ends at offset 80 at any moment
after the op was read, and the op names half offset 90, then no half message was stored at 90.

The worker proves the end with a barrier record (halfbridge.checker.loop.barriers, ADR 11). A
barrier record costs a round trip, so the question is open only after the op has waited for
OP_WAIT_MS, or sooner in a pair that has lately had an op beyond the end.
"""

from __future__ import annotations

from halfbridge.checker.core.settings import (
    OP_ALERT_MS,
    OP_WAIT_ALERT_MS,
    OP_WAIT_ALERT_MS_MAX,
    OP_WAIT_MS,
)


class HalfEnd:
    """Opens a question about the end of the half partition when an op has waited long enough.

    Each waiting op begins a new wait.

    Attributes:
        read_to: Ops below this offset had been read when the question was opened. The answer holds
            for all of these ops.
    """

    def __init__(self) -> None:
        self.read_to = 0
        self._op_offset = -1
        self._since_ms: int | None = None
        self._token: int | None = None
        self._is_known = False
        self._alert_until_ms = 0
        # Roughly the median wait of ops whose half messages came.
        self._usual_ms = 0

    def clear(self, now_ms: int) -> None:
        """Record that no op waits."""
        self._begin(-1, now_ms)

    def question(self, op_offset: int, read_to: int, now_ms: int) -> int | None:
        """Return the token of the open question; None while the op has not waited long enough.

        The token is the time at which the question was opened. No other question has the same
        token, not even a question of this pair's ledger before a rebuild, whose answer may still
        arrive.

        Args:
            op_offset: Offset of the waiting op.
            read_to: Ops below this offset have been read.
            now_ms: Monotonic time, because the wait gives the consumer time to read.
        """
        if op_offset != self._op_offset:
            self._begin(op_offset, now_ms)
        if self._since_ms is None:
            self._since_ms = now_ms
        if self._token is None:
            is_alert = now_ms < self._alert_until_ms and not self._is_known
            if now_ms - self._since_ms < (self._alert_ms if is_alert else OP_WAIT_MS):
                return None
            self._token, self.read_to = now_ms, read_to
        return self._token

    def is_answer(self, token: int, *, is_beyond: bool) -> bool:
        """Record the answer to the question with `token`; return False if that is not open.

        Args:
            token: The token from `question`. The answer to an older question is ignored.
            is_beyond: The waiting op names a half offset beyond the end. If False, the half message
                exists, and a new wait gives the consumer time to read it.
        """
        if token != self._token:
            return False
        if is_beyond:
            self._alert_until_ms = token + OP_ALERT_MS
        self._token = self._since_ms = None
        self._is_known = not is_beyond
        return True

    @property
    def _alert_ms(self) -> int:
        return max(OP_WAIT_ALERT_MS, 2 * self._usual_ms)

    def _begin(self, op_offset: int, now_ms: int) -> None:
        if self._since_ms is not None:  # the half message of the op before came
            step_ms = 1 if now_ms - self._since_ms > self._usual_ms else -1
            self._usual_ms = min(max(0, self._usual_ms + step_ms), OP_WAIT_ALERT_MS_MAX // 2)
        self._op_offset, self._since_ms, self._token = op_offset, None, None
        self._is_known = False
