"""The reference consumer of docs/how-to/inbox.md, run as processes that are killed.

The same consumer without an inbox runs beside it: the work that it does twice, the inbox prevents.
"""

import random
import re
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from halfbridge.serde.headers import real_headers
from halfbridge.serde.identity import TRANSACTION_IDS
from halfbridge.testkit.children import Child, Children
from halfbridge.testkit.history import ReadRecord
from tests.integration.installation import Installation
from tests.kit.waiting import CALL_S, until
from tests.sql.databases import Database

DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "inbox.md"
PARTITIONS = 3
GROUP, NAIVE = "billing", "naive"
# A member that is restarted under its name gets its partitions back at once.
_MEMBER = """"group.id": "{group}",
    "group.instance.id": "{name}",
    "session.timeout.ms": 30000,
    "auto.commit.interval.ms": 1000,"""
_COMES_S = 120.0  # limit of each wait, with all kills, on a busy machine


def reference_consumer() -> str:
    """Return the consumer that the document shows."""
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    (found,) = (block for block in blocks if "consumer.poll(" in block)
    return found


def replaced(script: str, changes: dict[str, str]) -> str:
    """Return the script with each text replaced; all of them must be there."""
    for old, new in changes.items():
        assert old in script, old
        script = script.replace(old, new)
    return script


class InboxScene:
    """Consumers on one real topic and one database, whose rows count their work.

    Args:
        installation: Gives prefix and brokers.
        database: For the rows of the work.
        children: Runs the processes.
        directory: For their scripts.
        seed: Of what is sent, and of which process is killed when.
    """

    def __init__(
        self,
        installation: Installation,
        database: Database,
        children: Children,
        directory: Path,
        *,
        seed: int,
    ) -> None:
        self.topic = installation.topic("orders", partitions=PARTITIONS)
        self.sent: list[str] = []
        self.repeated = self.killed = self.crashed = self.transactions = 0
        self._installation, self._database = installation, database
        self._children, self._directory = children, directory
        self._random = random.Random(seed)
        self._engine = database.engine(pool_pre_ping=True)
        self._producer = Producer(
            {"bootstrap.servers": installation.servers, "enable.idempotence": True}
        )
        self._running: dict[str, Child] = {}
        with self._engine.begin() as connection:
            for table in (GROUP, NAIVE):
                connection.execute(text(f"CREATE TABLE {table}_invoice (item VARCHAR(99))"))

    def script(self, group: str, *, member: str = "") -> str:
        """Return the consumer for this broker, topic and database; without inbox for NAIVE."""
        changes = {
            "127.0.0.1:9092": self._installation.servers,
            "postgresql+psycopg://service@127.0.0.1:5432/shop": self._database.url,
            '"orders"': f'"{self.topic}"',
            "invoice": f"{group}_invoice",
        }
        if member:
            changes['"group.id": "billing",'] = _MEMBER.format(group="billing", name=member)
        if group == NAIVE:
            changes["if inbox.once(connection, message):"] = "if True:"
        return replaced(reference_consumer(), {**changes, '"billing"': f'"{self.group(group)}"'})

    def group(self, name: str) -> str:
        """Return the name of the consumer group in this scene."""
        return f"{self.topic}-{name}"

    def start(self, *members: tuple[str, str]) -> None:
        """Start consumers: (group, name of the member)."""
        for group, name in members:
            path = self._directory / f"{name}.py"
            path.write_text(self.script(group, member=name), "utf-8")
            self._run(name)

    def start_as_it_stands(self) -> None:
        """Start one consumer with nothing replaced but addresses and names."""
        (self._directory / "alone.py").write_text(self.script(GROUP), "utf-8")
        self._run("alone")

    def send(self, transactions: int) -> None:
        """Deliver transactions as the daemon does, one in ten of them twice."""
        for _ in range(transactions):
            transaction_id = TRANSACTION_IDS.next()
            count = self._random.choice((1, 1, 1, 2, 3))
            key = b"%d" % self._random.randrange(100)
            self.transactions += 1
            times = 2 if self._random.random() < 0.1 else 1
            for index in [*range(count)] * times:
                value = f"{transaction_id}/{index}"
                headers = real_headers([], transaction_id, 1_700_000_000_000, index)
                self._producer.produce(self.topic, value, key, headers=headers)
            self.repeated += count * (times - 1)
            self.sent += [f"{transaction_id}/{index}" for index in range(count)]
        assert self._producer.flush(CALL_S) == 0

    def send_again(self, records: Sequence[ReadRecord]) -> str:
        """Deliver these records unchanged once more, and a new one after them; return its work."""
        for each in records:
            headers = list(each.headers)
            self._producer.produce(self.topic, each.value, each.key, headers=headers)
        headers = real_headers([], TRANSACTION_IDS.next(), 1_700_000_000_000)
        self._producer.produce(self.topic, b"last", records[-1].key, headers=headers)
        assert self._producer.flush(CALL_S) == 0
        return "last"

    def run(self, *, kills: int, burst: int, server_every: int = 0) -> None:
        """Send and kill by turns: a consumer, or at each `server_every`th kill the database server.

        Each kill comes once the work of a random part of the sent messages is done.
        """
        for number in range(kills):
            done = len(self.sent)
            self.send(self._random.randint(1, burst))
            goal = self._random.randint(done + 1, len(self.sent))
            self._until("the work continues", lambda goal=goal: self.count(GROUP) >= goal)
            if server_every and number % server_every == server_every - 1:
                self._database.kill()  # type: ignore[attr-defined]  # an OwnDatabase
                self._database.restart()
            else:
                self.kill_one()
            self.killed += 1

    def kill_one(self) -> None:
        """Kill a consumer, and start it again."""
        name = self._random.choice(sorted(self._running))
        self._children.kill(self._running[name])
        self._run(name)

    def finish(self) -> None:
        """Return once all groups have stored the offsets of all sent messages."""
        self.await_count(GROUP, len(self.sent))
        for group in (GROUP, NAIVE):
            self.await_end(group)

    def await_count(self, group: str, count: int) -> None:
        """Return once a group has done the work of `count` messages."""
        self._until("all is done", lambda: self.count(group) >= count)

    def await_end(self, group: str) -> None:
        """Return once a group has stored the end offset of each partition."""
        self._until(f"{group} is at the end", lambda: self._is_at_end(group))

    def await_records(self, group: str, records: Sequence[ReadRecord]) -> None:
        """Return once a group has stored offsets after `records`; markers may follow these."""
        ends: dict[int, int] = {}
        for each in records:
            ends[each.partition] = max(each.offset + 1, ends.get(each.partition, 0))

        def is_behind() -> bool:
            stored = self._stored(group)
            return all(stored.get(number, -1) >= end for number, end in ends.items())

        self._until(f"{group} has read all", is_behind)

    def count(self, group: str) -> int:
        """Return the number of rows of a group's work; -1 while the database does not answer."""
        with suppress(DBAPIError), self._engine.begin() as connection:
            query = text(f"SELECT count(*) FROM {group}_invoice")
            return int(connection.execute(query).scalar_one())
        return -1

    def done(self, group: str) -> Counter[str]:
        """Return how often the work of each message was done."""
        with self._engine.begin() as connection:
            query = text(f"SELECT item FROM {group}_invoice")
            return Counter(connection.execute(query).scalars())

    def _run(self, name: str) -> None:
        path = self._directory / f"{name}.py"
        self._running[name] = self._children.start(name, [sys.executable, str(path)])

    def _until(self, what: str, condition: object) -> None:
        def is_so() -> bool:
            for name, child in list(self._running.items()):
                if child.process.poll() is not None:  # restart it, as a supervisor does
                    self.crashed += 1
                    words = child.last_words()
                    assert "DBAPIError" in words or "OperationalError" in words, words
                    self._children.kill(child)
                    self._run(name)
            return bool(condition())

        until(what, is_so, within_s=_COMES_S)

    def _stored(self, group: str) -> dict[int, int]:
        asked = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
        consumer = Consumer(
            {"bootstrap.servers": self._installation.servers, "group.id": self.group(group)}
        )
        try:
            found = consumer.committed(asked, timeout=CALL_S)
            return {each.partition: each.offset for each in found}
        finally:
            consumer.close()

    def _is_at_end(self, group: str) -> bool:
        asked = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
        consumer = Consumer(
            {"bootstrap.servers": self._installation.servers, "group.id": self.group(group)}
        )
        try:
            return all(
                each.offset == consumer.get_watermark_offsets(each, timeout=CALL_S)[1]
                for each in consumer.committed(asked, timeout=CALL_S)
            )
        finally:
            consumer.close()
