"""A producer under test, a process of its own: runs seeded transactions until SIGUSR1.

Says `ready` once it is started; on SIGUSR1 it begins nothing new, lets everything end, and says
`quiet`; it answers checks from the database until SIGTERM. What it does stands in its client log
before and after it does it, so that a SIGKILL at any moment leaves a history that can be judged.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count
from typing import Any

from halfbridge.bridge import (
    BridgeError,
    DecisionFuture,
    HalfNotStoredError,
    Message,
    MessageView,
    Resolution,
    SendFuture,
    Transaction,
    TransactionProducer,
)
from halfbridge.serde.records import OpKind
from halfbridge.testkit.history import ClientLog
from tests.faults.database import LocalDatabase
from tests.faults.plan import Kind, Planned, planned
from tests.kit.load import PRODUCER_GROUP, REAL_TOPICS, live, parser_of

_THREADS = 4
_POLL_S = 0.02
_FLUSH_S = 60.0
_LOCAL = {Kind.ROLLED_BACK: Resolution.ROLLBACK, Kind.CHECKED_ROLLBACK: Resolution.ROLLBACK}
_DECISIONS = {
    Kind.COMMITTED: OpKind.COMMIT,
    Kind.MULTI: OpKind.COMMIT,
    Kind.ROLLED_BACK: OpKind.ROLLBACK,
    Kind.TARDY: OpKind.COMMIT,
    Kind.CONTRADICTED: OpKind.ROLLBACK,
}
_LATE = frozenset((Kind.TARDY, Kind.CONTRADICTED))


class Client:
    """Runs transactions one way or the other; both keep the same log."""

    def __init__(
        self,
        options: argparse.Namespace,
        *,
        producer: TransactionProducer,
        database: LocalDatabase,
        log: ClientLog,
    ) -> None:
        self._options = options
        self._producer = producer
        self._database = database
        self._log = log
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._began = time.monotonic()
        self._late: list[tuple[float, str, Transaction, OpKind]] = []

    def run(self, stop: threading.Event) -> None:
        """Begin transactions at the given rate until `stop`; return when all have ended."""
        run = self._run_pipelined if self._options.pipelined else self._run_blocking
        threads = [
            threading.Thread(target=run, args=(stop,))
            for _ in range(1 if self._options.pipelined else _THREADS)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            self._decide_late_ones()
            time.sleep(_POLL_S)
        self._producer.flush(_FLUSH_S)  # sends that end now may add late decisions
        while self._late:
            self._decide_late_ones()
            time.sleep(_POLL_S)
        self._producer.flush(_FLUSH_S)

    def _next(self, stop: threading.Event) -> Planned | None:
        """Return the next plan when it is due; None after SIGUSR1."""
        options = self._options
        with self._lock:
            number = next(self._numbers)
        stop.wait(max(0.0, self._began + number / options.rate - time.monotonic()))
        if stop.is_set():
            return None
        plan = planned(options.name, options.seed, number)
        return replace(plan, kind=Kind.BRINK) if number == options.die_at else plan

    # --- blocking --------------------------------------------------------------------------

    def _run_blocking(self, stop: threading.Event) -> None:
        while (plan := self._next(stop)) is not None:
            tx = self._producer.begin()
            try:
                for index, message in enumerate(self._announced(tx, plan)):
                    tx.send(message)
                    self._log.sent(tx.id, index)
            except HalfNotStoredError:
                self._decide(tx, OpKind.ROLLBACK)
                continue
            except BridgeError:
                continue  # no room: nothing of this message was sent, and nothing is decided
            decision = self._do_locally(tx, plan.kind)
            if decision is not None:
                self._decide(tx, decision)

    def _decide(self, tx: Transaction, kind: OpKind) -> None:
        self._log.deciding(tx.id, kind)
        try:
            future = tx.commit() if kind is OpKind.COMMIT else tx.rollback()
        except BridgeError:
            return  # in doubt: the check settles it
        future.add_done_callback(self._on_decided)

    # --- pipelined -------------------------------------------------------------------------

    def _run_pipelined(self, stop: threading.Event) -> None:
        while (plan := self._next(stop)) is not None:
            tx = self._producer.begin()
            sends = _Sends(self, tx, plan)
            try:
                for index, message in enumerate(self._announced(tx, plan)):
                    tx.send_async(message).add_done_callback(sends.on_sent)
                    sends.begun = index + 1
            except BridgeError:
                continue
            sends.all_begun()

    def sends_ended(self, tx: Transaction, plan: Planned) -> None:
        """Go on with a transaction whose half messages are durable."""
        decision = self._do_locally(tx, plan.kind)
        if decision is not None:
            self._decide_async(tx, decision)

    def _decide_async(self, tx: Transaction, kind: OpKind) -> None:
        self._log.deciding(tx.id, kind)
        try:
            future = tx.commit_async() if kind is OpKind.COMMIT else tx.rollback_async()
        except BridgeError:
            return
        future.add_done_callback(self._on_decided)

    def _on_decided(self, future: DecisionFuture) -> None:
        if future.exception() is None:
            receipt = future.result()
            self._log.decided(
                receipt.transaction_id,
                OpKind(receipt.resolution.value),
                partition=receipt.op_partition,
                offset=receipt.op_offset,
            )

    # --- both ------------------------------------------------------------------------------

    def _announced(self, tx: Transaction, plan: Planned) -> Any:
        """Yield the messages of `plan`, each one once its announcement is in the log."""
        for index, each in enumerate(plan.messages):
            topic = self._options.prefix + each.topic
            self._log.sending(
                tx.id,
                index,
                topic=topic,
                key=each.key,
                value=each.value,
                headers=each.headers,
                label=plan.kind.value,
            )
            yield Message(topic, key=each.key, value=each.value, headers=each.headers)

    def sent(self, transaction_id: str, index: int) -> None:
        """Note a durable half message."""
        self._log.sent(transaction_id, index)

    def _do_locally(self, tx: Transaction, kind: Kind) -> OpKind | None:
        """Run the local transaction; return the decision to make at once, if there is one."""
        if kind is not Kind.NEVER:
            self._database.end(tx.id, _LOCAL.get(kind, Resolution.COMMIT))
        if kind is Kind.BRINK:
            os.kill(os.getpid(), signal.SIGKILL)
        decision = _DECISIONS.get(kind)
        if decision is not None and kind in _LATE:
            due = time.monotonic() + self._options.late_s
            with self._lock:
                heappush(self._late, (due, tx.id, tx, decision))
            return None
        return decision

    def _decide_late_ones(self) -> None:
        while self._late and self._late[0][0] <= time.monotonic():
            with self._lock:
                _, _, tx, decision = heappop(self._late)
            self._decide_async(tx, decision)


class _Sends:
    """The half messages of one pipelined transaction, until all are acknowledged."""

    def __init__(self, client: Client, tx: Transaction, plan: Planned) -> None:
        self._client = client
        self._tx = tx
        self._plan = plan
        self._lock = threading.Lock()
        self._acked = 0
        self._all_begun = False
        self.begun = 0

    def on_sent(self, future: SendFuture) -> None:
        """Count an acknowledgement; after a failed one nothing is decided."""
        if future.exception() is not None:
            return
        self._client.sent(self._tx.id, future.index)
        with self._lock:
            self._acked += 1
        self._go_on()

    def all_begun(self) -> None:
        """Take that no further message comes."""
        with self._lock:
            self._all_begun = True
        self._go_on()

    def _go_on(self) -> None:
        with self._lock:
            if not self._all_begun or self._acked < self.begun:
                return
            self._all_begun = False  # once
        self._client.sends_ended(self._tx, self._plan)


class Checker:
    """Answers checks from the database."""

    def __init__(self, database: LocalDatabase, log: ClientLog) -> None:
        self._database = database
        self._log = log

    def __call__(self, view: MessageView) -> Resolution:
        """Return how the local transaction ended, as far as the database knows."""
        outcome = self._database.outcome(view.transaction_id)
        if outcome is not Resolution.UNKNOWN:
            self._log.answering(view.transaction_id, OpKind(outcome.value))
        return outcome


def main(arguments: Sequence[str]) -> int:
    """Run transactions until SIGUSR1, answer checks until SIGTERM."""
    parser = parser_of("client")
    parser.add_argument("--rate", required=True, type=float, help="transactions a second")
    parser.add_argument("--late-s", required=True, type=float, help="what late decisions wait")
    parser.add_argument("--pipelined", action="store_true")
    parser.add_argument("--die-at", type=int, default=0, help="SIGKILL itself in that one")
    parser.add_argument("--kafka", action="append", default=[], help="client property, name=value")
    options = parser.parse_args(arguments)
    quiet = threading.Event()
    log = ClientLog(
        options.directory / f"client-{options.name}.jsonl", producer_group=PRODUCER_GROUP
    )
    database = LocalDatabase(options.directory / "local.sqlite")
    producer = TransactionProducer(
        bootstrap_servers=options.bootstrap_servers,
        topic_prefix=options.prefix,
        producer_group=PRODUCER_GROUP,
        topics=[options.prefix + topic for topic in REAL_TOPICS],
        checker=Checker(database, log),
        kafka=dict(each.split("=", 1) for each in options.kafka),
    )
    client = Client(options, producer=producer, database=database, log=log)
    live(producer, lambda: client.run(quiet), quiet)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
