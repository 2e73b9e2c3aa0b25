"""Findings of doctor computed from facts: severity, text, and a command that can be pasted."""

import shlex
from typing import Any

import click
import pytest

from halfbridge.checker.admin.acls import Acl
from halfbridge.checker.admin.doctor.facts import (
    MEANINGS,
    BornClock,
    Changes,
    Connector,
    Delayed,
    Drift,
    Facts,
    Finding,
    Host,
    NotBelieved,
    PlainRecords,
    Severity,
    Slot,
    Stall,
)
from halfbridge.checker.admin.doctor.judge import (
    CLOCK_MS_MAX,
    KAFKA_TXN_MS_MAX,
    KEPT_BYTES_MAX,
    judge,
)
from halfbridge.checker.admin.real_topics import PlacedPartition
from halfbridge.checker.admin.shape import WORKER_PER_S, Problem
from halfbridge.checker.admin.topics import Report
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.core.deferred import Lack, missing_topic
from halfbridge.cli import cli
from halfbridge.kafka.ports import SeenTopic
from halfbridge.serde.records import DaemonSettings
from halfbridge.serde.signing_keys import Role

CONFIG = CheckerConfig(bootstrap_servers="kafka:9092")
NAMES = CONFIG.names
NOW_MS = 1_700_000_000_000
BROKER = {"transaction.max.timeout.ms": "900000", "offsets.retention.minutes": "10080"}
ACL = Acl("User:d", ("Write",), "--topic", "orders")


def problem(code: str, *, blocking: bool = True) -> dict[str, Any]:
    """Return a `topics check` report with one problem."""
    one = Problem("subject", "what", "halfbridge topics create", blocking, code=code)
    return {"report": Report(problems=(one,))}


def away(topic: str) -> dict[str, Any]:
    """Return a partition without a leader."""
    one = PlacedPartition(
        topic=topic, partition=2, leader=None, replicas=(3,), in_sync=(3,), why="has no leader"
    )
    return {"away": (one,)}


def delayed(*lacks: Lack) -> dict[str, Any]:
    """Return two transactions that wait for topic orders."""
    return {"delayed": (Delayed("orders", 2, "A", NOW_MS - 12_000, lacks),)}


def half(partitions: int = 4, replicas: int = 3, *, out_of_sync: int = 0) -> dict[str, Any]:
    """Return a half topic on three brokers."""
    seen = SeenTopic(partitions, replicas, frozenset(), out_of_sync)
    return {"topics": {NAMES.half: seen}, "brokers": {1: "a:1", 2: "b:1", 3: "c:1"}}


def stall(since_ms: int) -> dict[str, Any]:
    """Return a partition whose last stable offset does not advance."""
    return {"stalls": (Stall("orders", 2, 17, since_ms, "A"),)}


def host(**facts: Any) -> dict[str, Any]:
    """Return facts about a machine."""
    return {"host": Host(**facts)}


def broker(**settings: str) -> dict[str, Any]:
    """Return one broker's settings, `_` in place of dots."""
    reported = {name.replace("_", "."): value for name, value in settings.items()}
    return {"broker_settings": {1: {**BROKER, **reported}}}


def connector(state: str, *tasks: str, trace: str = "", name: str = "shop") -> dict[str, Any]:
    """Return a connector that does not run."""
    stopped = Connector(name, state, tasks, trace)
    return {"changes": Changes(connect_url="http://c:8083", connectors=(stopped,))}


def slot(*, is_active: bool = True, kept_bytes: int = 0, is_lost: bool = False) -> dict[str, Any]:
    """Return a slot of a database."""
    one = Slot("shop", is_active, kept_bytes, is_lost)
    return {"changes": Changes(database="host=db dbname=shop", slots=(one,))}


def drift(one: Drift) -> dict[str, Any]:
    """Return a table that changed after its connector was made."""
    database = "--host=db --user=shop"
    return {"changes": Changes(connect_url="http://c:8083", database=database, drifts=(one,))}


# Code -> facts that cause the finding, and words of its command.
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "unreachable": ({"unreachable": "refused"}, "nc -vz kafka 9092"),
    "unanswered": ({"silent": {"brokers": "no answer"}}, "--timeout 120"),
    "topic-missing": (problem("topic-missing"), "topics create"),
    "topic-setting": (problem("topic-setting"), "topics create"),
    "topic-replicas": (half(replicas=1), "--broker-list 1,2,3"),
    "topic-in-sync": (half(out_of_sync=1), f"topics describe {NAMES.half}"),
    "topic-offline": (away(NAMES.half), f"topics describe {NAMES.half}"),
    "partitions": (problem("partitions"), "topics create"),
    "offsets": (problem("offsets"), "topics create"),
    "damaged": ({"damaged": {1: "half[1]@5: damaged"}}, f"topics describe {NAMES.half}"),
    "retention-ends": (problem("retention-ends"), "topics create"),
    "offsets-retention": (broker(offsets_retention_minutes="60"), "minutes=10080"),
    "kafka-txn-timeout": (broker(transaction_max_timeout_ms="5000"), "TIMEOUT_MS=5000"),
    "session-timeout": (broker(group_min_session_timeout_ms="30000"), "TIMEOUT_MS=30000"),
    "broker-versions": (
        {"broker_settings": {1: BROKER, 2: BROKER, 3: {**BROKER, "new": "1"}}},
        "kafka-broker-api-versions.sh",
    ),
    "daemon-right": ({"daemon_lacks": (ACL,)}, "--operation Write --topic orders"),
    "client-right": ({"client_lacks": (ACL,)}, "--operation Write --topic orders"),
    "frozen-lso": (stall(NOW_MS - KAFKA_TXN_MS_MAX), "--partition 2 --start-offset 17"),
    "no-worker": ({"workers": ()}, "checker run --bootstrap-servers kafka:9092"),
    "idle-workers": ({**half(1), "workers": ("w-0", "w-1")}, "--grow --partitions 2"),
    "surplus-pairs": (
        {**half(16), "workers": ("w-0",), "half_per_s": 12.5},
        "topics create --bootstrap-servers kafka:9092 --topic-prefix next- --partitions 4",
    ),
    "no-responder": ({"responders": {"g": ()}}, "groups show g"),
    "settings-differ": (
        {"record": DaemonSettings()._replace(worker="w", transaction_timeout_ms=1)},
        "export HALFBRIDGE_TRANSACTION_TIMEOUT_MS=1",
    ),
    "clock-broker": ({"newest_ms": NOW_MS + CLOCK_MS_MAX + 1}, "timedatectl"),
    "clock-client": ({"clocks": (BornClock("g", -CLOCK_MS_MAX - 1, 3),)}, "timedatectl"),
    "partition-offline": (
        delayed(Lack("orders", 2, "has no leader", 60_000)),
        "topics describe orders --bootstrap-servers kafka:9092",
    ),
    "delivery-waits": (delayed(), "tx explain A"),
    "real-topic": ({"named_topics": ("none",)}, "topics create none --type transaction"),
    "plain-writer": ({"plain": (PlainRecords("orders", 2, 17, 3),)}, "--list --topic orders"),
    "not-signed": (
        {"not_believed": (NotBelieved("g", Role.CLIENT, 3, NOW_MS, "unsigned", NOW_MS),)},
        "HALFBRIDGE_KEY_FILE=",
    ),
    "key-file": ({"key_file_flaw": "no such file"}, "halfbridge keys check"),
    "keys": ({"key_problems": ("key a ends",)}, "halfbridge keys check"),
    "connect-silent": (
        {"changes": Changes(connect_url="http://c:8083", connect_silent="refused")},
        "curl -fsS http://c:8083/",
    ),
    "connector-stopped": (
        connector("RUNNING", "RUNNING", "FAILED", trace="PSQLException: no\nslot"),
        "curl -fsS -X POST 'http://c:8083/connectors/shop/restart?includeTasks=true",
    ),
    "table-unread": (
        drift(Drift("shop", "public.refunds", parent="public.orders")),
        "--name shop-public.refunds --table public.refunds --apply http://c:8083",
    ),
    "table-versioned": (
        drift(Drift("shop", "shop.orders")),
        "-e 'ALTER TABLE `shop`.`orders` DROP SYSTEM VERSIONING'",
    ),
    "slot-lost": (slot(is_active=False, kept_bytes=-1, is_lost=True), "pg_drop_replication_slot"),
    "slot-log": (slot(kept_bytes=KEPT_BYTES_MAX + 1), "psql 'host=db dbname=shop' -c"),
    "slot-inactive": (slot(is_active=False, kept_bytes=1), "FROM pg_replication_slots"),
    "package": (host(foreign={"halfbridge.serde": "/x/serde"}), "pip install"),
    "client-library": (host(kafka_client=("2.13.1", "2.13.1")), "confluent-kafka>=2.15"),
    "memory": (host(memory_bytes=1 << 30), "HALFBRIDGE_ENTRIES_BYTES_MAX="),
    "open-files": (host(files_max=1024), "ulimit -n"),
}


def found(facts: dict[str, Any]) -> tuple[Finding, ...]:
    """Return the findings of these facts."""
    return judge(Facts(asked_at_ms=NOW_MS, **facts), CONFIG)


def test_every_finding_has_a_case() -> None:
    """CASES has a case for every finding code."""
    assert set(CASES) == set(MEANINGS)


@pytest.mark.parametrize("code", CASES)
def test_facts_make_one_finding(code: str) -> None:
    """A finding has its code's severity, one line of text, and a command that a shell can parse."""
    facts, words = CASES[code]
    (one,) = found(facts)
    assert (one.code, one.severity) == (code, MEANINGS[code][0])
    assert words in one.fix
    assert "\n" not in one.what + one.fix
    assert shlex.split(one.fix)


# Scripts without an equivalent in halfbridge: the client library cannot move replicas, query the
# brokers' releases, or abort another producer's kafka_txn; the cluster's administrator grants ACLs.
KAFKAS = {
    "kafka-acls.sh",
    "kafka-broker-api-versions.sh",
    "kafka-reassign-partitions.sh",
    "kafka-transactions.sh",
}


@pytest.mark.parametrize("code", CASES)
def test_commands_are_halfbridges_own(code: str) -> None:
    """Options in fixes exist; Kafka's scripts appear only where halfbridge has no command."""
    facts, _ = CASES[code]
    for one in found(facts):
        words = shlex.split(one.fix)
        assert words[0] in KAFKAS or not words[0].startswith("kafka-")
        if words.pop(0) != "halfbridge":
            continue
        command: click.Command | None = cli
        while isinstance(command, click.Group):
            command = command.get_command(click.Context(command), words.pop(0))
        assert command is not None, one.fix
        command.make_parser(click.Context(command)).parse_args(words)


def test_nothing_is_wrong_where_nothing_is_known_to_be() -> None:
    """Sound facts make no finding."""
    sound = {
        **half(),
        **broker(group_min_session_timeout_ms="6000", group_max_session_timeout_ms="1800000"),
        **host(
            memory_bytes=1 << 40, files_max=1 << 20, kafka_client=("2.16.1", "2.16.0"), foreign={}
        ),
        "workers": ("w-0",),
        "half_per_s": 12.5,
        "responders": {"g": ("c",)},
        "record": DaemonSettings(),
        "newest_ms": NOW_MS,
        "clocks": (BornClock("g", 5, 3),),
        **slot(kept_bytes=KEPT_BYTES_MAX),
    }
    assert found(sound) == ()


@pytest.mark.parametrize(
    ("pairs", "workers", "half_per_s", "needed"),
    [
        (5, 1, 0.0, 4),
        (4, 1, 0.0, None),
        (8, 2, 0.0, None),
        (32, 5, 0.0, None),  # the number of pairs in docs/evidence/scale.md
        (64, 5, 0.0, 32),
        (64, 1, WORKER_PER_S, 4),
        (64, 1, 8 * WORKER_PER_S, 32),
        (64, 1, 8 * WORKER_PER_S + 1, None),  # nine workers would be needed, and 36 pairs
        (64, 1, None, None),
        (64, 0, 0.0, None),
    ],
)
def test_pairs_are_counted_against_workers_that_run_or_that_the_load_needs(
    pairs: int, workers: int, half_per_s: float | None, needed: int | None
) -> None:
    """More pairs than four per needed worker, rounded up to a power of two, give a note."""
    facts = {"workers": ("w",) * workers, "half_per_s": half_per_s}
    notes = [each for each in found({**half(pairs), **facts}) if each.code == "surplus-pairs"]
    assert [f"need {needed}:" in each.what for each in notes] == [True] * (needed is not None)


def test_errors_come_first_and_advice_last() -> None:
    """Findings are sorted by severity; advice of `topics check` is a note, whatever its code."""
    report = Report(problems=(*problem("topic-setting", blocking=False)["report"].problems,))
    severities = [each.severity for each in found({"report": report, "workers": ()})]
    assert severities == [Severity.ERROR, Severity.NOTE]


@pytest.mark.parametrize(
    ("age_ms", "severity"),
    [
        (CONFIG.kafka_txn_timeout_ms - 1, None),
        (CONFIG.kafka_txn_timeout_ms, Severity.WARNING),
        (KAFKA_TXN_MS_MAX, Severity.ERROR),
    ],
)
def test_an_open_kafka_txn_has_its_time(age_ms: int, severity: Severity | None) -> None:
    """An open kafka_txn is a warning after kafka_txn_timeout_ms, an error after 15 minutes."""
    assert [each.severity for each in found(stall(NOW_MS - age_ms))] == [severity] * bool(severity)


def test_a_demand_to_come_is_a_warning() -> None:
    """Unsigned records are a warning before the demand: they "would not be believed"."""
    to_come = NotBelieved("g", Role.DAEMON, 1, NOW_MS, "unsigned", NOW_MS + 1)
    (one,) = found({"not_believed": (to_come,)})
    assert (one.code, one.severity) == ("not-signed", Severity.WARNING)
    assert "1 half record of its workers" in one.what
    assert "would not be believed" in one.what


def test_what_deliveries_wait_for_is_named_with_what_becomes_of_them() -> None:
    """The finding has partition, cause, number of transactions, the first one, and its expiry.

    A missing topic is one error with the command that creates it, also if the policy names it.
    """
    lack = Lack("orders", 2, "has no leader: it needs broker 3", 60_000)
    (one,) = found({**delayed(lack), **away("orders")})
    assert one.what == (
        "partition 2 of topic orders has no leader: it needs broker 3: deliveries of 2 transactions"
        " wait, first A, committed 12 s ago; 60 s after the COMMIT their messages become dead"
        " letters, UNDELIVERABLE"
    )
    gone = missing_topic("orders", 60_000)
    (one,) = found({**delayed(gone), "named_topics": ("orders",)})
    assert (one.code, one.severity) == ("real-topic", Severity.ERROR)
    assert one.fix.startswith("halfbridge topics create orders --type transaction --bootstrap")


def test_a_real_partition_that_nothing_waits_for_is_a_warning() -> None:
    """An offline partition of a real topic is a warning if no delivery waits for it."""
    (one,) = found(away("orders"))
    assert (one.code, one.severity) == ("partition-offline", Severity.WARNING)
    assert "partition 2 has no leader: it needs broker 3; deliveries to it would wait" in one.what


def test_text_of_records_breaks_no_line() -> None:
    """Line breaks in a client's transaction id or group name do not appear in the finding."""
    facts = {
        "stalls": (Stall("orders", 0, 1, 0, "A\nerror all: well"),),
        "clocks": (BornClock("g\nx", 10**9, 1),),
        "not_believed": (NotBelieved("g\nx", Role.CLIENT, 1, NOW_MS, "u\nx", 0),),
    }
    assert all("\n" not in each.what for each in found(facts))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (connector("PAUSED", "PAUSED"), "-X PUT http://c:8083/connectors/shop/resume"),
        (connector("STOPPED", name="a b/c"), "/connectors/a%20b%2Fc/resume"),
        (connector("UNASSIGNED", "UNASSIGNED"), "/connectors/shop/status"),
        (connector("RUNNING"), "/connectors/shop/status"),
    ],
)
def test_a_connector_that_did_not_fail_is_a_warning(facts: dict[str, Any], words: str) -> None:
    """A connector that was paused, stopped or unassigned is a warning without a restart command."""
    (one,) = found(facts)
    assert (one.code, one.severity) == ("connector-stopped", Severity.WARNING)
    assert words in one.fix


def test_a_failed_task_is_named_with_its_cause() -> None:
    """The finding has the states of all tasks and the first line of the cause."""
    (one,) = found(CASES["connector-stopped"][0])
    assert "tasks RUNNING, FAILED: PSQLException: no" in one.what


def test_a_slot_without_a_reader_shows_how_to_drop_it() -> None:
    """An inactive slot of any size has the drop command; an active slot does not."""
    for kept_bytes in (0, KEPT_BYTES_MAX + 1):
        (one,) = found(slot(is_active=False, kept_bytes=kept_bytes))
        assert "SELECT pg_drop_replication_slot('shop')" in one.what
    (one,) = found(slot(kept_bytes=KEPT_BYTES_MAX + 1))
    assert "drop" not in one.what


def test_connectors_and_slots_are_judged_without_a_broker() -> None:
    """Slot findings and unanswered questions are reported even if Kafka is unreachable."""
    facts = {**slot(is_active=False), "silent": {"replication slots": "no"}, "unreachable": "no"}
    assert [each.code for each in found(facts)] == ["unreachable", "unanswered", "slot-inactive"]
