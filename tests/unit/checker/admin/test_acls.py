"""The ACLs of daemon, producers and Spark sink."""

from halfbridge.checker.admin.acls import Acl, daemon_acls, producer_acls, sink_acls
from halfbridge.serde.topics import TopicNames

NAMES = TopicNames("eu.")
DAEMON = daemon_acls(NAMES, "User:d", real_topics=("orders",))
PRODUCER = producer_acls(NAMES, "g", "User:g", real_topics=("orders",))
SINK = sink_acls(NAMES, "spark-feed", "User:s", real_topics=("orders",))


def test_only_the_daemon_reads_half_and_op_topics() -> None:
    """Producers do not read half and op topic: with a transaction id anybody could decide."""
    readers = {
        (acl.principal, acl.name)
        for acl in (*DAEMON, *PRODUCER)
        if "Read" in acl.operations and acl.resource == "--topic"
    }

    assert readers == {
        ("User:d", NAMES.half),
        ("User:d", NAMES.op),
        ("User:g", NAMES.check("g")),
        ("User:d", NAMES.settings),
        ("User:g", NAMES.settings),
    }


def test_only_the_daemon_writes_its_limits() -> None:
    """Only the daemon may write the settings topic, which clients and the Spark sink read."""
    writers = {
        acl.principal
        for acl in (*DAEMON, *PRODUCER, *SINK)
        if acl.name == NAMES.settings and "Write" in acl.operations
    }

    assert writers == {"User:d"}


def test_only_the_daemon_writes_real_topics() -> None:
    """A producer group has only Describe on its real topic."""
    grants = {acl.principal: acl.operations for acl in (*DAEMON, *PRODUCER) if acl.name == "orders"}

    written = ("Write", "Describe", "DescribeConfigs")
    assert grants == {"User:d": written, "User:g": ("Describe",)}


def test_the_spark_sink_reads_no_messages_but_dead_letters() -> None:
    """The sink writes half, op and manifest topic, and only describes real topics."""
    topics: dict[str, set[str]] = {}
    for acl in SINK:
        if acl.resource == "--topic":
            topics.setdefault(acl.name, set()).update(acl.operations)
    groups = {acl.name: acl.operations for acl in SINK if acl.resource == "--group"}

    assert {name for name, operations in topics.items() if "Read" in operations} == {
        NAMES.manifest,
        NAMES.check("spark-feed"),
        NAMES.settings,
        NAMES.dead,
    }
    assert {name for name, operations in topics.items() if "Write" in operations} == {
        NAMES.half,
        NAMES.op,
        NAMES.manifest,
    }
    assert topics["orders"] == {"Describe", "DescribeConfigs"}
    assert groups == {
        NAMES.check_group("spark-feed"): ("Read",),
        NAMES.manifest_group: ("Read",),
        NAMES.daemon_group: ("Describe",),
    }


def test_the_spark_sink_has_no_transactional_id() -> None:
    """The sink is granted idempotent writes and no transactional id: its manifest commits."""
    resources = [acl.resource for acl in SINK]

    assert "--transactional-id" not in resources
    assert "--cluster" in resources


def test_transactional_ids_are_granted_by_prefix() -> None:
    """The daemon may use every slot of this installation, and of no other."""
    (acl,) = (acl for acl in DAEMON if acl.resource == "--transactional-id")

    assert (acl.name, acl.prefixed) == ("eu.halfbridge-", True)


def test_command_is_one_shell_line() -> None:
    """Names that a shell would split are quoted."""
    acl = Acl("User:CN=a b", ("Read",), "--topic", "t", prefixed=True)

    assert acl.command("k:1") == (
        "kafka-acls.sh --bootstrap-server k:1 --add --allow-principal 'User:CN=a b'"
        " --operation Read --topic t --resource-pattern-type prefixed"
    )
