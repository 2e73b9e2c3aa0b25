"""A stage for faults: an installation of its own, real processes on it, and the verdict.

Everything that runs is a process: daemons (supervisor and workers), clients, and a witness that
reads `read_committed` all the time. Faults are signals to them. At the end everything is read
again from offset zero, and the history checker says what is wrong.
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import TimeoutError  # noqa: A004 (its own on 3.10)
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.shape import HALF_RETENTION_MS, Layout, TopicShape
from halfbridge.checker.admin.topics import create_topics
from halfbridge.kafka.admin import AdminClient
from halfbridge.kafka.errors import KafkaFailure
from halfbridge.serde.delivery import Delivery
from halfbridge.serde.topics import TopicNames
from halfbridge.testkit.children import STOP_S_MAX, Child, Children
from halfbridge.testkit.history import (
    ClientTransaction,
    Outcome,
    ReadRecord,
    Verdict,
    read_client_logs,
)
from halfbridge.testkit.judge import judge
from halfbridge.testkit.reader import READ_S_MAX, load_records, read_all, read_ops
from halfbridge.testkit.stack import DaemonProgress
from tests.check_oracle import unexpected_in
from tests.faults.plan import Kind
from tests.kit.load import PRODUCER_GROUP, QUIET, READY, REAL_TOPICS
from tests.kit.processes import children_of, running
from tests.kit.waiting import SETTLED_S, until

_ROOT = Path(__file__).parents[2]
_CALL_S = 20.0
# Short limits: a discard comes after 2 + 3 times 1 s, and windows of put-backs are small.
LIMITS = {
    "TRANSACTION_TIMEOUT_MS": "2000",
    "CHECK_INTERVAL_MS": "1000",
    "CHECK_COUNT_MAX": "3",
    "SESSION_TIMEOUT_MS": "6000",  # the least that brokers allow by default
    "KAFKA_TXN_TIMEOUT_MS": "5000",
    "BATCH_RECORDS_MAX": "200",
    "REPUBLISH_WINDOW_RECORDS": "400",
}
# To begin to dump its stacks: faulthandler takes milliseconds, unless the process is stopped.
_LATE_S = 3.0
_LAST_LINES = 120
_DUMP_S = 30.0  # to write the stacks of its threads, on a busy machine
_FRAMES = "most recent call first"  # faulthandler's words


def seed_of_run() -> int:
    """Return HALFBRIDGE_FAULTS_SEED, or a fresh seed; it is printed, pytest shows it on failure."""
    seed = int(os.environ.get("HALFBRIDGE_FAULTS_SEED") or random.SystemRandom().randrange(10**6))
    print(f"HALFBRIDGE_FAULTS_SEED={seed}")
    return seed


@dataclass
class Daemon:
    """A running `checker run`, with or without a supervisor."""

    child: Child

    @property
    def pid(self) -> int:
        """Process id of the command itself."""
        return self.child.process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the command itself runs."""
        return self.child.process.poll() is None

    def workers(self) -> list[int]:
        """Return the process ids of the supervisor's workers, oldest first."""
        return children_of(self.pid)

    def await_workers(self, count: int = 2) -> list[int]:
        found: list[int] = until(
            f"{count} workers of {self.child.name}",
            lambda: pids if len(pids := self.workers()) == count else None,
        )
        return found

    def await_worker(self, slot: str) -> int:
        """Return the process id of the worker that runs on a slot, once there is one."""
        said = re.compile(rf"worker on slot {re.escape(slot)} starts, process (\d+)$", re.MULTILINE)
        found: int = until(
            f"a worker of {self.child.name} on {slot}",
            lambda: next(
                (pid for pid in map(int, said.findall(self.log())) if pid in self.workers()), None
            ),
        )
        return found

    def ended(self, *, within_s: float) -> int:
        """Return the exit status once the command has ended by itself."""
        until(
            f"the end of {self.child.name}",
            lambda: not self.is_alive,
            within_s=within_s,
            explain=lambda: self.where_stand([self.pid]),
        )
        return int(self.child.process.returncode)

    def where_stand(self, pids: Iterable[int]) -> str:
        """End these of its processes, and return its last lines: the stacks of their threads."""
        ended = running(pids)
        for pid, _ in ended:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGABRT)  # see PYTHONFAULTHANDLER
        with suppress(AssertionError):
            until("they end", lambda: not ended & running(p for p, _ in ended), within_s=_DUMP_S)
        return "\n".join(("", *self.log().splitlines()[-_LAST_LINES:]))

    def log(self) -> str:
        """Return all it wrote to standard error, its workers' lines included."""
        return self.child.errors.read_text("utf-8", "replace")


@dataclass
class Stage:
    """An installation with a prefix that nobody else has.

    Attributes:
        servers: Bootstrap servers.
        prefix: Of all topics and groups.
        directory: Logs, local database, witness's file, slot locks.
        children: Starts and ends the processes.
        direct: Bootstrap servers for questions of the stage itself, past any proxy.
        replicas: Of each topic.
        kinds: Kind of transaction -> what became of it, once there is a verdict.
        load: What ran, in words.
        injected: Fault -> how often it was injected; the injecting code counts.
        recovered_s: How long deliveries took to go on after each healed fault, seconds.
        judged: What the judge saw, once there is a verdict.
        seed: Of the clients.
        delivery: The mode of its daemons.
    """

    servers: str
    prefix: str
    directory: Path
    children: Children
    direct: str = ""
    replicas: int = 1
    load: list[str] = field(default_factory=list)
    injected: Counter[str] = field(default_factory=Counter)
    recovered_s: list[float] = field(default_factory=list)
    judged: dict[str, int] = field(default_factory=dict)
    seed: int | None = None
    delivery: Delivery = Delivery.EXACTLY_ONCE
    _records: list[ReadRecord] = field(default_factory=list)
    _read_to: int = 0
    _names: Counter[str] = field(default_factory=Counter)
    verdict: Verdict | None = None
    _witness: Child | None = None
    _started: list[Child] = field(default_factory=list)
    kinds: dict[str, Counter[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.direct = self.direct or self.servers
        self._admin: Any = AdminClient({"bootstrap.servers": self.direct})

    @property
    def names(self) -> TopicNames:
        """Names of the internal topics and groups."""
        return TopicNames(self.prefix)

    @property
    def real_topics(self) -> list[str]:
        """Full names of the real topics."""
        return [self.prefix + topic for topic in REAL_TOPICS]

    # --- processes -------------------------------------------------------------------------

    def make(self, *, partitions: int = 4) -> Stage:
        """Make all topics, the real ones with as many partitions; start the witness."""
        cluster = Cluster(self.direct)
        create_topics(
            cluster,
            self.names,
            Layout(
                partitions=partitions,
                replication_factor=self.replicas,
                retention_ms=HALF_RETENTION_MS,
                producer_groups=(PRODUCER_GROUP,),
            ),
        )
        for topic in self.real_topics:
            cluster.create(TopicShape(topic, partitions, ()), replication_factor=self.replicas)
        self._witness = self.start(
            "witness",
            ("-m", "halfbridge.testkit.reader", "--bootstrap-servers", self.servers),
            ("--topics", ",".join((*self.real_topics, self.names.dead))),
            ("--out", str(self._witnessed)),
        )
        until("the witness's file", self._witnessed.exists)
        return self

    def daemon(self, *flags: str, name: str = "daemon") -> Daemon:
        """Start `checker run` with short limits; flags win over them."""
        self.load.append(" ".join(("checker run", *flags)))
        return Daemon(
            self.start(
                name,
                ("-m", "halfbridge", "checker", "run", "--bootstrap-servers", self.servers),
                ("--topic-prefix", self.prefix, "--state-dir", str(self.directory / "state")),
                ("--delivery", self.delivery.value),
                flags,
            )
        )

    def client(
        self,
        name: str,
        *flags: str,
        seed: int,
        rate: float,
        pipelined: bool = False,
        die_at: int = 0,
    ) -> Child:
        """Start a producer and return it once it is started; see client.py. Flags win."""
        self.seed = seed
        self.load.append(f"{name} {rate:g}/s")
        child = self.start(
            f"client-{name}",
            (str(_ROOT / "tests/faults/client.py"), "--bootstrap-servers", self.servers),
            ("--prefix", self.prefix, "--directory", str(self.directory), "--name", name),
            ("--seed", str(seed), "--rate", str(rate), "--late-s", str(_LATE_S)),
            ("--pipelined",) if pipelined else (),
            ("--die-at", str(die_at)),
            flags,
        )
        until(f"{child.name} is ready", lambda: READY in child.output.read_text())
        return child

    def usual_clients(
        self, *flags: str, seed: int, pipelined: float, blocking: float
    ) -> list[Child]:
        """Start a pipelined and a blocking producer, at these rates (transactions per second)."""
        return [
            self.client("pipelined", *flags, seed=seed, rate=pipelined, pipelined=True),
            self.client("blocking", *flags, seed=seed, rate=blocking),
        ]

    def quiet(self, clients: Iterable[Child]) -> None:
        """Have clients begin nothing more, and wait until what they began has ended."""
        clients = list(clients)
        for child in clients:
            os.kill(child.process.pid, signal.SIGUSR1)
        for child in clients:
            until(
                f"{child.name} is quiet",
                lambda child=child: QUIET in child.output.read_text(),
            )

    def stop(self, daemon: Daemon, *, within_s: float = 12.0) -> int:
        """SIGTERM the command alone, as a service manager does; return its exit status."""
        daemon.child.process.send_signal(signal.SIGTERM)
        status = daemon.ended(within_s=within_s)
        self.children.kill(daemon.child)
        return status

    def start(self, name: str, *words: tuple[str, ...]) -> Child:
        """Start Python with these words, the limits in its environment; a name may come again."""
        ours = {k: v for k, v in os.environ.items() if not k.startswith("HALFBRIDGE_")}
        limits = {f"HALFBRIDGE_{name}": value for name, value in LIMITS.items()}
        self._names[name] += 1
        if self._names[name] > 1:
            name = f"{name}-{self._names[name]}"
        child = self.children.start(
            name,
            (sys.executable, *(word for part in words for word in part)),
            environ={**ours, **limits, "PYTHONPATH": str(_ROOT), "PYTHONFAULTHANDLER": "1"},
        )
        self._started.append(child)
        return child

    # --- what came out ---------------------------------------------------------------------

    @property
    def _witnessed(self) -> Path:
        return self.directory / "witness.jsonl"

    def witnessed(self) -> list[ReadRecord]:
        """Return what the witness has read so far: real records and dead letters."""
        fresh, self._read_to = load_records(self._witnessed, offset=self._read_to)
        self._records += fresh
        return self._records

    def decisions_reported(self) -> int:
        """Return how many decisions the brokers acknowledged to clients so far."""
        logs = self.directory.glob("client-*.jsonl")
        reported = (read_client_logs([log]) for log in sorted(logs))
        return sum(
            claim.outcome is Outcome.OK for txs in reported for tx in txs for claim in tx.claims
        )

    def await_more(self, count: int = 1, *, within_s: float = SETTLED_S) -> None:
        """Return when `count` more records were delivered."""
        wanted = len(self.witnessed()) + count
        until(
            f"{count} more deliveries",
            lambda: len(self.witnessed()) >= wanted,
            within_s=within_s,
            explain=self._why_no_more,
        )

    def await_backlog(self, ops_max: int, *, within_s: float) -> None:
        """Return once no more op records wait for the daemon."""
        with DaemonProgress(self.direct, self.names) as progress:
            until(
                f"at most {ops_max} ops wait",
                lambda: progress.ops_left() <= ops_max,
                within_s=within_s,
                every_s=0.5,
                explain=self._why_no_more,
            )

    def _why_no_more(self) -> str:
        """Return what tells the cases apart: nothing is written, or the witness does not read."""
        witnessed, committed = len(self.witnessed()), self._count_committed()
        return "\n".join(
            (
                f"the witness has read {witnessed} of {committed} records",
                *self._where_all_stand(),
                *(
                    f"--- {child.name}, status {child.process.poll()}\n{child.last_words()}"
                    for child in self._started
                ),
            )
        )

    def _count_committed(self) -> str:
        try:
            return str(len(read_all(self.direct, [*self.real_topics, self.names.dead])))
        except (TimeoutError, KafkaFailure) as error:
            return f"(cannot be read: {error})"

    def _where_all_stand(self) -> list[str]:
        """Return what is left to decide; the witness writes the stacks of its threads."""
        assert self._witness is not None
        errors = self._witness.errors
        os.kill(self._witness.process.pid, signal.SIGUSR1)
        with suppress(AssertionError):
            until("it says so", lambda: _FRAMES in errors.read_text(), within_s=_LATE_S)
        with DaemonProgress(self.direct, self.names) as progress:
            return progress.left()

    def recover(self, count: int, *, within_s: float) -> None:
        """Return when `count` more records were delivered; how long it took is published."""
        began = time.monotonic()
        self.await_more(count, within_s=within_s)
        self.recovered_s.append(time.monotonic() - began)

    def await_standstill(self, for_s: float, *, within_s: float = SETTLED_S) -> None:
        """Return once nothing was delivered for `for_s`.

        Not at once when nobody is connected any more: an open kafka_txn of a worker that was cut
        off hides what others have committed behind it, until the broker aborts it.
        """

        def is_still() -> bool:
            before = len(self.witnessed())
            time.sleep(for_s)  # the claim itself
            return len(self.witnessed()) == before

        until(f"nothing is delivered for {for_s:g} s", is_still, within_s=within_s)

    def end_judged(self, clients: Iterable[Child], *, within_s: float = SETTLED_S) -> None:
        """Have the last clients end, let everything be decided, and have the whole run judged.

        Fails when a promise was broken.
        """
        self.quiet(clients)
        self.settle(within_s=within_s)
        verdict = self.verdict = self._verdict()
        assert verdict.ok, verdict.describe()

    def unexpected_checks(self) -> list[str]:
        """Return what is wrong with the requests to producers; see tests/check_oracle.py.

        For one broker, whose clock nobody moved, and a daemon with the limits above.
        """
        return unexpected_in(
            self.direct,
            self.names,
            PRODUCER_GROUP,
            timeout_ms=int(LIMITS["TRANSACTION_TIMEOUT_MS"]),
            interval_ms=int(LIMITS["CHECK_INTERVAL_MS"]),
        )

    def settle(self, *, within_s: float = SETTLED_S) -> None:
        """Return once every half message is decided and every decision applied and committed."""
        with DaemonProgress(self.direct, self.names) as progress:
            until(
                "everything is decided and delivered",
                lambda: not progress.left(),
                within_s=within_s,
                explain=progress.left,
            )

    def members(self) -> dict[str, set[int]]:
        """Return slot -> half partitions, of every member that the group knows."""
        group = self.names.daemon_group
        described = self._admin.describe_consumer_groups([group])[group].result(_CALL_S)
        return {
            member.group_instance_id: {
                place.partition
                for place in member.assignment.topic_partitions
                if place.topic == self.names.half
            }
            for member in described.members
        }

    def await_members(self, count: int, *, partitions: int = 4, within_s: float = 60.0) -> None:
        """Return once the group has exactly `count` members and they share all partitions."""

        def is_shared() -> bool:
            try:
                shares = self.members().values()
            except KafkaException:
                return False  # the coordinator is moving
            return len(shares) == count and all(shares) and sum(map(len, shares)) == partitions

        until(f"{count} members share {partitions} partitions", is_shared, within_s=within_s)

    def read_out(self) -> list[ReadRecord]:
        """Stop the witness; return all real records and dead letters, read from zero.

        Fails when the witness, which read during the faults, saw anything else, or anything in
        another order, than a reader who comes afterwards.
        """
        assert self._witness is not None
        # A kafka_txn that a fault left open holds back what follows it until its broker aborts it,
        # so the witness may need its whole READ_S_MAX; then it says which ends it did not reach.
        status = self.children.stop(self._witness, timeout_s=READ_S_MAX + STOP_S_MAX)
        assert status == 0, f"witness ended with {status}\n{self._witness.last_words()}"
        live = self.witnessed()
        final = read_all(self.direct, [*self.real_topics, self.names.dead])
        assert _by_partition(live) == _by_partition(final), _difference(live, final)
        return final

    def _verdict(self) -> Verdict:
        """Read everything from zero, and judge it."""
        final = self.read_out()
        # Before the logs of the clients, which are written before an op is: answers come late too.
        ops = read_ops(read_all(self.direct, [self.names.op]))
        clients = read_client_logs(sorted(self.directory.glob("client-*.jsonl")))
        verdict = judge(
            clients,
            real=[record for record in final if record.topic != self.names.dead],
            dead=[record for record in final if record.topic == self.names.dead],
            ops=ops,
            delivery=self.delivery,
        )
        self.judged = {
            "transactions": len(clients),
            "messages": sum(len(tx.messages) for tx in clients),
            "delivered": len(final) - sum(record.topic == self.names.dead for record in final),
            "repeats": verdict.repeats,
            "violations": len(verdict.findings),
        }
        kinds = self.kinds = _count_kinds(clients, verdict)
        for kind in sorted(kinds):
            print(f"{kind:<17}", *(f"{k} {n:<7}" for k, n in kinds[kind].items()))
        # A run that lacks what it claims to be about proves nothing.
        assert kinds[Kind.CHECKED_COMMIT]["delivered"], "no check-back was needed"
        assert kinds[Kind.MULTI]["delivered"], "no transaction of several messages"
        assert kinds[Kind.NEVER]["dead"], "nothing was discarded"
        return verdict

    def close(self) -> None:
        """Delete the topics."""
        known = self._admin.list_topics(timeout=_CALL_S).topics
        mine = [topic for topic in known if topic.startswith(self.prefix)]
        for future in self._admin.delete_topics(mine).values() if mine else ():
            with suppress(KafkaException, TimeoutError):  # a broker whose clock was set back, say
                future.result(_CALL_S)


def _difference(live: list[ReadRecord], final: list[ReadRecord]) -> str:
    def places(records: list[ReadRecord]) -> dict[tuple[str, int, int], bytes | None]:
        return {(one.topic, one.partition, one.offset): one.value for one in records}

    during, after = places(live), places(final)
    return (
        "the witness saw something else:"
        f" only during the faults {sorted(during.keys() - after.keys())[:20]},"
        f" only afterwards {sorted(after.keys() - during.keys())[:20]},"
        f" twice {len(live) - len(during)},"
        f" other values {sum(after[each] != during[each] for each in after.keys() & during.keys())}"
    )


def _count_kinds(clients: Iterable[ClientTransaction], verdict: Verdict) -> dict[str, Counter[str]]:
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    for tx in clients:
        count = kinds[tx.label]
        count["sent"] += 1
        count["delivered"] += tx.transaction_id in verdict.delivered
        count["dead"] += tx.transaction_id in verdict.dead_lettered
    return kinds


def _by_partition(records: Iterable[ReadRecord]) -> dict[tuple[str, int], list[ReadRecord]]:
    sorted_out: dict[tuple[str, int], list[ReadRecord]] = defaultdict(list)
    for record in records:
        sorted_out[record.topic, record.partition].append(record)
    return dict(sorted_out)
