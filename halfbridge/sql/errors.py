"""Errors of what halfbridge does in databases, split by who must act.

SqlError (a BridgeError)
├─ TableError              an operator makes the table, or gives the right one: the text names how
├─ NotDurableError         an operator: this database may forget what it has committed
├─ FenceUsageError         (also RuntimeError) the calling code is wrong; nothing was committed
├─ InboxUsageError         (also RuntimeError) the calling code is wrong; nothing was marked
├─ NoIdentityError         (also ValueError) the calling code gives key=, or leaves the message out
├─ PurgeError              an operator ends what holds the purge up, and runs it again
├─ FencedError             a check came first: nothing was committed; begin another transaction
├─ TransactionEndedError   the database transaction ended inside of the block; says what stands
└─ CommitUnknownError      (an OutcomeUnknownError) the check settles it; do not repeat the work

A checker that cannot tell raises bridge.NoAnswerError.
"""

from __future__ import annotations

from enum import Enum

from halfbridge.bridge.errors import BridgeError, OutcomeUnknownError


class Outcome(str, Enum):
    """How a local transaction ended, for good, as its fence row says."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"


class SqlError(BridgeError):
    """Something in a database, or in how it is used, is not as needed."""


class TableError(SqlError):
    """A table of halfbridge is missing, is another one than before, or cannot do what it must."""


class NotDurableError(SqlError):
    """The database is set up so that a commit may be forgotten; the text names the setting."""


class FenceUsageError(SqlError, RuntimeError):
    """The fence is used in a way in which it cannot hold; nothing was committed.

    The text says what to change in the calling code.
    """


class InboxUsageError(SqlError, RuntimeError):
    """The inbox is used in a way in which it cannot hold; nothing was marked.

    The text says what to change in the calling code.
    """


class NoIdentityError(SqlError, ValueError):
    """A message does not say which one it is: not halfbridge's daemon wrote it, or a header is odd.

    Give `key=`, or leave the message out.
    """


class PurgeError(SqlError):
    """A purge did not get to its end; the text says why. Whatever it has deleted may be missing."""


class FencedError(SqlError):
    """The local transaction may not commit any more: its row is there, as rolled back mostly.

    A check came before `enter` and wrote that row, or the transaction is too old. Nothing was
    committed, and the message transaction is rolled back. Begin another one; where this happens
    often, give `immunity_ms`.

    Attributes:
        transaction_id: The message transaction.
    """

    def __init__(self, message: str, *, transaction_id: str) -> None:
        super().__init__(message)
        self.transaction_id = transaction_id


class TransactionEndedError(SqlError):
    """The database transaction that held the fence row ended before its block did.

    By a statement that commits by itself (DDL on MariaDB), or because the database rolled back
    on its own (a deadlock, say) and the error was not let out of the block.

    Attributes:
        transaction_id: The message transaction.
        outcome: What the fence row says. COMMITTED: all before the end stands, and the messages
            are delivered. ROLLED_BACK: nothing before the end stands, and the messages are not
            delivered. What came after the end was rolled back in both cases, unless one of those
            statements committed by itself too. None: not known yet; the check settles it.
    """

    def __init__(self, *, transaction_id: str) -> None:
        super().__init__(transaction_id)
        self.transaction_id = transaction_id
        self.outcome: Outcome | None = None

    def __str__(self) -> str:
        return (
            f"the database transaction of {self.transaction_id} ended inside of the block, by a"
            " statement that commits by itself or a rollback of the database's own;"
            f" {_STANDS[self.outcome]}"
        )


class CommitUnknownError(SqlError, OutcomeUnknownError):
    """The database did not say whether it has committed; nothing was decided, the check does.

    Do not repeat the work: it may stand. The error that the driver raised is the cause.
    """

    def __init__(self, *, transaction_id: str) -> None:
        super().__init__(
            f"the database did not say whether it committed {transaction_id}; the check finds out,"
            " and decides the message transaction"
        )
        self.transaction_id = transaction_id


_STANDS = {
    Outcome.COMMITTED: "what came before stands, and the messages are delivered",
    Outcome.ROLLED_BACK: "nothing of what came before stands, and no message is delivered",
    None: "a check will find out what stands",
}
