"""Conformance case 127: a random mix with restarts, and an oracle for unexpected checks."""

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from halfbridge.bridge import Message, MessageView, Resolution
from halfbridge.serde.avro import CHECK_REQUEST, HALF_METADATA, OP
from halfbridge.serde.headers import CHECK, HALF
from halfbridge.serde.records import OpKind, OpSource
from tests.check_oracle import unexpected_checks
from tests.integration.installation import GROUP, Installation
from tests.integration.tail import Record
from tests.kit.records import A_REQUEST
from tests.kit.waiting import until
from tests.ledger_log import metadata, op_record

THREADS = 32
TRANSACTIONS = 8 * THREADS
BODY_BYTES = 2_000
TIMEOUT_MS, INTERVAL_MS = 300, 200
QUICK: dict[str, Any] = {
    "transaction_timeout_ms": TIMEOUT_MS,
    "check_interval_ms": INTERVAL_MS,
    "check_backoff_ms_max": 1_000,
    "check_count_max": 1_000,
}
KINDS = ("commit", "rollback", "check: commit", "check: rollback", "check: unknown, commit")


class Load:
    """Transactions of all kinds, each drawn from the seed and its number."""

    def __init__(self, seed: int, topic: str) -> None:
        self.begun = Counter[str]()
        self._seed = seed
        self._topic = topic
        self._lock = threading.Lock()
        self._never = threading.Event()

    def kind(self, number: int) -> str:
        """Return what becomes of a transaction."""
        return random.Random(f"{self._seed}:{number}").choice(KINDS)

    def is_committed(self, number: int) -> bool:
        """Tell whether its message has to arrive."""
        return self.kind(number).endswith("commit")

    def run(self, producer: Any, number: int) -> None:
        """Send it, and decide it, if the producer is to, before or after it falls due."""
        draw = random.Random(f"{self._seed}:{number}:time")
        kind = self.kind(number)
        tx = producer.begin()
        body = b"%d:" % number + draw.randbytes(BODY_BYTES)
        tx.send(Message(self._topic, key=b"%d" % draw.randrange(20), value=body))
        self._never.wait(draw.uniform(0, 2 * TIMEOUT_MS / 1_000))  # the local transaction
        if kind == "commit":
            tx.commit()
        elif kind == "rollback":
            tx.rollback()
        with self._lock:
            self.begun[kind] += 1

    def check(self, view: MessageView) -> Resolution:
        """Answer as the local database would."""
        number = number_of(view.value)
        if "unknown" in self.kind(number) and view.check_number == 1:
            return Resolution.UNKNOWN
        return Resolution.COMMIT if self.is_committed(number) else Resolution.ROLLBACK


def number_of(value: bytes | None) -> int:
    """Return the number of the transaction that a message belongs to."""
    return int((value or b"").partition(b":")[0])


@pytest.mark.feature
@pytest.mark.broker
def test_case_127_a_random_mix_with_restarts_has_no_unexpected_check(
    installation: Installation,
) -> None:
    """32 threads, no daemon for a third of the load: delivered and asked about as predicted."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    orders = installation.real("orders")
    load = Load(seed, orders)
    with installation.producer(load.check) as producer, ThreadPoolExecutor(THREADS) as pool:
        first = installation.start(**QUICK)
        runs = [pool.submit(load.run, producer, number) for number in range(TRANSACTIONS)]
        until("a third is through", lambda: load.begun.total() >= TRANSACTIONS // 3)
        first.stop()
        until("two thirds are through", lambda: load.begun.total() >= 2 * TRANSACTIONS // 3)
        installation.start(**QUICK)
        for each in runs:
            each.result()
        installation.tail(orders).until(sum(map(load.is_committed, range(TRANSACTIONS))))
        undecided = installation.daemons[-1]
        until("all are decided", lambda: not undecided.metric("rocketmq_half_messages"))
    requests = installation.asked()
    arrived = Counter(number_of(each.value) for each in installation.delivered(orders))
    assert arrived == Counter(filter(load.is_committed, range(TRANSACTIONS)))
    assert installation.dead_letters() == []
    asked_about = {number_of(each.value) for each in requests}
    assert asked_about >= {n for n in range(TRANSACTIONS) if load.kind(n).startswith("check")}
    names = installation.names
    halves, ops = (installation.tail(topic).to_end() for topic in (names.half, names.op))
    times = {"timeout_ms": TIMEOUT_MS, "interval_ms": INTERVAL_MS}
    assert unexpected_checks(halves, ops, requests, **times) == []


# --- the oracle itself ---------------------------------------------------------------------


def record(at_ms: int, value: bytes, *headers: tuple[str, bytes | None]) -> Record:
    """Return a record as a reader sees it; its time is its offset, too."""
    return Record("any", 0, at_ms, True, at_ms, b"", value, list(headers))


def half(at_ms: int) -> Record:
    """Return the half record of transaction A."""
    return record(at_ms, b"", (HALF, HALF_METADATA.encode(metadata("A"))))


def said(at_ms: int, kind: OpKind, **fields: Any) -> Record:
    """Return an op about it."""
    return record(at_ms, OP.encode(op_record("A", kind, half_offset=0)._replace(**fields)))


def answer(at_ms: int, number: int) -> Record:
    """Return an UNKNOWN that counts."""
    return said(at_ms, OpKind.UNKNOWN, check_number=number, source=OpSource.CHECK)


def asked(at_ms: int, number: int = 1, attempt: int = 1, name: str = "A") -> Record:
    """Return a request."""
    request = A_REQUEST._replace(
        transaction_id=name,
        sent_timestamp=at_ms,
        producer_group=GROUP,
        check_number=number,
        attempt=attempt,
    )
    return record(at_ms, b"", (CHECK, CHECK_REQUEST.encode(request)))


@pytest.mark.parametrize(
    ("ops", "checks", "wrong"),
    [
        ([], [asked(1_300)], ""),
        ([], [asked(1_299)], "1 ms before it was due"),
        ([], [asked(1_300, name="B")], "no half message"),
        ([said(1_299, OpKind.COMMIT)], [asked(1_300)], "decided 1 ms before"),
        ([said(1_299, OpKind.ROLLBACK)], [asked(1_700)], "decided 1 ms before"),
        ([said(1_300, OpKind.COMMIT)], [asked(1_310)], ""),
        ([said(1_299, OpKind.COMMIT, producer_group="thieves")], [asked(1_300)], ""),
        ([], [asked(1_300), asked(1_500, 1, 2)], ""),
        ([], [asked(1_300), asked(1_499, 1, 2)], "1 ms before it was due"),
        ([said(1_499, OpKind.COMMIT)], [asked(1_300), asked(1_500, 1, 2)], "decided 1 ms before"),
        ([answer(1_499, 1)], [asked(1_300), asked(1_500, 1, 2)], "answered 1 ms before"),
        ([answer(1_500, 1)], [asked(1_300), asked(1_510, 1, 2)], ""),
        ([answer(1_310, 1)], [asked(1_300), asked(1_510, 2)], ""),
        ([], [asked(1_300), asked(1_510, 2)], "nobody answered 1"),
    ],
)
def test_the_oracle_finds_what_is_wrong(
    ops: list[Record], checks: list[Record], wrong: str
) -> None:
    """And leaves alone what only crossed on the way; each of its rules, to the millisecond."""
    found = unexpected_checks([half(1_000)], ops, checks, timeout_ms=300, interval_ms=200)
    assert len(found) == bool(wrong)
    assert wrong in "".join(found)
