"""What an operator's decisions ask of a fence, whose row says what the op may say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from halfbridge.checker.errors import AdminError
from halfbridge.kafka.errors import NoAnswerError
from halfbridge.sql.errors import Outcome, SqlError
from halfbridge.sql.fence_table import DEFAULT_NAME, FenceTable, check_context, find, settle

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from halfbridge.checker.admin.transactions.waits import Undecided
    from halfbridge.sql.fence_table import Ended


class OperatorFence:
    """A fence as `halfbridge tx commit` and `rollback` use it; a FencePort of checker.admin.

    A transaction that was not begun with this fence is refused: a row in a wrong database would
    contradict what the right one says. Each refusal is an AdminError.
    """

    def __init__(
        self, engine: Engine, *, name: str = DEFAULT_NAME, schema: str | None = None
    ) -> None:
        self._table = FenceTable(engine, name=name, schema=schema)

    def committed_count(self, undecided: Undecided, context: bytes | None) -> int:
        """Return how many messages the committed fence row names; write nothing."""
        ended = self._asked(undecided, context, find)
        if ended is None:
            raise AdminError(
                f"{undecided.id} has no row in {self._table.table.fullname}: its local transaction"
                " is not committed; roll it back, or decide without --fence-url"
            )
        if ended.outcome is not Outcome.COMMITTED:
            raise AdminError(
                f"the fence row of {undecided.id} says {ended.outcome.value}: roll it back"
            )
        return ended.message_count

    def roll_back(self, undecided: Undecided, context: bytes | None) -> None:
        """Return once a fence row says rolled_back: the local transaction cannot commit."""
        ended = self._asked(undecided, context, settle)
        if ended is None or ended.outcome is Outcome.COMMITTED:
            raise AdminError(
                f"the fence row of {undecided.id} says committed: its local transaction has"
                " committed; commit it"
            )

    def _asked(
        self,
        undecided: Undecided,
        context: bytes | None,
        ask: Callable[..., Ended | None],
    ) -> Ended | None:
        group = undecided.producer_group
        try:
            check_context(self._table, context, producer_group=group, transaction_id=undecided.id)
            return ask(self._table, producer_group=group, transaction_id=undecided.id)
        except (NoAnswerError, SQLAlchemyError, SqlError) as error:
            text = " ".join(str(error).split())
            raise AdminError(f"the fence of {undecided.id} gives no answer: {text}") from error
