"""Answers checks from databases alone, while no process of the service runs.

The daemon asks any member of a producer group. So a producer that sends nothing, with a fence as
its checker, is a member that answers for all others.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sqlalchemy import literal, select
from sqlalchemy.exc import DBAPIError

from halfbridge.bridge.client_metrics import ClientCollector
from halfbridge.logs import about
from halfbridge.relays import ROUND_S_MAX, RelayRunner, ServiceMetrics
from halfbridge.sql.bounds import CHECK_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfbridge.bridge import Answer, MessageView, TransactionProducer
    from halfbridge.sql.fence import Fence

_LOG = logging.getLogger("halfbridge.sql")
# How late health shows that a database does not answer. Checks do not wait for these questions.
PROBE_S = 10.0


def answering(fence: Fence) -> Callable[[MessageView], Answer]:
    """Return `fence.check`, which logs each answer."""

    def check(view: MessageView) -> Answer:
        answer = fence.check(view)
        _LOG.info(
            "check of %s of %s: %s",
            view.transaction_id,
            view.producer_group,
            answer.resolution.value,
            extra=about(
                event="answer",
                transaction_id=view.transaction_id,
                producer_group=view.producer_group,
                kind=answer.resolution,
            ),
        )
        return answer

    return check


class Responder(RelayRunner):
    """Runs with producers that answer checks; its health is that of their databases.

    It is ready once every database has answered, and unhealthy while one does not: checks of that
    group stay unanswered, and the daemon asks again. Errors of Kafka are in the log only.

    Args:
        members: A fence and the producer that has it as its checker, for each group. The caller
            starts the producers before `run`, and closes them afterwards.
        probe_s: Seconds between two questions to all databases.
    """

    def __init__(
        self, members: Sequence[tuple[Fence, TransactionProducer]], *, probe_s: float = PROBE_S
    ) -> None:
        bounds_s = CHECK_BOUNDS.connect_s + CHECK_BOUNDS.answer_s
        super().__init__(
            ServiceMetrics(service="responder"),
            _LOG,
            retried=(),
            round_s_max=ROUND_S_MAX + probe_s + bounds_s * len(members),
        )
        self._fences = [fence for fence, _ in members]
        self._probe_s = probe_s
        collector = ClientCollector(
            (producer.config.producer_group, producer.figures) for _, producer in members
        )
        self.metrics.registry.register(collector)

    def _work(self) -> None:
        answers = [self._answers(fence) for fence in self._fences if not self.is_stopping]
        if all(answers):
            self.succeeded()
        self._stopping.wait(self._probe_s)

    def _close(self) -> None:
        """Do nothing: the producers are the caller's."""

    def _answers(self, fence: Fence) -> bool:
        """Return whether the fence's table can be read."""
        query = select(literal(1)).select_from(fence.tables[0]).limit(1)
        try:
            with fence.engine.connect() as connection:
                connection.execute(query)
        except Exception as error:  # noqa: BLE001  (drivers raise their own; in log and health)
            # Without the statement, and SQLAlchemy's link.
            cause = error.orig if isinstance(error, DBAPIError) else error
            self.failed(fence.producer_group, str(cause))
            return False
        self.recovered(fence.producer_group)
        return True
