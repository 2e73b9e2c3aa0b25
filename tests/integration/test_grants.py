"""The grants that `topics create --acls` prints, on a broker that enforces them.

Three principals sign in by SASL/SCRAM: the daemon, a client and a stranger without any grant. With
the printed grants all that daemon and client must do works; whatever else they try is refused.
"""

import re
import shlex
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from halfbridge.bridge import BridgeError, Message, Resolution
from halfbridge.cli import cli
from halfbridge.kafka.admin import AdminClient
from tests.faults.listener import listener
from tests.integration.brokers import AUTHORIZER, started
from tests.integration.installation import GROUP, Installation
from tests.kit.waiting import CALL_S, until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180)]

_DAEMON, _CLIENT, _STRANGER, _OPERATOR = "the-daemon", GROUP, "a-stranger", "an-operator"
_RESOURCES = {
    "--topic": ResourceType.TOPIC,
    "--group": ResourceType.GROUP,
    "--transactional-id": ResourceType.TRANSACTIONAL_ID,
    "--cluster": ResourceType.BROKER,
}
_REFUSALS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def _login(principal: str) -> dict[str, str]:
    """Return the Kafka properties with which a principal signs in; its name is its password."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": principal,
        "sasl.password": principal,
    }


class Guarded(Installation):
    """An installation that has the printed grants.

    The tests themselves come by the listener without passwords, as a super user.
    """

    def __init__(self, servers: str, guarded_servers: str, prefix: str) -> None:
        super().__init__(servers, prefix)
        self.guarded_servers = guarded_servers
        self.make(groups=(GROUP, "other-service"))
        self.orders = self.topic("orders")
        self.private = self.topic("private")
        self.grant()

    def grant(self) -> None:
        """Make the grants that the command prints, for one client, one daemon, one operator."""
        words = ["topics", "create", "--acls", "--bootstrap-servers", self.servers]
        words += ["--topic-prefix", self.names.prefix, "-g", GROUP, "--real-topic", self.orders]
        words += ["--daemon-principal", f"User:{_DAEMON}"]
        words += ["--operator-principal", f"User:{_OPERATOR}"]
        output = CliRunner().invoke(cli, words, catch_exceptions=False).output
        bindings = [
            binding
            for line in output.splitlines()
            if line.startswith("kafka-acls.sh")
            for binding in _bindings(line)
        ]
        assert bindings
        for future in self.admin.create_acls(bindings).values():
            future.result()

    def login(self, principal: str) -> dict[str, Any]:
        """Return what a client of librdkafka needs to come as `principal`."""
        return {"bootstrap.servers": self.guarded_servers, "log_level": 0, **_login(principal)}


def _bindings(line: str) -> list[AclBinding]:
    """Return the grants of one printed command."""
    words = shlex.split(line)
    principal = words[words.index("--allow-principal") + 1]
    (flag,) = (word for word in words if word in _RESOURCES)
    name = "kafka-cluster" if flag == "--cluster" else words[words.index(flag) + 1]
    prefixed = "--resource-pattern-type" in words
    pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
    operations = [words[at + 1] for at, word in enumerate(words) if word == "--operation"]
    return [
        AclBinding(
            _RESOURCES[flag],
            name,
            pattern,
            principal,
            "*",
            AclOperation[re.sub(r"(?<!^)(?=[A-Z])", "_", operation).upper()],
            AclPermissionType.ALLOW,
        )
        for operation in operations
    ]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A broker that refuses what is not granted: addresses without and with passwords."""
    way = listener(protocol="SASL_PLAINTEXT")
    module = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    broker = way.broker(
        tmp_path_factory.mktemp("cluster") / "data",
        {"sasl.enabled.mechanisms": "SCRAM-SHA-256", "scram-sha-256.sasl.jaas.config": module},
        {"authorizer.class.name": AUTHORIZER, "super.users": "User:ANONYMOUS"},
    )
    with started(broker, "no broker that checks rights"):
        admin: Any = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        given = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        users = (_DAEMON, _CLIENT, _STRANGER, _OPERATOR)
        updates = [UserScramCredentialUpsertion(each, given, each.encode()) for each in users]
        for future in admin.alter_user_scram_credentials(updates).values():
            future.result()
        yield broker.bootstrap_servers, way.servers


@pytest.fixture(scope="module")
def guarded(servers: tuple[str, str]) -> Iterator[Guarded]:
    """One installation for all tests of this file: each reads or fails to, and leaves no trace."""
    made = Guarded(*servers, f"grants-{uuid.uuid4().hex[:8]}-")
    try:
        yield made
    finally:
        made.close()


@pytest.mark.feature
def test_the_printed_grants_suffice(guarded: Guarded) -> None:
    """A daemon and a client that have them, and nothing more, deliver, ask and discard."""
    daemon = guarded.start(
        bootstrap_servers=guarded.guarded_servers,
        kafka=_login(_DAEMON),
        transaction_timeout_ms=1_000,
        check_interval_ms=1_000,
        topic_gone_ms=1_000,  # a topic that the daemon may not see is as good as missing
    )
    producer = guarded.producer(
        lambda _view: Resolution.COMMIT,
        bootstrap_servers=guarded.guarded_servers,
        topics=[guarded.orders],
        kafka=_login(_CLIENT),
        transaction_timeout_ms=1_000,
    )
    with producer:
        with producer.begin() as decided:
            decided.send(Message(guarded.orders, value=b"decided"))
        undecided = producer.begin()
        undecided.send(Message(guarded.orders, value=b"asked"))
        found = guarded.tail(guarded.orders).until(2)
        discarded = guarded.half(guarded.orders)
        guarded.rollback(discarded)
        forbidden = guarded.half(guarded.private)
        guarded.commit(forbidden)
        guarded.dead(1)
    assert [each.value for each in found] == [b"decided", b"asked"]
    until("health is green once nothing waits", lambda: daemon.healthz()[0] == 200)
    (letter,) = guarded.dead_now()
    assert letter.half.transaction_id == forbidden.transaction_id
    daemon.stop()


def _read(guarded: Guarded, principal: str, topic: str, group: str) -> None:
    consumer = Consumer(
        {**guarded.login(principal), "group.id": group, "enable.partition.eof": True}
    )
    try:
        _raise(consumer.list_topics(topic, CALL_S).topics[topic].error)  # may it be seen at all
        consumer.assign([TopicPartition(topic, 0, 0)])
        record = until(f"an answer about {topic}", lambda: consumer.poll(1.0))
        _raise(record.error())
    finally:
        consumer.close()


def _take_part(guarded: Guarded, principal: str, topic: str, group: str) -> None:
    """Join a consumer group, whose members read nothing before they have joined."""
    consumer = Consumer({**guarded.login(principal), "group.id": group})
    try:
        consumer.subscribe([topic])
        record = until(f"an answer of group {group}", lambda: consumer.poll(1.0))
        _raise(record.error())
    finally:
        consumer.close()


def _raise(error: KafkaError | None) -> None:
    if error is not None:
        raise KafkaException(error)


def _write(guarded: Guarded, principal: str, topic: str) -> None:
    outcome: list[KafkaError | None] = []
    producer = Producer({**guarded.login(principal), "message.timeout.ms": int(CALL_S * 1_000)})
    producer.produce(topic, b"forged", on_delivery=lambda error, _: outcome.append(error))
    producer.flush(CALL_S)
    _raise(outcome[0])


def _begin(guarded: Guarded, principal: str, transactional_id: str) -> None:
    producer = Producer({**guarded.login(principal), "transactional.id": transactional_id})
    producer.init_transactions(CALL_S)


def _refused(call: Any, *arguments: Any) -> None:
    with pytest.raises(KafkaException) as caught:
        call(*arguments)
    assert caught.value.args[0].code() in _REFUSALS, caught.value


@pytest.mark.parametrize("topic", ["half", "op", "dead", "audit", "settings", "orders"])
def test_a_stranger_may_do_nothing(guarded: Guarded, topic: str) -> None:
    """Who has no grant reads nothing and writes nothing, in whatever topic."""
    name = guarded.orders if topic == "orders" else getattr(guarded.names, topic)
    _refused(_read, guarded, _STRANGER, name, guarded.names.daemon_group)
    _refused(_write, guarded, _STRANGER, name)


def test_a_stranger_is_no_client(guarded: Guarded) -> None:
    """The client's library says at the start what is missing, before anything is sent."""
    producer = guarded.producer(
        lambda _view: Resolution.COMMIT,
        bootstrap_servers=guarded.guarded_servers,
        topics=[guarded.orders],
        kafka=_login(_STRANGER),
    )
    with pytest.raises(BridgeError), producer:
        pass


def test_a_client_sees_no_ids_and_delivers_nothing(guarded: Guarded) -> None:
    """A client reads neither half nor op topic, and writes no real topic: only the daemon does.

    Whoever knows a transaction's id can decide it, and the id stands in these topics.
    """
    names, own = guarded.names, guarded.names.check_group(GROUP)
    for topic in (names.half, names.op, names.dead, names.audit, names.check("other-service")):
        _refused(_read, guarded, _CLIENT, topic, own)
    for topic in (guarded.orders, names.dead, names.settings, names.audit, names.check(GROUP)):
        _refused(_write, guarded, _CLIENT, topic)
    # An assigned reader may read before the group has refused it; a member may not.
    _refused(_take_part, guarded, _CLIENT, names.check(GROUP), names.daemon_group)
    _refused(_begin, guarded, _CLIENT, f"{names.prefix}halfbridge-w-0-0")


def test_the_daemon_writes_where_it_is_let_and_nowhere_else(guarded: Guarded) -> None:
    """The daemon's grants name the real topics; it reads none of them, and no audit topic."""
    names = guarded.names
    for topic in (guarded.private, names.audit):
        _refused(_write, guarded, _DAEMON, topic)
    for topic in (guarded.orders, names.audit, names.dead):
        _refused(_read, guarded, _DAEMON, topic, names.daemon_group)
    _refused(_begin, guarded, _DAEMON, "somebody-elses")


def test_an_operator_decides_and_delivers_nothing(guarded: Guarded) -> None:
    """An operator reads all logs, and writes those of the ledger; real topics are the daemon's."""
    for topic in (guarded.orders, guarded.private, guarded.names.check(GROUP)):
        _refused(_write, guarded, _OPERATOR, topic)
    _refused(_begin, guarded, _OPERATOR, f"{guarded.names.prefix}halfbridge-w-0-0")
