"""The demo: orders on a real broker, with rollbacks, killed services and missing decisions.

`run_demo` starts every process, and judges the results. `python -m halfbridge.demo DIRECTORY
ORDERS NUMBER` is one of the order services. It places its share of the orders; of those that will
be killed, it commits the local transactions and decides nothing. Then it prints a line, and answers
checks from its database until it is killed or stopped.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Column, Integer, MetaData, Table, create_engine

from halfbridge import (
    Answer,
    Message,
    MessageView,
    Resolution,
    Transaction,
    TransactionProducer,
    environment,
)
from halfbridge.serde.records import OpKind
from halfbridge.serde.settings import variable
from halfbridge.sql import Fence, FencedError
from halfbridge.testkit.broker import EmbeddedBroker
from halfbridge.testkit.children import ChildFailedError, Children, Interrupts
from halfbridge.testkit.history import Anomaly, ClientLog, read_client_logs
from halfbridge.testkit.judge import judge
from halfbridge.testkit.reader import read_all, read_ops
from halfbridge.testkit.stack import DaemonProgress, HalfbridgeStack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfbridge.testkit.history import ClientTransaction, Verdict

    Say = Callable[[str], None]

TOPICS = ("orders", "parcels")
BRINK = "all others are decided; between local commit and decision stand"
SERVICES = 3  # order services, one after the other; all but the last are killed
_GROUP = "order-service"
_THREADS = 16  # half messages are stored side by side, as in a service
_TRIES_MAX = 5  # a check that comes before the local transaction fences it off: begin again
_WAIT_S_MAX = 900.0  # a stage takes seconds on a quiet machine, an audit minutes on a busy one
_ORDERS = Table("orders", MetaData(), Column("number", Integer, primary_key=True))


class Kind(str, Enum):
    """How an order ends."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    KILLED = "killed"  # committed locally, and not decided when its service dies
    ABANDONED = "abandoned"  # never decided: the fence proves the rollback
    UNKNOWN = "unknown"  # never decided, without a fence: a dead letter
    MULTI = "multi"  # three messages in two topics


class Order(NamedTuple):
    """An order, placed by one of the SERVICES; all orders of one customer have one key."""

    number: int
    kind: Kind
    service: int

    @property
    def messages(self) -> list[Message]:
        """Return its messages, in the order in which they are sent."""
        key = b"customer-%d" % (self.number % 50)  # several orders of each
        topics = (TOPICS[0], TOPICS[1], TOPICS[1]) if self.kind is Kind.MULTI else TOPICS[:1]
        body = b'{"order": %d, "part": %d}'
        return [Message(t, key=key, value=body % (self.number, n)) for n, t in enumerate(topics)]


def make_plan(orders: int) -> list[Order]:
    """Return as many orders, the killed ones last; the same ones each time."""
    killed = max(2, orders * 3 // 100)
    kinds = [Kind.ROLLED_BACK, Kind.MULTI] * max(1, orders // 10)
    kinds += [Kind.ABANDONED] * max(1, orders // 50) + [Kind.UNKNOWN] * max(1, orders // 100)
    kinds += [Kind.COMMITTED] * (orders - killed - len(kinds))
    random.Random(20).shuffle(kinds)  # noqa: S311  (a plan, not a secret)
    shares = [(kind, n % SERVICES) for n, kind in enumerate(kinds)]
    shares += [(Kind.KILLED, n % (SERVICES - 1)) for n in range(killed)]
    return [Order(n, *share) for n, share in enumerate(shares)]


class OrderService:
    """A service with SQLite that places orders, and answers checks by the fence."""

    def __init__(self, folder: Path, number: str) -> None:
        url = f"sqlite:///{folder / 'orders.sqlite'}?timeout=30"  # s; it has one writer
        self._engine = create_engine(url, pool_size=_THREADS)
        with self._engine.connect() as db:
            db.exec_driver_sql("PRAGMA journal_mode=WAL")  # kept by the file
        _ORDERS.metadata.create_all(self._engine)
        self._fence = Fence(self._engine, producer_group=_GROUP)
        self._fence.create()
        self._log = ClientLog(folder / f"service-{number}.jsonl", producer_group=_GROUP)
        self._producer = TransactionProducer(
            producer_group=_GROUP, topics=TOPICS, checker=self._check
        )

    def run(self, orders: Sequence[Order]) -> None:
        """Place orders, print a line, and answer checks until SIGTERM."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        with self._producer, ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(self._place, orders))
            sys.stdout.write(f"{BRINK} {sum(each.kind is Kind.KILLED for each in orders)} orders\n")
            sys.stdout.flush()
            signal.sigwait({signal.SIGTERM})

    def _check(self, view: MessageView) -> Answer | Resolution:
        if view.context is None:  # begun without the fence
            return Resolution.UNKNOWN
        answer = self._fence.check(view)
        self._log.answering(view.transaction_id, OpKind[answer.resolution.value])
        return answer

    def _place(self, order: Order) -> None:
        for _ in range(_TRIES_MAX - 1):
            with suppress(FencedError):
                return self._try(order)
        return self._try(order)

    def _try(self, order: Order) -> None:
        row = _ORDERS.insert().values(number=order.number)
        if order.kind in (Kind.ABANDONED, Kind.UNKNOWN):  # its local transaction never begins
            context = self._fence.context() if order.kind is Kind.ABANDONED else None
            self._send(self._producer.begin(context=context), order)
        elif order.kind is Kind.KILLED:
            tx = self._producer.begin(context=self._fence.context())
            self._send(tx, order)
            with self._engine.begin() as db:
                self._fence.enter(db, tx)
                db.execute(row)
        else:
            kind = OpKind.ROLLBACK if order.kind is Kind.ROLLED_BACK else OpKind.COMMIT
            with suppress(LookupError), self._fence.transaction(self._producer) as (tx, db):
                self._send(tx, order)
                db.execute(row)
                self._log.deciding(tx.id, kind)
                if kind is OpKind.ROLLBACK:
                    raise LookupError("out of stock")

    def _send(self, tx: Transaction, order: Order) -> None:
        for index, each in enumerate(order.messages):
            sent: dict[str, Any] = {"topic": each.topic, "key": each.key, "value": each.value}
            self._log.sending(tx.id, index, **sent, label=order.kind.value)
            tx.send(each)
            self._log.sent(tx.id, index)


def run_demo(orders: int, *, say: Say, keep_directory: bool, spark: bool) -> dict[str, Any]:
    """Return the object that `halfbridge demo --json` prints; raises as `Children.wait_until`."""
    began_s = time.monotonic()
    with ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())
        folder = Path(tempfile.mkdtemp(prefix="halfbridge-demo-"))
        children = Children(folder, interrupts=interrupts, keep_directory=keep_directory)
        if keep_directory:
            stack.callback(say, f"kept: {folder}")
        say("starting a real Kafka broker, the topics and the checker")
        settings: dict[str, Any] = {"transaction_timeout_ms": 2_000, "check_count_max": 3}
        installation = stack.enter_context(HalfbridgeStack(kafka=EmbeddedBroker(), **settings))
        for topic in TOPICS:
            installation.create_topic(topic, partitions=4)  # orders of several customers in each
        stack.enter_context(children)
        _run_services(orders, installation, children, say)
        clients = read_client_logs(folder.glob("service-*.jsonl"))
        names = installation.config.names
        real, dead = installation.read_committed(*TOPICS), installation.read_committed(names.dead)
        ops = read_ops(read_all(installation.bootstrap_servers, (names.op,)))
        verdict = judge(clients, real=real, dead=dead, ops=ops)
        found = report(make_plan(orders), clients, verdict)
        say(f"compared what came out with what was sent: {verdict.describe()}")
        if spark:
            say("auditing the whole run with Spark")
            found["spark"] = _audit(installation, children)
            found["ok"] &= found["spark"]["clean"]
        return {**found, "seconds": round(time.monotonic() - began_s, 1)}


def _run_services(orders: int, installation: HalfbridgeStack, children: Children, say: Say) -> None:
    """Run the services one after the other, and kill all but the last; wait for all outcomes."""
    environ = {k: v for k, v in environment.variables().items() if not k.startswith("HALFBRIDGE_")}
    names = ("bootstrap_servers", "topic_prefix", "transaction_timeout_ms")
    environ |= {variable(name): str(getattr(installation.config, name)) for name in names}
    for number in range(SERVICES):
        say(f"order service {number + 1} of {SERVICES} places its share of {orders} orders")
        share = map(str, (children.directory, orders, number))
        words = (sys.executable, "-m", "halfbridge.demo", *share)
        service = children.start(f"service-{number}", words, environ=environ)
        said = service.output.read_text
        children.wait_until(lambda: BRINK in said(), what=service.name, timeout_s=_WAIT_S_MAX)  # noqa: B023  (called in this turn)
        if number < SERVICES - 1:
            children.kill(service)
            say(f"SIGKILL for order service {number + 1}: {said().strip()}")
    say("waiting for check-backs and dead letters")
    with DaemonProgress(installation.bootstrap_servers, installation.config.names) as progress:
        children.wait_until(lambda: not progress.left(), what="outcomes", timeout_s=_WAIT_S_MAX)


def _audit(installation: HalfbridgeStack, children: Children) -> dict[str, Any]:
    servers, prefix = installation.bootstrap_servers, installation.topic_prefix
    where = ("--bootstrap-servers", servers, "--topic-prefix", prefix)
    words = (sys.executable, "-m", "halfbridge", "spark", "audit", *where, "--json")
    child = children.start("spark-audit", words)
    ended = child.process.poll
    children.wait_until(lambda: ended() is not None, what=child.name, timeout_s=_WAIT_S_MAX)
    children.kill(child)  # and its JVM, which ends a moment after the driver
    if child.process.returncode not in (0, 2):  # 2: there are findings
        raise ChildFailedError(f"Spark's audit failed\n{child.last_words()}")
    return dict(json.loads(child.output.read_text("utf-8")))


def report(plan: list[Order], clients: list[ClientTransaction], verdict: Verdict) -> dict[str, Any]:
    """Return the result of each kind of order, and whether it is what the plan expects."""
    kinds = {kind.value: {"expected": 0, "delivered": 0, "dead_lettered": 0} for kind in Kind}
    for order in plan:
        if order.kind not in (Kind.ROLLED_BACK, Kind.ABANDONED):
            kinds[order.kind.value]["expected"] += len(order.messages)
    for tx in clients:
        kinds[tx.label]["delivered"] += verdict.delivered.get(tx.transaction_id, 0)
        kinds[tx.label]["dead_lettered"] += verdict.dead_lettered.get(tx.transaction_id, 0)
    outlet = {kind.value: "delivered" for kind in Kind} | {"unknown": "dead_lettered"}
    differ = [each["expected"] - each[outlet[name]] for name, each in kinds.items()]
    counts = verdict.counts
    return {
        "ok": verdict.ok and not any(differ),
        "kinds": kinds,
        "duplicates": counts[Anomaly.DUPLICATED],
        "lost": max(sum(differ), counts[Anomaly.LOST] + counts[Anomaly.TORN]),
        "out_of_order": counts[Anomaly.REORDERED],
    }


if __name__ == "__main__":
    _folder, _orders, _number = sys.argv[1:]
    _share = [each for each in make_plan(int(_orders)) if each.service == int(_number)]
    OrderService(Path(_folder), _number).run(_share)
