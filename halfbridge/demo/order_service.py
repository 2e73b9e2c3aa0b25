"""The order service, a process of its own: `python -m halfbridge.demo.order_service`.

It places its share of the plan with many threads, then brings the killed orders to the brink
(local commit done, decision not made) and says so. It lives on, answering checks from its
database, until somebody kills it or tells it to stop.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from halfbridge import Message, Resolution, TransactionProducer
from halfbridge.demo.database import OrderDatabase
from halfbridge.demo.plan import BRINK, PRODUCER_GROUP, TOPICS, Kind, Order, make_plan
from halfbridge.testkit.client_log import ClientLog
from serde.records import OpKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfbridge import DecisionReceipt, MessageView

THREADS = 16


class OutOfStockError(Exception):
    """Why the local transaction of a rolled-back order fails."""


class CustomerVanishedError(Exception):
    """Why nobody ever decides an unknown order."""


class OrderService:
    """Places orders as the walk in DESIGN.md has it: half message, local transaction, decision."""

    def __init__(
        self, producer: TransactionProducer, database: OrderDatabase, log: ClientLog
    ) -> None:
        self._producer = producer
        self._database = database
        self._log = log
        self._at_the_brink = threading.Semaphore(0)
        self._never = threading.Event()

    def place_all(self, orders: Sequence[Order]) -> None:
        """Place every order that is not to be killed; return when all are decided."""
        with ThreadPoolExecutor(THREADS) as pool:
            for _ in pool.map(self._place, orders):
                pass

    def go_to_the_brink(self, orders: Sequence[Order]) -> None:
        """Place the orders to be killed; return when each stands between commit and decision."""
        for order in orders:
            threading.Thread(target=self._place, args=(order,), daemon=True).start()
        for _ in orders:
            self._at_the_brink.acquire()

    def _place(self, order: Order) -> None:
        try:
            with self._producer.begin() as tx:
                for index, (topic, key, value) in enumerate(order.messages):
                    self._log.sending(
                        tx.id,
                        index,
                        topic=topic,
                        key=key,
                        value=value,
                        label=order.kind.value,
                    )
                    tx.send(Message(topic, key=key, value=value))
                    self._log.sent(tx.id, index)
                if order.kind is Kind.UNKNOWN:
                    raise CustomerVanishedError  # noqa: TRY301  # leaving the block decides nothing
                try:
                    self._place_locally(order, tx.id)
                except OutOfStockError:
                    self._log.deciding(tx.id, OpKind.ROLLBACK)
                    self._note(tx.rollback(), OpKind.ROLLBACK)
                else:
                    self._log.deciding(tx.id, OpKind.COMMIT)
                    self._note(tx.commit(), OpKind.COMMIT)
        except CustomerVanishedError:
            pass

    def _place_locally(self, order: Order, transaction_id: str) -> None:
        def run_out_of_stock() -> None:
            if order.kind is Kind.ROLLED_BACK:
                raise OutOfStockError

        self._database.place(
            order.number,
            customer=order.customer,
            transaction_id=transaction_id,
            before_commit=run_out_of_stock,
        )
        if order.kind is Kind.KILLED:
            self._at_the_brink.release()
            self._never.wait()

    def _note(self, receipt: DecisionReceipt, kind: OpKind) -> None:
        self._log.decided(
            receipt.transaction_id, kind, partition=receipt.op_partition, offset=receipt.op_offset
        )


class DatabaseChecker:
    """Answers checks from the database: a row means COMMIT, no row means not known."""

    def __init__(self, database: OrderDatabase, log: ClientLog) -> None:
        self._database = database
        self._log = log

    def __call__(self, view: MessageView) -> Resolution:
        """Return COMMIT where the order was placed, else UNKNOWN."""
        if not self._database.is_placed(view.transaction_id):
            return Resolution.UNKNOWN
        self._log.answering(view.transaction_id, OpKind.COMMIT)
        return Resolution.COMMIT


def main(arguments: Sequence[str]) -> int:
    """Place this service's share, say so on standard output, and live on until SIGTERM."""
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
    database = OrderDatabase(options.directory / "orders.sqlite")
    with TransactionProducer(
        bootstrap_servers=options.bootstrap_servers,
        producer_group=PRODUCER_GROUP,
        topics=TOPICS,
        checker=DatabaseChecker(database, log),
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
