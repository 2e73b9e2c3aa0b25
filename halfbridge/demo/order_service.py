"""The order service, a separate process: `python -m halfbridge.demo.order_service`.

The service places its share of the plan with many threads. Then it brings the orders that will be
killed to the brink: their local transactions are committed, and not decided. It prints a line, and
answers checks from its database until it is killed or stopped.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from halfbridge import Message, Resolution, TransactionProducer
from halfbridge.demo.database import OrderDatabase
from halfbridge.demo.plan import BRINK, PRODUCER_GROUP, TOPICS, Kind, Order, make_plan
from halfbridge.serde.records import OpKind
from halfbridge.sql import FencedError
from halfbridge.testkit.client_log import ClientLog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from halfbridge import Answer, DecisionReceipt, MessageView, Transaction

THREADS = 16  # half messages are stored side by side, as in a service


# If a check comes before the local transaction begins, it rolls the transaction back, and the order
# is begun again.
_TRIES_MAX = 5


class OutOfStockError(Exception):
    """Raised in the local transaction of an order that is to be rolled back."""


class CustomerVanishedError(Exception):
    """Raised in the block of an order that is never decided."""


class OrderService:
    """Places orders in the steps of DESIGN.md: half messages, local transaction, decision."""

    def __init__(
        self, producer: TransactionProducer, database: OrderDatabase, log: ClientLog
    ) -> None:
        self._producer = producer
        self._database = database
        self._log = log
        self._at_the_brink = threading.Semaphore(0)
        self._never = threading.Event()

    def place_all(self, orders: Sequence[Order]) -> None:
        """Place every order that will not be killed; return when all are decided."""
        with ThreadPoolExecutor(THREADS) as pool:
            for _ in pool.map(self._place, orders):
                pass

    def go_to_the_brink(self, orders: Sequence[Order]) -> None:
        """Place the orders to be killed; return when each is committed and not decided."""
        for order in orders:
            threading.Thread(target=self._place, args=(order,), daemon=True).start()
        for _ in orders:
            self._at_the_brink.acquire()

    def _place(self, order: Order) -> None:
        place = _WAYS[order.kind]
        for _ in range(_TRIES_MAX - 1):
            with suppress(FencedError):
                return place(self, order)
        return place(self, order)

    def _place_in_block(self, order: Order) -> None:
        """Place an order with the block of a fence; roll it back if it is out of stock."""
        kind = OpKind.ROLLBACK if order.kind is Kind.ROLLED_BACK else OpKind.COMMIT
        begun: list[Transaction] = []
        with (
            suppress(OutOfStockError),
            self._database.fence.transaction(self._producer) as (tx, connection),
        ):
            begun.append(tx)
            self._send(tx, order)
            self._insert(connection, order, tx)
            self._log.deciding(tx.id, kind)
            if kind is OpKind.ROLLBACK:
                raise OutOfStockError
        # The block has decided. The repeated decision returns the receipt.
        again = begun[0].rollback if kind is OpKind.ROLLBACK else begun[0].commit
        self._note(again(), kind)

    def _place_until_killed(self, order: Order) -> None:
        """Commit the local transaction, and wait to be killed before the decision."""
        fence = self._database.fence
        with self._producer.begin(context=fence.context()) as tx:
            self._send(tx, order)
            with self._database.engine.begin() as connection:
                fence.enter(connection, tx)
                self._insert(connection, order, tx)
            self._at_the_brink.release()
            self._never.wait()

    def _abandon(self, order: Order) -> None:
        """Send the messages of an order whose local transaction never begins."""
        self._send_only(order, context=self._database.fence.context())

    def _abandon_without_fence(self, order: Order) -> None:
        """Send the messages of an order without a fence: its outcome can never be known."""
        self._send_only(order, context=None)

    def _send_only(self, order: Order, *, context: bytes | None) -> None:
        with suppress(CustomerVanishedError), self._producer.begin(context=context) as tx:
            self._send(tx, order)
            raise CustomerVanishedError  # leaving the block decides nothing

    def _send(self, tx: Transaction, order: Order) -> None:
        for index, (topic, key, value) in enumerate(order.messages):
            self._log.sending(
                tx.id, index, topic=topic, key=key, value=value, label=order.kind.value
            )
            tx.send(Message(topic, key=key, value=value))
            self._log.sent(tx.id, index)

    def _insert(self, connection: Connection, order: Order, tx: Transaction) -> None:
        self._database.place(
            connection, order.number, customer=order.customer, transaction_id=tx.id
        )

    def _note(self, receipt: DecisionReceipt, kind: OpKind) -> None:
        self._log.decided(
            receipt.transaction_id, kind, partition=receipt.op_partition, offset=receipt.op_offset
        )


_WAYS = {
    Kind.COMMITTED: OrderService._place_in_block,  # noqa: SLF001  # its own table
    Kind.MULTI: OrderService._place_in_block,  # noqa: SLF001  (its own table)
    Kind.ROLLED_BACK: OrderService._place_in_block,  # noqa: SLF001  (its own table)
    Kind.KILLED: OrderService._place_until_killed,  # noqa: SLF001  (its own table)
    Kind.ABANDONED: OrderService._abandon,  # noqa: SLF001  (its own table)
    Kind.UNKNOWN: OrderService._abandon_without_fence,  # noqa: SLF001  (its own table)
}


class OrderChecker:
    """Answers checks by the fence; UNKNOWN for transactions that were begun without it."""

    def __init__(self, database: OrderDatabase, log: ClientLog) -> None:
        self._fence = database.fence
        self._log = log

    def __call__(self, view: MessageView) -> Answer | Resolution:
        """Return the fence's answer, or UNKNOWN.

        Raises:
            NoAnswerError: The fence cannot tell now; the daemon asks again.
        """
        if view.context is None:
            return Resolution.UNKNOWN
        answer = self._fence.check(view)
        self._log.answering(view.transaction_id, OpKind[answer.resolution.value])
        return answer


def main(arguments: Sequence[str]) -> int:
    """Place this service's share, print a line, and answer checks until SIGTERM."""
    parser = argparse.ArgumentParser(prog="order_service")
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--directory", required=True, type=Path)
    parser.add_argument("--orders", required=True, type=int)
    parser.add_argument("--service", required=True, type=int)
    options = parser.parse_args(arguments)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    mine = [order for order in make_plan(options.orders) if order.service == options.service]
    log = ClientLog(
        options.directory / f"service-{options.service}.jsonl", producer_group=PRODUCER_GROUP
    )
    path = options.directory / "orders.sqlite"
    database = OrderDatabase(path, producer_group=PRODUCER_GROUP)
    with TransactionProducer(
        bootstrap_servers=options.bootstrap_servers,
        producer_group=PRODUCER_GROUP,
        topics=TOPICS,
        checker=OrderChecker(database, log),
    ) as producer:
        service = OrderService(producer, database, log)
        service.place_all([order for order in mine if order.kind is not Kind.KILLED])
        doomed = [order for order in mine if order.kind is Kind.KILLED]
        service.go_to_the_brink(doomed)
        sys.stdout.write(f"{BRINK} {len(doomed)} orders\n")
        sys.stdout.flush()
        stop.wait()
    database.close()
    log.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
