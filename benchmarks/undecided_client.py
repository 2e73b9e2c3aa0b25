"""A client that decides nothing, a separate process, and a checker that answers at once.

`python -m benchmarks.undecided_client <config>` waits for SIGUSR1. Then it stores the half
message of one transaction, and waits for its check; then those of `messages` transactions, and
waits for SIGUSR1 again. It prints JSON lines.
"""

from __future__ import annotations

import sys
import threading
import time
from array import array
from typing import Any

from halfbridge import Message, Resolution, TransactionProducer
from halfbridge.bench.load import BenchConfig, make_keys, make_packer, print_fact, unpack_head
from halfbridge.bench.roles import PRODUCER_GROUP, on_sigusr1
from halfbridge.serde.units import NS_PER_S

ALONE = 0  # number of the first transaction; the others have 1, 2, ...
_CHECK_S_MAX = 60.0  # a run that takes longer has failed
_STORE_S_MAX = 120.0  # as `_CHECK_S_MAX`


class Checks:
    """Answers COMMIT, and notes when each message was asked about first."""

    def __init__(self, count: int) -> None:
        self._asked_ns = array("q", bytes(8 * count))
        self._lock = threading.Lock()
        self.alone = threading.Event()

    def __call__(self, view: Any) -> Resolution:
        now_ns = time.monotonic_ns()
        _, number = unpack_head(view.value)
        with self._lock:
            self._asked_ns[number] = self._asked_ns[number] or now_ns
        if number == ALONE:
            self.alone.set()
        return Resolution.COMMIT

    def asked_ns(self, first: int) -> list[int]:
        """Return when the messages from number `first` on were asked about, ascending."""
        return sorted(filter(None, self._asked_ns[first:]))


def main(arguments: list[str]) -> int:
    """Store half messages; return 1 if one was not stored, or the first was not asked about."""
    config = BenchConfig.from_json(arguments[0])
    signalled = on_sigusr1()
    checks = Checks(config.messages + 1)
    with TransactionProducer(
        producer_group=PRODUCER_GROUP, checker=checks, **config.producer_settings
    ) as producer:
        print_fact({"timeout_ms": producer.config.transaction_timeout_ms})
        signalled.acquire()
        stored_ns = _store(config, producer, range(ALONE, ALONE + 1))
        if not checks.alone.wait(_CHECK_S_MAX):
            sys.stderr.write("the first transaction was not asked about\n")
            return 1
        print_fact({"first_check_s": (checks.asked_ns(ALONE)[0] - stored_ns) / NS_PER_S})
        print_fact({"stored_ns": _store(config, producer, range(1, config.messages + 1))})
        signalled.acquire()
        asked = checks.asked_ns(1)
        print_fact({"asked": len(asked), "first_asked_ns": asked[0], "last_asked_ns": asked[-1]})
    return 0


def _store(config: BenchConfig, producer: TransactionProducer, numbers: range) -> int:
    """Store half messages; return when the last one was acknowledged, ns."""
    pack, keys = make_packer(config.size_bytes), make_keys(config.keys)
    sent = []
    for number in numbers:
        value = pack(time.monotonic_ns(), number)
        message = Message(config.real_topic, key=keys[number % len(keys)], value=value)
        sent.append(producer.begin().send_async(message))
    for future in sent:
        future.result(_STORE_S_MAX)
    return time.monotonic_ns()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
