"""What the commands for dead letters share: what an operator orders, and who writes."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.admin.appending import appending
from halfbridge.checker.admin.dead.reading import DeadTopic, look
from halfbridge.checker.admin.dead.writing import DeadWriter
from halfbridge.checker.admin.operator_log import OperatorLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.dead.evidence import Looked
    from halfbridge.checker.admin.dead.letters import Letter
    from halfbridge.checker.admin.dead.transactions import DeadTransaction, Wanted
    from halfbridge.serde.topics import TopicNames


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the operator orders.

    Attributes:
        wanted: Which transactions.
        limit: The most transactions, the first ones decided.
        rate: The most transactions a second.
        who: Who acts.
        why: The operator's reason.
        dry_run: Only tell what would be done.
    """

    wanted: Wanted
    limit: int
    rate: float
    who: str
    why: str
    dry_run: bool = False


class Acting(NamedTuple):
    """What a command that changes something needs.

    Attributes:
        writer: Writes kafka_txns.
        log: The audit topic.
        order: What the operator orders.
    """

    writer: DeadWriter
    log: OperatorLog
    order: Order


class DeadLetters:
    """The dead letters of one installation, for one command.

    Args:
        cluster: Where they are.
        names: Of the installation.
        told: Is called with lines about the progress.

    Attributes:
        cluster: Where they are.
        names: Of the installation.
        told: Is called with lines about the progress.
        topic: The dead-letter topic.
    """

    def __init__(
        self, cluster: Cluster, names: TopicNames, told: Callable[[str], None] = lambda _: None
    ) -> None:
        self.cluster, self.names, self.told = cluster, names, told
        self.topic = DeadTopic(cluster, names, told)

    def find(self, wanted: Wanted) -> list[DeadTransaction]:
        """Read the topic to its end, and return what is wanted, in the order of the decisions."""
        self.topic.read_on()
        return self.topic.found.transactions(wanted)

    def look(self, letters: Sequence[Letter]) -> list[Looked]:
        """Return letters with their bodies; stubs are followed into the half topic."""
        return look(self.cluster, self.names, letters)

    @contextmanager
    def acting(self, order: Order) -> Iterator[Acting]:
        """Keep other commands from writing, and read all marks that they wrote."""
        writer = DeadWriter(self.cluster, self.names, actor=order.who, reason=order.why)
        try:
            with appending(self.cluster) as appender:
                log = OperatorLog(self.cluster, self.names, appender, who=order.who)
                self.topic.read_on(writer.fence(self.topic.partitions))
                yield Acting(writer, log, order)
        finally:
            writer.close()


def standing_before(transaction: DeadTransaction) -> str:
    """Return what the audit topic says of a transaction before something is done about it."""
    reasons = ", ".join(each.value for each in transaction.reasons)
    return f"{len(transaction.letters)} dead letters, {reasons}, {transaction.state}"
