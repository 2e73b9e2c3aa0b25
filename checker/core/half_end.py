"""Whether an op names a half offset that its partition does not have (rule 1). Pure.

One answer proves nothing: a broker that was frozen, while another one took its partition over,
tells where the log ended when it fell asleep, until it learns better. Taken at its word, a COMMIT
would be applied to none of its messages, and they would be buried as late. So a second answer is
needed, to a question that is asked a good while after the first answer.
"""

from __future__ import annotations

from checker.core.settings import OP_CONFIRM_MS, OP_WAIT_MS


class HalfEnd:
    """Waits, asks, waits and asks again; begins anew with each op that waits.

    Attributes:
        read_to: Ops below this offset had been read when the wait for the first question began:
            what the answers prove of one of them, they prove of all.
    """

    def __init__(self) -> None:
        self.read_to = 0
        self._op_offset = -1
        self._since_ms: int | None = None
        self._is_doubted = False

    def clear(self) -> None:
        """Take that no op waits."""
        self._begin(-1)

    def question(self, op_offset: int, read_to: int, now_ms: int) -> int | None:
        """Return the token of the question that is to be asked now; None: not yet.

        The token is when the wait began: no other wait has it, not even one of the ledger that
        was here before, to which an answer may still come.

        Args:
            op_offset: Offset of the op that waits.
            read_to: Ops below it have been read.
            now_ms: Monotonic, for it is a broker that is given time, and no log.
        """
        if op_offset != self._op_offset:
            self._begin(op_offset)
        if self._since_ms is None:
            self._since_ms = now_ms
            if not self._is_doubted:
                self.read_to = read_to
        wait_ms = OP_CONFIRM_MS if self._is_doubted else OP_WAIT_MS
        return self._since_ms if now_ms - self._since_ms >= wait_ms else None

    def is_proven(self, token: int, *, is_beyond: bool) -> bool:
        """Take the answer to the question with `token`; tell whether it is the second of its kind.

        Args:
            token: As `question` gave it; an answer to an older question says nothing.
            is_beyond: The answer says that the half offset does not exist.
        """
        if token != self._since_ms:
            return False
        proven = is_beyond and self._is_doubted
        if proven or not is_beyond:
            self._begin(-1)
        else:
            self._is_doubted, self._since_ms = True, None
        return proven

    def _begin(self, op_offset: int) -> None:
        self._op_offset, self._since_ms, self._is_doubted = op_offset, None, False
