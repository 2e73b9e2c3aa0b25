"""A damaged record that ends the process which reads it stops its own pair only."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic

from halfbridge.kafka.admin import AdminClient
from halfbridge.kafka.first_reads import LethalRecord, probe
from halfbridge.serde import CheckRequest, TopicNames
from halfbridge.testkit.broker import EmbeddedBroker
from halfbridge.testkit.ports import free_ports
from tests.integration.brokers import started
from tests.integration.installation import Installation
from tests.integration.producing import GROUP, PARTITIONS, Cluster, request_of
from tests.kit.http import answer_of
from tests.kit.waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.long]

REPORT = Path(__file__).parents[2] / "docs" / "evidence" / "librdkafka-crc-report.md"

SOUND, DAMAGED = 0, 1
BEFORE = 5
UNDECIDED = f"{1:032x}"
# A run of zeros in a record is enough for the abort: librdkafka reads 12 of them as a message.
VALUE = b"ab" + bytes(10_000)
BATCH_HEAD = 61  # bytes before the first record of a batch
# A worker that ended without a mark leaves one at its next start; a second end is the last one.
# With two workers, each may end once before either finds the mark of the other.
ENDS_MAX = 4
FOUND_S = 120.0
SESSION_MS = 6_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """Yield a broker of its own, whose files the test damages."""
    with started(EmbeddedBroker(directory=tmp_path), "no broker to damage") as made:
        yield made


@pytest.fixture
def damaged(broker: EmbeddedBroker, topic_prefix: str) -> Iterator[Installation]:
    """Yield an installation with two pairs, one of them with a damaged half record.

    A dead letter and a record of the audit topic are damaged too.
    """
    with closing(Installation(broker.bootstrap_servers, topic_prefix)) as made:
        made.make(partitions=2)
        orders = made.topic("orders")
        for value in (*[b"sound"] * BEFORE, VALUE):
            made.half(orders, partition=DAMAGED, value=value)
        made.half(orders, UNDECIDED, partition=SOUND)
        for value in (b"sound", VALUE, b"sound"):
            made.write(made.names.dead, value)
            made.write(made.names.audit, value)
        broker.node().terminate()
        for place, number, kind in (
            (f"{made.names.half}-{DAMAGED}", BEFORE, "flip"),
            (f"{made.names.dead}-0", 1, "flip"),
            (f"{made.names.audit}-0", 1, "size"),
        ):
            (log,) = broker.directory.glob(f"**/{place}/*.log")
            spoil(log, number, kind)
        broker.restart()
        yield made


def spoil(log: Path, number: int, kind: str) -> None:
    """Damage the batch with this number in a segment file.

    Args:
        log: The file.
        number: From 0.
        kind: `flip`: a byte of VALUE is wrong, which must be in the batch. `zero`: the batch is
            zeros. `size`: the first record's size is wrong.
    """
    data = bytearray(log.read_bytes())
    begin = 0
    for _ in range(number):
        begin += _batch_size(data, begin)
    end = begin + _batch_size(data, begin)
    if kind == "zero":
        data[begin:end] = bytes(end - begin)
    elif kind == "size":
        data[begin + BATCH_HEAD] ^= 0x7F
    else:
        data[data.index(VALUE, begin, end)] = ord("z")
    log.write_bytes(data)


def _batch_size(data: bytearray, begin: int) -> int:
    return 12 + int.from_bytes(data[begin + 8 : begin + 12], "big")


class Pod:
    """`checker run` on a slot of its own, started again whenever it ends, as Kubernetes does."""

    def __init__(self, installation: Installation, slot: str, workers: int) -> None:
        (self.port,) = free_ports(1)
        self.ends: list[int] = []
        flags = {
            "bootstrap-servers": installation.servers,
            "topic-prefix": installation.names.prefix,
            "slot": slot,
            "workers": str(workers),
            "session-timeout-ms": str(SESSION_MS),
            "metrics-port": str(self.port),
            "metrics-host": "127.0.0.1",
        }
        words = [word for name, value in flags.items() for word in (f"--{name}", value)]
        self._command = [sys.executable, "-m", "halfbridge", "checker", "run", *words]
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def health(self) -> dict[str, Any]:
        """Return what /healthz says; empty while nobody answers."""
        _, body = answer_of(f"http://127.0.0.1:{self.port}/healthz")
        return json.loads(body) if body else {}

    def close(self) -> None:
        """End the process and start it no more."""
        self._stop.set()
        if self._process is not None:
            self._process.terminate()
        self._thread.join()

    def _keep(self) -> None:
        while not self._stop.is_set():
            self._process = subprocess.Popen(self._command, env=dict(os.environ))
            status = self._process.wait()
            if not self._stop.is_set():
                self.ends.append(status)


# A service whose member looks for stalls more often, and which ends with its standard input.
SERVICE = """
import sys
from halfbridge.bridge import check_requests
check_requests.POLL_S, check_requests.STALLED_S = 0.1, 1.0
from halfbridge.bridge import Resolution, TransactionProducer
servers, group, prefix, topic = sys.argv[1:]
with TransactionProducer(
    bootstrap_servers=servers, producer_group=group, topic_prefix=prefix, topics=[topic],
    checker=lambda _: Resolution.COMMIT, kafka={"check.crcs": True},
) as producer:
    sys.stdin.read()
    print(producer.check_counts().unreadable)
"""


@pytest.mark.parametrize("kind", ["zero", "size"])
def test_a_service_answers_checks_around_a_damaged_request(
    broker: EmbeddedBroker, topic_prefix: str, kind: str
) -> None:
    """Each process of the service aborted, or answered no check of the partition any more.

    The zeros stand between two batches, where the library would abort. The wrong size keeps the
    library from reading on, without an error.
    """
    cluster = Cluster(broker.bootstrap_servers, TopicNames(topic_prefix))
    names = cluster.names
    check = names.check(GROUP)
    cluster.create((names.half, PARTITIONS), (names.op, PARTITIONS), (check, 1))
    cluster.create((cluster.orders, 1))
    sound, lost, behind, again = (request_of(cluster, number) for number in range(4))
    for request, value in ((sound, b"v"), (lost, VALUE), (behind, b"v")):
        cluster.ask(request, value=value)  # brokers index what follows more than 4 KiB
    broker.node().terminate()
    (log,) = broker.directory.glob(f"**/{check}-0/*.log")
    spoil(log, 1, kind)
    broker.restart()

    service = subprocess.Popen(
        [sys.executable, "-c", SERVICE, cluster.servers, GROUP, names.prefix, cluster.orders],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert service.stderr is not None
        said = next((line for line in service.stderr if f"{check}[0]@1" in line), "")
        assert "docs/incidents/damaged-record.md" in said
        until("it reads on", lambda: _answers(cluster, again), within_s=FOUND_S)
        assert sound.transaction_id in {op.transaction_id for _, op in cluster.ops()}
        assert int(service.communicate("", timeout=FOUND_S)[0]) > 0
    finally:
        service.kill()
        service.wait()
    assert service.returncode == 0


def _answers(cluster: Cluster, request: CheckRequest) -> bool:
    """Ask, and return whether the op topic has an answer; the daemon asks again too."""
    cluster.ask(request)
    return request.transaction_id in {op.transaction_id for _, op in cluster.ops()}


def test_a_child_finds_the_record(damaged: Installation) -> None:
    """It names the partition and the offset, and finds nothing in a sound partition."""
    half = damaged.names.half
    properties = {"bootstrap.servers": damaged.servers}
    found = probe(properties, {(half, SOUND): 0, (half, DAMAGED): 0})
    assert found == LethalRecord(half, DAMAGED, BEFORE, "SIGABRT")
    assert probe(properties, {(half, SOUND): 0}) is None


@pytest.mark.parametrize(("damage", "check_crcs"), [("flip", "true"), ("zero", "false")])
def test_the_report_for_the_library_reproduces_the_fault(
    broker: EmbeddedBroker, tmp_path: Path, damage: str, check_crcs: str
) -> None:
    """Its program and its steps end in the assertion that the report names."""
    text = REPORT.read_text().partition("## Reproduction")[2]
    lines = [line for line in text.splitlines() if not line or line.startswith("    ")]
    script = tmp_path / "crc.py"
    script.write_text(textwrap.dedent("\n".join(lines)))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic("crc", 1, 1)])["crc"].result()

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(script), *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=FOUND_S)

    assert run("write", broker.bootstrap_servers).returncode == 0
    broker.node().terminate()
    (log,) = broker.directory.glob("**/crc-0/*.log")
    assert run(damage, log).returncode == 0
    broker.restart()
    read = run("read", broker.bootstrap_servers, check_crcs)
    assert read.returncode == -signal.SIGABRT, read.stdout
    assert "rd_slice_narrow_copy" in read.stderr


@pytest.mark.parametrize(
    ("slots", "workers"), [(("a", "b"), 1), (("a",), 2)], ids=["pods", "supervisor"]
)
def test_all_pairs_but_the_damaged_one_are_served(
    damaged: Installation, slots: tuple[str, ...], workers: int
) -> None:
    """The pair moved from pod to pod, and all of them ended in turn, for ever."""
    orders = damaged.real("orders")
    with ExitStack() as stack:
        pods = [Pod(damaged, slot, workers) for slot in slots]
        for pod in pods:
            stack.callback(pod.close)
        place = f"{damaged.names.half}[{DAMAGED}]@{BEFORE}"
        until(
            f"{place} is named",
            lambda: any(place in json.dumps(pod.health()) for pod in pods),
            within_s=FOUND_S,
        )
        for count in range(1, 4):
            damaged.pass_through(orders, partition=SOUND)
            damaged.tail(orders).until(count)
        ends = [end for pod in pods for end in pod.ends]
        assert len(ends) <= ENDS_MAX
        assert set(ends) == ({-signal.SIGABRT} if workers == 1 else set())

        assert place in _run(damaged, "doctor").stdout


def test_commands_name_the_record(damaged: Installation) -> None:
    """Each aborted, or reported that a kafka_txn may be open. `tx list` shows the other pairs."""
    names = damaged.names
    half, dead = f"{names.half}[{DAMAGED}]@{BEFORE}", f"{names.dead}[0]@1"
    listed = _run(damaged, "tx", "list")
    assert UNDECIDED in listed.stdout
    for place, done in (
        (half, listed),
        (half, _run(damaged, "tx", "show", UNDECIDED, "--from", "1h")),
        (dead, _run(damaged, "dead", "list")),
        (f"{names.audit}[0]@1", _run(damaged, "audit-log", "list")),
    ):
        assert done.returncode == 1
        *_, line = done.stderr.splitlines()
        assert place in line
        assert "docs/incidents/damaged-record.md" in line


def _run(damaged: Installation, *words: str) -> subprocess.CompletedProcess[str]:
    """Return how a command ended; no signal ends it."""
    flags = ["--bootstrap-servers", damaged.servers, "--topic-prefix", damaged.names.prefix]
    done = subprocess.run(
        [sys.executable, "-m", "halfbridge", *words, *flags],
        capture_output=True,
        text=True,
        check=False,
        timeout=FOUND_S,
    )
    assert done.returncode >= 0, done.stderr
    return done
