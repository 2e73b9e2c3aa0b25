"""Clients that get their tokens by a function (`oauth_cb`), on a broker that demands tokens."""

import logging
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import create_engine

from halfbridge.bridge import Message, Resolution, TransactionProducer
from halfbridge.cli import cli
from halfbridge.serde import OpKind
from halfbridge.spark_jobs.sink.options import parse_options
from halfbridge.sql import LocalMessages
from tests.faults.listener import listener
from tests.integration.brokers import started
from tests.integration.installation import GROUP, Installation
from tests.kit.oauth import FUNCTION, GIVER, LIFE_S, LOGIN, broker_of, function
from tests.kit.waiting import until
from tests.kit.web import READ_TOKEN, stage
from tests.spark.sink_parts import sink_parts

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

_ROOT = Path(__file__).parents[2]
# Daemon and client have several clients each; so all of them have had a third token.
_RENEWED = 30


class Tokened(Installation):
    """An installation whose daemon, client and commands come with tokens; the test needs none."""

    def __init__(self, servers: str, tokened_servers: str, prefix: str) -> None:
        super().__init__(servers, prefix)
        self.tokened_servers = tokened_servers
        self.make(groups=(GROUP,))
        self.orders = self.topic("orders")
        self.sent = 0

    def client(self, **given: Any) -> TransactionProducer:
        """Return a client with the function itself."""
        return self.producer(
            lambda _view: Resolution.COMMIT,
            bootstrap_servers=self.tokened_servers,
            topics=[self.orders],
            kafka={**LOGIN, "oauth_cb": function},
            **given,
        )

    def words(self, *words: str) -> list[str]:
        """Return a command that comes with tokens."""
        flags = [word for pair in LOGIN.items() for word in ("--kafka", "=".join(pair))]
        place = ["--bootstrap-servers", self.tokened_servers, "--topic-prefix", self.names.prefix]
        return [*words, *place, *flags]

    def deliver(self, producer: TransactionProducer) -> None:
        """Commit a transaction, and wait for its message."""
        with producer.begin() as tx:
            tx.send(Message(self.orders, value=b"%d" % self.sent))
        self.sent += 1
        self.tail(self.orders).until(self.sent)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A broker: its address without tokens, and with."""
    way = listener(protocol="SASL_PLAINTEXT")
    broker = broker_of(way, tmp_path_factory.mktemp("cluster") / "data")
    with started(broker, "no broker that demands tokens"):
        yield broker.bootstrap_servers, way.servers


@pytest.fixture
def tokened(servers: tuple[str, str]) -> Iterator[Tokened]:
    """An installation of the test's own."""
    made = Tokened(*servers, f"tokens-{uuid.uuid4().hex[:8]}-")
    try:
        yield made
    finally:
        GIVER.works = True
        made.close()


@pytest.mark.feature
def test_everything_logs_in_by_a_token_function(tokened: Tokened) -> None:
    """Daemon, client and command name it among the Kafka properties."""
    tokened.start(bootstrap_servers=tokened.tokened_servers, kafka=LOGIN)
    with tokened.client() as producer:
        tokened.deliver(producer)

    words = [sys.executable, "-m", "halfbridge", *tokened.words("groups", "list")]
    command = subprocess.run(words, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert command.returncode == 0, command.stderr
    assert GROUP in command.stdout


def test_a_relay_sends_by_a_token_function(tokened: Tokened, tmp_path: Path) -> None:
    """The process sends the rows of a local message table, and ends in order."""
    tokened.start(bootstrap_servers=tokened.tokened_servers, kafka=LOGIN)
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    messages = LocalMessages(create_engine(url))
    messages.create()
    with messages.engine.begin() as connection:
        messages.add(connection, Message(tokened.orders, value=b"row"))

    words = tokened.words("relay", "run", "--url", url, "--producer-group", GROUP)
    with subprocess.Popen([sys.executable, "-m", "halfbridge", *words], cwd=_ROOT) as relay:
        try:
            assert tokened.tail(tokened.orders).until(1)[0].value == b"row"
        finally:
            relay.terminate()
    assert relay.returncode == 0


def test_the_web_page_reads_by_a_token_function(tokened: Tokened, tmp_path: Path) -> None:
    """The Kafka clients of the page log in with tokens of the function."""
    web = stage(
        tmp_path,
        bootstrap_servers=tokened.tokened_servers,
        topic_prefix=tokened.names.prefix,
        kafka=LOGIN,
    )
    before = GIVER.given
    with web.client(READ_TOKEN) as client:
        body = client.get("/api/v1/transactions").json()
    assert body["total"] == 0
    assert GIVER.given > before


def test_the_sink_writes_a_batch_by_a_token_function(
    servers: tuple[str, str], tmp_path: Path
) -> None:
    """Its writers and the commit name the function among the options `kafka.*`."""
    plain, tokened = servers
    with sink_parts(plain, f"tokens-{uuid.uuid4().hex[:8]}-", tmp_path) as sink:
        given = sink.scene.options(transaction_messages_max="10")
        del given["checkpointLocation"]
        login = {f"kafka.{name}": value for name, value in LOGIN.items()}
        sink.options = parse_options(
            {**given, **login, "kafka.bootstrap.servers": tokened, "app.id": "tokened"}
        )
        before = GIVER.given
        report = sink.attempt()
        sink.committer.commit(0, [report])
        assert GIVER.given > before
        assert sink.decided(report) == {OpKind.COMMIT}


def test_tokens_are_renewed_until_the_function_fails_and_after_it(
    tokened: Tokened, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients go on from token to token. Without any they log why, end nothing, and come back."""
    daemon = tokened.start(bootstrap_servers=tokened.tokened_servers, kafka=LOGIN)
    with tokened.client(send_timeout_ms=60_000) as producer:
        first = GIVER.given
        while GIVER.given < first + _RENEWED:
            tokened.deliver(producer)

        GIVER.works = False
        caplog.clear()
        refused = GIVER.refused
        until("no token is given", lambda: GIVER.refused > refused)
        time.sleep(LIFE_S)  # until the last one has expired
        why = f"oauth_cb {FUNCTION} raised ConnectionError('no token today')"
        until("the daemon says why", lambda: why in caplog.text)

        GIVER.works = True
        tokened.deliver(producer)
    daemon.stop()


def test_a_command_without_a_token_says_why(tokened: Tokened) -> None:
    """One line names the function and what it raised."""
    GIVER.works = False

    result = CliRunner().invoke(cli, tokened.words("groups", "list"))

    assert result.exit_code == 1
    assert f"oauth_cb {FUNCTION} raised ConnectionError('no token today')" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_daemon_that_begins_without_a_token_gets_one_later(
    tokened: Tokened, caplog: pytest.LogCaptureFixture
) -> None:
    """It waits as it waits for brokers that do not answer yet."""
    GIVER.works = False
    with caplog.at_level(logging.WARNING):
        daemon = tokened.launch(bootstrap_servers=tokened.tokened_servers, kafka=LOGIN)
        until("the daemon says why", lambda: f"oauth_cb {FUNCTION} raised" in caplog.text)
        GIVER.works = True
        daemon.ready()
    with tokened.client() as producer:
        tokened.deliver(producer)
