"""When it is to be proven that an op names a half offset that its partition does not have. Pure.

Rule 1. An op waits for its half message, which was acknowledged before the op was sent, so all that
is needed is where the half partition ended at any moment after the op was read: what it names at or
beyond that end was never stored. The proof is a record that the worker appends
(halfbridge.checker.barriers.kafka_io, ADR 11); it costs a round, so it is not asked for at once,
but for ops
of a partition that has had such an op lately.
"""

from __future__ import annotations

from halfbridge.checker.core.settings import (
    OP_ALERT_MS,
    OP_WAIT_ALERT_MS,
    OP_WAIT_ALERT_MS_MAX,
    OP_WAIT_MS,
)


class HalfEnd:
    """Waits, then asks; begins anew with each op that waits.

    Attributes:
        read_to: Ops below this offset had been read when the question was asked: what its answer
            proves of one of them, it proves of all.
    """

    def __init__(self) -> None:
        self.read_to = 0
        self._op_offset = -1
        self._since_ms: int | None = None
        self._token: int | None = None
        self._is_known = False
        self._alert_until_ms = 0
        # The median, about, of how long ops waited whose half messages came.
        self._usual_ms = 0

    def clear(self, now_ms: int) -> None:
        """Take that no op waits."""
        self._begin(-1, now_ms)

    def question(self, op_offset: int, read_to: int, now_ms: int) -> int | None:
        """Return the token of the question that is open now; None: not yet.

        The token is when it was asked first: no other one has it, not even one of the ledger that
        was here before, to which an answer may still come.

        Args:
            op_offset: Offset of the op that waits.
            read_to: Ops below it have been read.
            now_ms: Monotonic, for it is a consumer that is given time, and no log.
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
        """Take the answer to the question with `token`; tell whether it is to the open one.

        Args:
            token: As `question` gave it; an answer to an older question says nothing.
            is_beyond: The op that waits names what does not exist. Else its half message is there,
                and the consumer is given its time again.
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
        if self._since_ms is not None:  # its half message came
            step_ms = 1 if now_ms - self._since_ms > self._usual_ms else -1
            self._usual_ms = min(max(0, self._usual_ms + step_ms), OP_WAIT_ALERT_MS_MAX // 2)
        self._op_offset, self._since_ms, self._token = op_offset, None, None
        self._is_known = False
