"""The consumers of examples/ that use a framework: killed, and with the framework's settings."""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer
from sqlalchemy import make_url, text

from halfbridge.serde.headers import real_headers
from halfbridge.serde.identity import TRANSACTION_IDS
from halfbridge.testkit.children import Children, Interrupts
from tests.integration.installation import Installation
from tests.kit.waiting import CALL_S, until
from tests.sql.databases import ASYNC_DRIVERS, Database
from tests.sql.inbox_scene import GROUP, NAIVE, InboxScene, replaced

pytestmark = [
    pytest.mark.broker,
    pytest.mark.timeout(3_600),
    pytest.mark.parametrize("database", ["postgresql"], indirect=True),
]
EXAMPLES = Path(__file__).parents[2] / "examples"
KILLS, BURST = 50, 25
SEED = 20261129


class Framework(NamedTuple):
    """An example, and replacements that make other programs of it.

    Attributes:
        name: Of the file in examples/.
        word: Its consumer group and its table.
        once: The call of the inbox.
        defaults: Replacements for a program with the framework's defaults.
        client: Replacements for a program on another client.
    """

    name: str
    word: str
    once: str
    defaults: dict[str, str]
    client: dict[str, str]


AIOKAFKA = Framework(
    "aiokafka_parcels.py",
    "parcels",
    "await inbox.once(connection, order)",
    {
        'isolation_level="read_committed",': "",
        "enable_auto_commit=False,": "",
        "await consumer.commit()": "pass",
    },
    {},
)
# What FastStream on aiokafka does not need.
STORED = {
    'config={"enable.auto.offset.store": False},': "",
    "consumer.consumer.store_offsets(record)": "",
}
ON_AIOKAFKA = Framework(
    "faststream_labels.py",
    "labels",
    "await inbox.once(connection, order.raw_message)",
    {'isolation_level="read_committed",': "", "ack_policy=AckPolicy.NACK_ON_ERROR,": ""},
    {
        "from faststream.confluent import": "from faststream.kafka import",
        "from faststream.confluent.annotations import Consumer": "",
        "record: Record, consumer: Consumer": "",
        **STORED,
    },
)
ON_CONFLUENT = ON_AIOKAFKA._replace(defaults={**ON_AIOKAFKA.defaults, **STORED}, client={})
FRAMEWORKS = [
    pytest.param(AIOKAFKA, id="aiokafka"),
    pytest.param(ON_AIOKAFKA, id="faststream_on_aiokafka"),
    pytest.param(ON_CONFLUENT, id="faststream_on_confluent"),
]


class FrameworkScene(InboxScene):
    """Processes of an example on one real topic and one database."""

    framework: Framework
    other: dict[str, str]  # what makes NAIVE differ from the example

    def script(self, group: str, *, member: str = "") -> str:
        """Return the example for this topic and group."""
        del member  # in the environment
        word = self.framework.word
        changes = {
            **self.framework.client,
            **(self.other if group == NAIVE else {}),
            '"orders"': repr(self.topic),
            f'"{word}"': repr(self.group(group)),
            f" {word} ": f" {group}_invoice ",
        }
        return replaced(EXAMPLES.joinpath(self.framework.name).read_text("utf-8"), changes)

    def refuse(self, item: str) -> None:
        """Have the database refuse the work of this item."""
        self._alter(f"ADD CONSTRAINT no_{item} CHECK (item <> '{item}')")

    def accept(self, item: str) -> None:
        """Have the database accept it again."""
        self._alter(f"DROP CONSTRAINT no_{item}")

    def deliver(self, item: str, *, partition: int = 0, aborted: bool = False) -> None:
        """Deliver a message by a kafka_txn, as the daemon does."""
        servers = {"bootstrap.servers": self._installation.servers}
        producer = Producer({**servers, "transactional.id": f"{self.topic}-daemon"})
        producer.init_transactions(CALL_S)
        producer.begin_transaction()
        headers = real_headers([], TRANSACTION_IDS.next(), 1_700_000_000_000)
        producer.produce(self.topic, item.encode(), partition=partition, headers=headers)
        assert producer.flush(CALL_S) == 0
        end = producer.abort_transaction if aborted else producer.commit_transaction
        end(CALL_S)

    def await_failures(self, item: str) -> None:
        """Return once the work of an item has failed in each process."""
        for name, child in self._running.items():
            written = (child.output, child.errors)  # FastStream writes to the first one
            until(
                f"{name} fails",
                lambda written=written: any(f"no_{item}" in each.read_text() for each in written),
                explain=child.last_words,
            )

    def await_work(self, group: str, item: str) -> None:
        """Return once the work of an item is done; start processes that have ended again."""

        def is_done() -> bool:
            for name, child in list(self._running.items()):
                if child.process.poll() is not None:
                    self._children.kill(child)
                    self._run(name)
            return item in self.done(group)

        until(f"{group} does {item}", is_done)

    def await_stored(self, group: str, partition: int) -> dict[int, int]:
        """Return the offsets that a group has committed, once this partition has one."""

        def stored() -> dict[int, int] | None:
            found = self._stored(group)
            return found if found[partition] >= 0 else None

        return dict(until(f"{group} has committed", stored, every_s=0.5))

    def _alter(self, how: str) -> None:
        with self._engine.begin() as connection:
            for table in (GROUP, NAIVE):
                connection.execute(text(f"ALTER TABLE {table}_invoice {how}"))

    def _run(self, name: str) -> None:
        url = make_url(self._database.url)
        url = url.set(drivername=ASYNC_DRIVERS[url.get_backend_name()][0])
        environ = {
            **os.environ,
            "HALFBRIDGE_BOOTSTRAP_SERVERS": self._installation.servers,
            "SHOP_INSTANCE": name,
            "SHOP_URL": url.render_as_string(hide_password=False),
        }
        command = [sys.executable, str(self._directory / f"{name}.py")]
        self._running[name] = self._children.start(name, command, environ=environ)


@pytest.fixture(params=FRAMEWORKS)
def scene(
    request: pytest.FixtureRequest,
    kafka_bootstrap_servers: str,
    topic_prefix: str,
    database: Database,
    tmp_path: Path,
) -> Iterator[FrameworkScene]:
    """A topic and a database, without consumers yet."""
    with (
        closing(Installation(kafka_bootstrap_servers, topic_prefix)) as installation,
        Children(tmp_path, interrupts=Interrupts(), keep_directory=True) as children,
    ):
        made = FrameworkScene(installation, database, children, tmp_path, seed=SEED)
        made.framework = request.param
        made.other = {made.framework.once: "True"}
        yield made


@pytest.mark.long
def test_fifty_kills_take_each_message_once(scene: FrameworkScene) -> None:
    """Two processes of the example are killed at random, and some messages delivered twice.

    With the inbox, the rows are the messages. In the control without it there are more rows.
    """
    scene.start((GROUP, "one"), (GROUP, "two"), (NAIVE, "three"))
    scene.run(kills=KILLS, burst=BURST)
    scene.finish()
    assert scene.killed == KILLS
    assert scene.repeated > 0
    assert scene.done(GROUP) == Counter(scene.sent)
    assert scene.count(NAIVE) >= len(scene.sent) + scene.repeated


def test_by_default_failed_work_is_lost_and_aborted_messages_are_read(
    scene: FrameworkScene,
) -> None:
    """The example takes failed messages again, and no aborted ones.

    With the framework's own isolation level and commits, the inbox alone does not help.
    """
    scene.other = scene.framework.defaults
    scene.refuse("coat")
    scene.start((GROUP, "chosen"), (NAIVE, "default"))
    scene.deliver("ghost", aborted=True)
    scene.deliver("coat")
    scene.await_failures("coat")
    scene.accept("coat")
    scene.deliver("hat")  # after the coat
    for group in (GROUP, NAIVE):
        scene.await_work(group, "hat")
    assert scene.done(GROUP) == Counter(["coat", "hat"])
    assert scene.done(NAIVE) == Counter(["ghost", "hat"])


@pytest.mark.parametrize("scene", [ON_CONFLUENT], indirect=True, ids=["faststream_on_confluent"])
def test_faststream_commits_what_is_stored(scene: FrameworkScene) -> None:
    """If work in one partition fails, only the offset of the other partition is committed.

    If the client stores offsets by itself, the offset after the failed message is committed too.
    """
    scene.other = STORED
    scene.refuse("coat")
    scene.start((GROUP, "chosen"), (NAIVE, "default"))
    scene.deliver("coat", partition=0)
    scene.await_failures("coat")
    scene.deliver("hat", partition=1)
    committed = [scene.await_stored(group, 1)[0] for group in (GROUP, NAIVE)]
    assert committed[0] < 0
    assert committed[1] == 1
