"""Order services with a fence, run as processes that are killed, and judged by their database.

The topics must have the messages of the database's rows; the history checker uses the rows too.
"""

import json
import random
import signal
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import insert, select

from halfbridge.serde.records import OpKind
from halfbridge.sql import Fence, Inbox
from halfbridge.testkit.children import Child
from halfbridge.testkit.history import (
    Claim,
    ClientTransaction,
    Outcome,
    ReadOp,
    ReadRecord,
    Verdict,
    read_client_logs,
)
from halfbridge.testkit.judge import judge
from halfbridge.testkit.reader import read_all, read_ops
from tests.faults.stage import Daemon, Stage
from tests.kit.load import PRODUCER_GROUP, READY
from tests.kit.waiting import until
from tests.sql.databases import Database, OwnDatabase
from tests.sql.fence_plan import ITEMS, SHIPPED, STOCK, TABLES, Step
from tests.sql.fence_service import DECIDED

THREADS = 3  # per service
DAEMONS = ("one", "two")  # their slots
SETTLED_WITHIN_S = 120.0  # limit of each wait, on a busy machine


class FenceScene:
    """Services and two daemons on one stage and one database.

    Args:
        stage: Without topics yet.
        database: Where the local transactions are.
        seed: Of what services do, and of which process is killed when.
        flags: Of all services.
        service: The file of the service program.

    Attributes:
        killed: Description of a kill -> number of these kills.
        records: The records of the topics, once there is a verdict.
        rows: The rows of SHIPPED, once there is a verdict.
    """

    def __init__(
        self,
        stage: Stage,
        database: Database,
        *,
        seed: int,
        flags: tuple[str, ...] = (),
        service: str = "fence_service.py",
    ) -> None:
        self._service = Path(__file__).with_name(service)
        self.stage, self.database = stage, database
        self.killed = stage.injected
        self.records: list[ReadRecord] = []
        self.rows: list[Any] = []
        stage.seed = seed
        self._seed = seed
        self._flags = flags
        self._draw = random.Random(seed)
        self._services: dict[int, tuple[Child, Step | None]] = {}
        self._daemons: dict[str, Daemon] = {}
        self._started = 0
        self._load: list[str] = []
        self._engine = database.engine(pool_pre_ping=True)
        self._fence = Fence(self._engine, producer_group=PRODUCER_GROUP)
        self._inbox = Inbox(self._engine, group_id=PRODUCER_GROUP)

    # --- what happens ----------------------------------------------------------------------

    def begin(self, services: int) -> None:
        """Create topics, and tables for `services` services; start the daemons."""
        self.stage.make()
        TABLES.create_all(self._engine)
        items = range(ITEMS * THREADS * services)
        with self._engine.begin() as connection:
            connection.execute(insert(STOCK), [{"item": each, "amount": 0} for each in items])
        self._fence.create()
        self._inbox.create()
        for slot in DAEMONS:
            self._start_daemon(slot)
        self._load = [*self.stage.load, f"{services} order services of {THREADS} threads"]
        self.stage.await_members(len(DAEMONS), within_s=SETTLED_WITHIN_S)

    def start(self, place: int, *flags: str) -> None:
        """Start a service that must not die."""
        self._start(place, None, *flags)

    def run(
        self, kills: int, *, services: int, blocks_max: int, server_every: int, daemon_every: int
    ) -> None:
        """Kill services at steps that the seed draws, sometimes a daemon or the database server.

        Args:
            kills: Number of kills of all kinds.
            services: Number that run at once; a dead service is restarted.
            blocks_max: Maximum of blocks that a service begins before it dies.
            server_every: Each kill with a multiple of this number hits the database server, if any.
            daemon_every: Each kill with a multiple of this number hits a daemon.
        """
        for place in range(services):
            self._start_doomed(place, blocks_max)
        for number in range(1, kills + 1):
            if number % daemon_every == 0:
                self._kill_daemon()
            elif number % server_every == 0 and isinstance(self.database, OwnDatabase):
                self.database.kill()
                self.database.restart()
                self.killed["database server killed and restarted"] += 1
            else:
                (place,) = until("a service dies", self._dead, within_s=SETTLED_WITHIN_S)
                self._start_doomed(place, blocks_max)

    def run_each_step(self, blocks: int) -> None:
        """Kill a service at each step in turn, once it has begun `blocks` blocks."""
        for step in Step:
            self._start(0, step, "--die-at", step.name, "--die-in", str(blocks))
            until(f"the service dies {step.value}", self._dead, within_s=SETTLED_WITHIN_S)

    def kill_at_each_step(self, blocks: int) -> None:
        """Kill a service once at each step, and check what its successor finds."""
        self.begin(services=1)
        self.run_each_step(blocks)
        self.start(0)
        self.await_transactions(len(self.transactions()) + THREADS * blocks)
        self.check()
        killed = {step: self.killed[f"service killed {step.value}"] for step in Step}
        assert killed == dict.fromkeys(Step, 1)

    def await_transactions(self, count: int) -> None:
        """Return once all services together have begun `count` transactions."""
        until(
            f"{count} transactions", lambda: self._begun() >= count, within_s=SETTLED_WITHIN_S * 3
        )

    def tell_decisions(self) -> None:
        """Create the DECIDED file, for services, of each transaction that has an op."""
        for each in self._ops():
            (self.stage.directory / DECIDED / each.op.transaction_id).touch()

    def finish(self) -> Verdict:
        """Replace services that were still to die, wait until all is settled, and judge."""
        for place, (child, step) in list(self._services.items()):
            if step is not None:
                self.stage.children.kill(child)
                self.killed["service killed at any moment"] += 1
                self._start(place, None)
        for child, _ in self._services.values():
            until(f"{child.name} is ready", lambda child=child: READY in child.output.read_text())
        self.stage.quiet([child for child, _ in self._services.values()])
        self.stage.settle(within_s=SETTLED_WITHIN_S)
        self.stage.load[:] = self._load  # without the successors of killed processes
        self.records = self.stage.read_out()
        verdict = self._judge()
        for daemon in self._daemons.values():
            assert self.stage.stop(daemon) == 0
        for child, _ in self._services.values():
            assert self.stage.children.stop(child) == 0, child.last_words()
        return verdict

    def check(self) -> None:
        """Finish; check that the topics have each row's message once, in order per key."""
        verdict = self.finish()
        print(f"{self.database.name}: {dict(self.killed)} {self.stage.judged}")
        print(f"blocks: {self.endings()}")
        assert verdict.ok, verdict.describe()
        rows = Counter((row.topic, row.order_key, row.value) for row in self.rows)
        assert rows == Counter(map(_place, self.delivered()))
        assert [each for each in self.records if each.topic == self.stage.names.dead] == []
        work, fence_rows = self.rows_and_fence_rows()
        assert work == fence_rows
        counts = {(each.op.transaction_id, each.op.message_count) for each in self._commits()}
        assert counts == set(work.items())
        assert self.marks() == Counter(self.taken())
        assert self.out_of_order() == []
        assert self.untrue() == []

    # --- results ---------------------------------------------------------------------------

    def transactions(self) -> list[ClientTransaction]:
        """Return what the services sent, and what their checkers answered."""
        return read_client_logs(sorted(self.stage.directory.glob("client-*.jsonl")))

    def blocks(self) -> list[dict[str, Any]]:
        """Return the log entries of blocks that ended."""
        paths = self.stage.directory.glob("blocks-*.jsonl")
        return [
            json.loads(line)
            for path in sorted(paths)
            for line in path.read_bytes().split(b"\n")[:-1]
        ]

    def delivered(self) -> list[ReadRecord]:
        """Return the records of the real topics."""
        return [record for record in self.records if record.topic != self.stage.names.dead]

    def endings(self) -> dict[str, int]:
        """Return the number of blocks by kind and end."""
        return dict(Counter(f"{each['kind']} {each['ended'] or 'ok'}" for each in self.blocks()))

    def out_of_order(self) -> list[str]:
        """Return keys whose records are not in the order of the service's blocks."""
        numbers: dict[tuple[str, bytes | None], list[int]] = defaultdict(list)
        for record in self.delivered():
            _, number, _ = (record.value or b"").split(b":")
            numbers[record.topic, record.key].append(int(number))
        return [f"{place}: {found}" for place, found in numbers.items() if found != sorted(found)]

    def untrue(self) -> list[str]:
        """Return ends of blocks and answers to checks that contradict the database."""
        stands = {row.transaction_id for row in self.rows}
        found = []
        for block in self.blocks():
            committed = not block["ended"] or block["outcome"] == "committed"
            if block["is_in_doubt"]:
                committed = block["ended"] != "CommitUnknownError" or block["tx"] in stands
            if committed is not (block["tx"] in stands):
                found.append(f"{block}, its work {'stands' if not committed else 'does not'}")
        for tx in self.transactions():
            expected = OpKind.COMMIT if tx.transaction_id in stands else OpKind.ROLLBACK
            found += [f"{tx.transaction_id}: {c.kind}" for c in tx.claims if c.kind is not expected]
        return found

    def rows_and_fence_rows(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return message counts by transaction id: of SHIPPED, and of committed fence rows."""
        table = self._fence.tables[0]
        query = select(table.c.transaction_id, table.c.message_count)
        committed = query.where(table.c.outcome == "committed")
        with self._engine.connect() as connection:
            counts = connection.execute(committed).all()
        return dict(Counter(row.transaction_id for row in self.rows)), dict(map(tuple, counts))

    def taken(self) -> list[str]:
        """Return the keys of messages that the inbox has taken, by SHIPPED."""
        return [row.order_key for row in self.rows if row.order_key.startswith("taken-")]

    def marks(self) -> Counter[str]:
        with self._engine.connect() as connection:
            return Counter(connection.execute(select(self._inbox.table.c.transaction_id)).scalars())

    def _judge(self) -> Verdict:
        """Judge the history by the database: a transaction with rows there must be committed."""
        with self._engine.connect() as connection:
            self.rows = list(connection.execute(select(SHIPPED)).all())
        stands = {row.transaction_id for row in self.rows}
        clients = []
        for tx in self.transactions():
            kind = OpKind.COMMIT if tx.transaction_id in stands else OpKind.ROLLBACK
            meant = Claim(kind=kind, outcome=Outcome.UNKNOWN)
            clients.append(replace(tx, claims=(meant,)))
        dead = self.stage.names.dead
        verdict = judge(
            clients,
            real=self.delivered(),
            dead=[record for record in self.records if record.topic == dead],
            ops=self._ops(),
        )
        self.stage.judged = {
            "transactions": len(clients),
            "messages": sum(len(tx.messages) for tx in clients),
            "delivered": len(self.delivered()),
            "violations": len(verdict.findings),
        }
        return verdict

    # --- processes -------------------------------------------------------------------------

    def _ops(self) -> list[ReadOp]:
        return read_ops(read_all(self.stage.direct, [self.stage.names.op]))

    def _commits(self) -> list[ReadOp]:
        return [each for each in self._ops() if each.op.kind is OpKind.COMMIT]

    def _begun(self) -> int:
        paths = self.stage.directory.glob("client-*.jsonl")
        return sum(path.read_bytes().count(b'"i":0,"topic"') for path in paths)

    def _dead(self) -> tuple[int] | None:
        """Return the place of a service that has died; fail if it was not to die."""
        for place, (child, step) in self._services.items():
            status = child.process.poll()
            if status is None:
                continue
            assert status == -signal.SIGKILL, f"status {status}: {child.last_words()}"
            assert step is not None, "it was not to die"
            self.stage.children.kill(child)
            self.killed[f"service killed {step.value}"] += 1
            return (place,)
        return None

    def _start_doomed(self, place: int, blocks_max: int) -> None:
        blocks = self._draw.randint(1, blocks_max)
        step = self._draw.choice(list(Step))
        self._start(place, step, "--die-at", step.name, "--die-in", str(blocks))

    def _start(self, place: int, step: Step | None, *flags: str) -> None:
        self._started += 1
        name = f"service-{self._started}"
        child = self.stage.start(
            name,
            (str(self._service), "--url", self.database.url, "--seed", str(self._seed)),
            ("--bootstrap-servers", self.stage.servers, "--prefix", self.stage.prefix),
            ("--directory", str(self.stage.directory), "--name", name),
            ("--threads", str(THREADS), "--first-lane", str(THREADS * place), *self._flags),
            flags,
        )
        self._services[place] = (child, step)

    def _start_daemon(self, slot: str) -> None:
        flags = ("--workers", "1", "--slot", slot, "--check-backoff-ms-max", "1000")
        self._daemons[slot] = self.stage.daemon(*flags, name=f"daemon-{slot}")

    def _kill_daemon(self) -> None:
        slot = self._draw.choice(DAEMONS)
        self.stage.children.kill(self._daemons[slot].child)
        self.killed["daemon killed and restarted"] += 1
        self._start_daemon(slot)


def _place(record: ReadRecord) -> tuple[str, str, str]:
    return record.topic, (record.key or b"").decode(), (record.value or b"").decode()
