"""The ACLs: who reads what."""

from halfbridge.checker.admin.acls import Acl, daemon_acls, producer_acls, sink_acls
from halfbridge.serde.topics import TopicNames

NAMES = TopicNames("eu.")
DAEMON = daemon_acls(NAMES, "User:d", real_topics=("orders",))
PRODUCER = producer_acls(NAMES, "g", "User:g", real_topics=("orders",))
SINK = sink_acls(NAMES, "spark-feed", "User:s", real_topics=("orders",))


def test_only_the_daemon_reads_half_and_op_topics() -> None:
    """The transaction id is the capability to decide; producers write it and never read it."""
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
    """Clients warn by them, and the Spark sink refuses to start by them."""
    writers = {
        acl.principal
        for acl in (*DAEMON, *PRODUCER, *SINK)
        if acl.name == NAMES.settings and "Write" in acl.operations
    }

    assert writers == {"User:d"}


def test_only_the_daemon_writes_real_topics() -> None:
    """A producer group needs no more than to see that its real topic exists."""
    grants = {acl.principal: acl.operations for acl in (*DAEMON, *PRODUCER) if acl.name == "orders"}

    written = ("Write", "Describe", "DescribeConfigs")
    assert grants == {"User:d": written, "User:g": ("Describe",)}


def test_the_spark_sink_reads_what_is_said_to_it_and_no_messages_but_dead_ones() -> None:
    """It writes manifests too; half and op topic it writes only, real topics it sees."""
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
    """It is idempotent, and its manifest commits: a kafka_txn would be a right too many."""
    resources = [acl.resource for acl in SINK]

    assert "--transactional-id" not in resources
    assert "--cluster" in resources


def test_transactional_ids_are_granted_by_prefix() -> None:
    """Any slot of this installation, and no other installation's."""
    (acl,) = (acl for acl in DAEMON if acl.resource == "--transactional-id")

    assert (acl.name, acl.prefixed) == ("eu.halfbridge-", True)


def test_command_is_one_shell_line() -> None:
    """Names that a shell would split are quoted."""
    acl = Acl("User:CN=a b", ("Read",), "--topic", "t", prefixed=True)

    assert acl.command("k:1") == (
        "kafka-acls.sh --bootstrap-server k:1 --add --allow-principal 'User:CN=a b'"
        " --operation Read --topic t --resource-pattern-type prefixed"
    )
