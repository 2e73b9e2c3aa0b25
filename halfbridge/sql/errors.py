"""Errors of halfbridge.sql, divided by who must act.

SqlError (a BridgeError)
├─ TableError              an operator creates or corrects the table: the text says how
├─ NotDurableError         an operator: the database may lose committed transactions
├─ FenceUsageError         (also RuntimeError) the calling code is wrong; nothing was committed
├─ InboxUsageError         (also RuntimeError) the calling code is wrong; nothing was marked
├─ NoIdentityError         (also ValueError) the calling code gives key=, or skips the message
├─ RowsLostError           nobody: another relay has the rows, or sends them; both are rolled back
├─ PurgeError              an operator removes what blocks the purge, and runs the purge again
├─ RowStateError           the calling code: this row of a local message table was settled before
├─ RowNotFoundError        the calling code: the row was purged, or is in another table
├─ FencedError             a check came first: nothing was committed; begin another transaction
├─ TransactionEndedError   the database transaction ended inside the block; says what is committed
└─ CommitUnknownError      (an OutcomeUnknownError) the check decides; do not repeat the work

A checker that cannot tell raises bridge.NoAnswerError.
"""

from __future__ import annotations

from enum import Enum

from halfbridge.kafka.errors import BridgeError, OutcomeUnknownError


class Outcome(str, Enum):
    """The final outcome of a local transaction, as in its fence row."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"


class SqlError(BridgeError):
    """A database, or the way it is used, does not meet a requirement; the class says who acts."""


class TableError(SqlError):
    """A table of halfbridge is missing, was replaced, or has no transactions.

    An operator creates or corrects it, as the text says.
    """


class NotDurableError(SqlError):
    """The database may lose committed transactions by its `setting`; an operator changes that."""

    def __init__(self, message: str, *, setting: str = "") -> None:
        super().__init__(message)
        self.setting = setting


class FenceUsageError(SqlError, RuntimeError):
    """The fence is used in a way that breaks its guarantee; nothing was committed.

    The programmer corrects the calling code, as the text says.
    """


class InboxUsageError(SqlError, RuntimeError):
    """The inbox is used in a way that breaks its guarantee; nothing was marked.

    The programmer corrects the calling code, as the text says.
    """


class NoIdentityError(SqlError, ValueError):
    """A message has no readable identity: the daemon did not write it, or a header is broken.

    The calling code gives `key=`, or skips the message.
    """


class PurgeError(SqlError):
    """A purge failed before its end; the text says why. Some rows may have been deleted.

    An operator removes what blocks it, and runs it again.
    """


class FencedError(SqlError):
    """The local transaction may not commit any more: a check came first, or it is too old.

    Nothing was committed, and the message transaction is rolled back. Begin another transaction. If
    this happens often, give `immunity_ms`.
    """

    def __init__(self, message: str, *, transaction_id: str) -> None:
        super().__init__(message)
        self.transaction_id = transaction_id


class TransactionEndedError(SqlError):
    """The database transaction with the fence row ended before the end of its block.

    Either a statement committed implicitly (DDL on MariaDB), or the database rolled back by itself,
    for example after a deadlock, and the block caught the error.

    Attributes:
        transaction_id: The message transaction.
        outcome: Of the statements before the end. COMMITTED: the messages are delivered. Later
            statements are rolled back, unless one of them committed implicitly too. None: not known
            yet; the check finds out.
    """

    def __init__(self, *, transaction_id: str) -> None:
        super().__init__(transaction_id)
        self.transaction_id = transaction_id
        self.outcome: Outcome | None = None

    def __str__(self) -> str:
        return (
            f"the database transaction of {self.transaction_id} ended inside of the block, by a"
            " statement that commits by itself or a rollback of the database's own;"
            f" {_BEFORE_IT[self.outcome]}"
        )


class CommitUnknownError(SqlError, OutcomeUnknownError):
    """The outcome of the database's COMMIT is not known. The check finds out, and decides.

    Do not repeat the work, because it may be committed. The driver's error is the cause.
    """

    def __init__(self, *, transaction_id: str) -> None:
        super().__init__(
            f"the database did not say whether it committed {transaction_id}; the check finds out,"
            " and decides the message transaction"
        )
        self.transaction_id = transaction_id


_BEFORE_IT = {
    Outcome.COMMITTED: "the statements before that are committed, and the messages are delivered",
    Outcome.ROLLED_BACK: "the statements before that are rolled back, and no message is delivered",
    None: "a check will find out whether the statements before that are committed",
}
