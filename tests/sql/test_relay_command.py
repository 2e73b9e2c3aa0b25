"""`halfbridge relay run` and `local-messages`: real processes, killed and stopped."""

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import ExitStack
from time import sleep

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import select
from typing_extensions import Self

from halfbridge.bridge.message import Message
from halfbridge.cli import cli
from halfbridge.sql.local_messages.writer import LocalMessages
from halfbridge.testkit.ports import free_ports
from halfbridge.testkit.stack import HalfbridgeStack
from tests.kit.http import answer_of
from tests.sql.databases import Database
from tests.sql.relaying import states_of, wait_until

pytestmark = pytest.mark.broker
KEYS = 6
END_S_MAX = 60.0
PARTITIONS = 2
# Up to about the time that a relay needs to start: kills hit its work and its start.
KILL_AFTER_S = (0.0, 4.0)


class RelayProcess:
    """`halfbridge relay run` on a database and a stack; a context manager that kills it."""

    def __init__(self, database: Database, stack: HalfbridgeStack, name: str = "") -> None:
        self.group = f"{stack.topic_prefix}relay"
        (self.port,) = free_ports(1)
        self._command = [
            *(sys.executable, "-c", "from halfbridge.cli import main; main()", "relay", "run"),
            *("--url", database.url, "--bootstrap-servers", stack.bootstrap_servers),
            *("--topic-prefix", stack.topic_prefix, "--producer-group", self.group),
            *("--metrics-port", str(self.port), "--lease-ms", "2000", "--relay-name", name),
            *("--transaction-rows-max", "20"),
        ]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        return self

    def end(self, number: signal.Signals) -> int:
        """Send it a signal, and return its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(END_S_MAX)

    def says(self, path: str) -> str:
        """Return the page that it serves; empty while it serves none."""
        return answer_of(f"http://127.0.0.1:{self.port}/{path}", within_s=END_S_MAX)[1]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.end(signal.SIGKILL)


def invoke(command: str, database: Database, *words: str) -> Result:
    """Run a command on a database."""
    return CliRunner().invoke(cli, ["local-messages", command, "--url", database.url, *words])


def states(messages: LocalMessages) -> list[str]:
    """Return the rows' states, by id; a GLOBAL_COMMIT that is acknowledged has a star."""
    return states_of(messages)


@pytest.mark.feature
def test_a_relay_ends_in_order_on_sigterm(
    database: Database, halfbridge_stack: HalfbridgeStack, messages: LocalMessages, topic: str
) -> None:
    """It makes its tables, is ready, and shows metrics; after SIGTERM its buckets are free."""
    with messages.engine.begin() as connection:
        ids = messages.add_all(
            connection, [Message(topic, key=b"k%d" % n, value=b"%d" % n) for n in range(30)]
        )
    with RelayProcess(database, halfbridge_stack) as relay:
        wait_until(lambda: states(messages) == ["GLOBAL_COMMIT*"] * len(ids))
        wait_until(lambda: '"ready": true' in relay.says("readyz"))
        assert "halfbridge_relay_rows_total 30.0" in relay.says("metrics")
        assert relay.end(signal.SIGTERM) == 0
    buckets = messages.tables.buckets
    with messages.engine.connect() as connection:
        owners = set(connection.execute(select(buckets.c.owner)).scalars())
    assert owners == {""}
    halfbridge_stack.read_committed(topic, count=len(ids))


def _relay_under_kills(
    database: Database,
    stack: HalfbridgeStack,
    topic: str,
    messages: LocalMessages,
    *,
    transactions: int,
    kills: int,
) -> None:
    """Write while two relays are killed; compare the topic with the committed rows."""
    seed = int(os.environ.get("HALFBRIDGE_TEST_SEED", random.randrange(1 << 30)))
    print(f"HALFBRIDGE_TEST_SEED={seed}")
    chance = random.Random(seed)
    written = 0
    committed: list[tuple[bytes | None, int]] = []
    with ExitStack() as exits:
        # The named relay gets its leases at once after a restart; the other one waits for them.
        relays = [
            exits.enter_context(RelayProcess(database, stack, name)) for name in ("first", "")
        ]
        for kill in range(kills):
            until = transactions * (kill + 1) // kills
            while written < until:
                rows = []
                for _ in range(chance.randint(1, 3)):
                    key = chance.choice([None, *(b"key-%d" % n for n in range(KEYS))])
                    rows.append((key, len(committed) + len(rows)))
                given = [Message(topic, key=key, value=b"%d" % number) for key, number in rows]
                with messages.engine.connect() as connection:
                    messages.add_all(connection, given)
                    if chance.random() < 0.1:
                        connection.rollback()
                    else:
                        connection.commit()
                        committed += rows
                written += 1
            sleep(chance.uniform(*KILL_AFTER_S))
            relay = chance.choice(relays)
            relay.end(signal.SIGKILL)
            relay.start()
        wait_until(lambda: set(states(messages)) == {"GLOBAL_COMMIT*"})
        stack.wait_until_decided()  # a killed relay's half messages too, while checks work
    records = stack.read_committed(topic, count=len(committed))
    delivered = [(record.key, int(record.value or b"")) for record in records]
    assert sorted(delivered, key=lambda each: each[1]) == committed
    for key in {key for key, _ in committed} - {None}:
        assert [n for k, n in delivered if k == key] == [n for k, n in committed if k == key]


def test_killed_relays_deliver_each_row_once_and_in_order(
    database: Database, halfbridge_stack: HalfbridgeStack, messages: LocalMessages, topic: str
) -> None:
    """Two relays are killed by SIGKILL; some transactions with rows roll back."""
    _relay_under_kills(database, halfbridge_stack, topic, messages, transactions=60, kills=3)


@pytest.mark.long
def test_a_hundred_kills(
    database: Database, halfbridge_stack: HalfbridgeStack, messages: LocalMessages, topic: str
) -> None:
    """The same, with 2000 transactions and 100 kills."""
    _relay_under_kills(database, halfbridge_stack, topic, messages, transactions=2_000, kills=100)


@pytest.mark.feature
def test_operators_list_show_retry_and_purge(database: Database, messages: LocalMessages) -> None:
    """The commands print lines or JSON; a purge deletes no row that may be needed."""
    assert invoke("create", database).output == "table halfbridge_local_message exists\n"
    with messages.engine.begin() as connection:
        first, second = messages.add_all(
            connection, [Message("orders", key=b"k", value=b"\x00v", headers=[("h", b"1")])] * 2
        )
        rows = messages.tables.messages
        connection.execute(
            rows.update().where(rows.c.id == first).values(state="MESSAGE_ERROR", cause="why\nnot")
        )
    listed = invoke("list", database).output.splitlines()
    assert f"{first} MESSAGE_ERROR orders retries 0: why\\nnot" in listed
    assert "LOCAL_COMMIT    1" in listed
    listing = json.loads(invoke("list", database, "--state", "LOCAL_COMMIT", "--json").output)
    assert [row["id"] for row in listing["rows"]] == [second]
    assert listing["counts"]["MESSAGE_ERROR"] == 1
    shown = json.loads(invoke("show", database, str(first), "--json").output)
    assert (shown["key"], shown["value"], shown["cause"]) == ("6b", "0076", "why\nnot")
    assert invoke("show", database, "999").exit_code != 0
    assert invoke("retry", database).exit_code != 0
    assert invoke("retry", database, str(second)).output == "0 rows are sent again\n"
    assert invoke("retry", database, "--all").output == "1 rows are sent again\n"
    assert states(messages) == ["LOCAL_COMMIT", "LOCAL_COMMIT"]
    old = {"updated_at": 0}
    with messages.engine.begin() as connection:
        connection.execute(rows.update().values(**old))
        messages.add(connection, Message("orders"))
        done = {"state": "GLOBAL_COMMIT", "decision_acknowledged": True}
        connection.execute(rows.update().where(rows.c.id == first).values(**done))
    assert invoke("purge", database, "--older-than-ms", "1000").exit_code != 0
    assert invoke("purge", database).output == "1 rows deleted\n"
    assert invoke("purge", database, "--error", str(second)).output == "0 rows deleted\n"
    assert states(messages) == ["LOCAL_COMMIT", "LOCAL_COMMIT"]
