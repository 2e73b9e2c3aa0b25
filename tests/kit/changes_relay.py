"""A relay of changes as a process, and the judge of what it has written."""

import json
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from typing_extensions import Self

from halfbridge.serde.avro import DEAD_LETTER
from halfbridge.serde.headers import DEAD, TRANSACTION_ID
from halfbridge.testkit.history import ReadRecord
from halfbridge.testkit.ports import free_ports
from halfbridge.testkit.stack import HalfbridgeStack
from tests.kit.http import answer_of

WAIT_S_MAX = 120.0


class Relay:
    """`halfbridge relay run --changes` on a stack; a context manager that kills it."""

    def __init__(self, stack: HalfbridgeStack, changes: str, mapping: Path, *more: str) -> None:
        (self.port,) = free_ports(1)
        self._log = mapping.with_suffix(f".{self.port}.log")
        self._command = [
            *(sys.executable, "-m", "halfbridge", "relay", "run", "--changes", changes),
            *("--map", str(mapping), "--bootstrap-servers", stack.bootstrap_servers),
            *("--topic-prefix", stack.topic_prefix, "--metrics-port", str(self.port)),
            *("--state-dir", str(mapping.parent), "--session-timeout-ms", "6000"),
            *("--kafka-txn-timeout-ms", "5000", *more),
        ]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)
        return self

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Send it a signal, and return its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(WAIT_S_MAX)

    def said(self) -> str:
        return self._log.read_text("utf-8")

    def health(self) -> str:
        """Return what /healthz says; empty while it says nothing."""
        return answer_of(f"http://127.0.0.1:{self.port}/healthz", within_s=WAIT_S_MAX)[1]

    def metric(self, name: str) -> str:
        text = answer_of(f"http://127.0.0.1:{self.port}/metrics", within_s=WAIT_S_MAX)[1]
        return "\n".join(each for each in text.splitlines() if name in each)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.end()


def judged(records: list[ReadRecord]) -> list[str]:
    """Return what is wrong with the messages of relayed inserts, whose ids ascend in each key."""
    problems = []
    ids = Counter(dict(each.headers or ())[TRANSACTION_ID] for each in records)
    problems += [f"{each!r} {count} times" for each, count in ids.items() if count > 1]
    order = defaultdict(list)
    for each in sorted(records, key=lambda one: (one.partition, one.offset)):
        order[each.key].append(row_of(each)["id"])
    problems += [f"{key!r}: {got}" for key, got in order.items() if got != sorted(set(got))]
    return problems


def row_of(record: ReadRecord) -> dict[str, Any]:
    """Return the row that a message tells."""
    assert record.value is not None
    row: dict[str, Any] = json.loads(record.value)
    return row


def letters_of(stack: HalfbridgeStack, changes: str) -> list[Any]:
    """Return the dead letters of events of a change topic."""
    read = stack.read_committed(stack.config.names.dead)
    letters = [
        DEAD_LETTER.decode(each.headers[-1][1] or b"")
        for each in read
        if each.headers and each.headers[-1][0] == DEAD
    ]
    return [each for each in letters if each.source_topic == changes]
