"""Turns facts into findings. Pure: each function judges one subject."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from typing import TYPE_CHECKING
from urllib.parse import quote

from halfbridge.checker.admin.doctor.facts import Finding, Severity, finding
from halfbridge.checker.admin.real_topics import (
    PlacedPartition,
    create_command,
    describe_command,
    fix_command,
)
from halfbridge.checker.admin.shape import WORKER_PER_S, pairs_for
from halfbridge.checker.admin.words import counted, listed, shown_time
from halfbridge.checker.config import ENTRIES_BYTES_MIN
from halfbridge.logs import one_line
from halfbridge.serde.delivery import DELIVERY_LIMIT, Delivery
from halfbridge.serde.signing_keys import Role
from halfbridge.serde.topics import SAFE_REPLICAS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from halfbridge.checker.admin.acls import Acl
    from halfbridge.checker.admin.doctor.facts import (
        Changes,
        Connector,
        Drift,
        Facts,
        Host,
        Slot,
    )
    from halfbridge.checker.config import CheckerConfig

# Beyond that, clocks are not merely imprecise: a check comes a tenth of its interval late by 3 s.
CLOCK_MS_MAX = 60_000
# How long a kafka_txn of anybody may be open: Kafka's default of transaction.max.timeout.ms.
KAFKA_TXN_MS_MAX = 900_000
# Most topics in one finding, which stays a line or two.
SHOWN_MAX = 5
_ORDER = {severity: place for place, severity in enumerate(Severity)}


def judge(facts: Facts, config: CheckerConfig) -> tuple[Finding, ...]:
    """Return all findings, errors first."""
    if facts.unreachable:
        elsewhere = (*_silent(facts, config), *judge_changes(facts.changes))
        host = judge_host(facts.host, config)
        return (_unreachable(facts, config), *judge_keys(facts, config), *elsewhere, *host)
    parts = (
        _silent(facts, config),
        _topics(facts),
        _replicas(facts, config),
        _away(facts, config),
        _in_sync(facts, config),
        judge_brokers(facts, config),
        _rights(facts, config),
        _stalls(facts, config),
        _damaged(facts, config),
        _workers(facts, config),
        _pairs(facts, config),
        _settings(facts, config),
        _clocks(facts),
        judge_keys(facts, config),
        _real_topics(facts, config),
        _plain_writers(facts, config),
        judge_changes(facts.changes),
        judge_host(facts.host, config),
    )
    found = [each for part in parts for each in part]
    return tuple(sorted(found, key=lambda each: _ORDER[each.severity]))


def where(config: CheckerConfig) -> str:
    """Return the options that name this installation."""
    return config.names.options(config.bootstrap_servers)


def _unreachable(facts: Facts, config: CheckerConfig) -> Finding:
    host, _, port = config.bootstrap_servers.split(",")[0].strip().rpartition(":")
    what = f"no Kafka broker answers at {config.bootstrap_servers}: {facts.unreachable}"
    return finding("unreachable", what, f"nc -vz {shlex.quote(host or 'localhost')} {port}")


def _silent(facts: Facts, config: CheckerConfig) -> Iterator[Finding]:
    for question, why in facts.silent.items():
        what = f"{question}: {one_line(why)}"
        yield finding("unanswered", what, f"halfbridge doctor {where(config)} --timeout 120")


def _topics(facts: Facts) -> Iterator[Finding]:
    for problem in facts.report.problems:
        severity = None if problem.blocking else Severity.NOTE
        yield finding(problem.code, f"{problem.subject}: {problem.what}", problem.fix, severity)


def _replicas(facts: Facts, config: CheckerConfig) -> Iterator[Finding]:
    names, servers = config.names, config.bootstrap_servers
    wanted = min(SAFE_REPLICAS, len(facts.brokers))
    for topic, seen in facts.topics.items():
        if not topic.startswith(names.prefix) or not names.is_internal(topic):
            continue
        if topic not in (names.half, names.op, names.dead, names.settings):
            continue
        if seen.replicas < wanted:
            ids = ",".join(map(str, sorted(facts.brokers)))
            move = f'{{"version":1,"topics":[{{"topic":"{topic}"}}]}}'
            what = f"{topic}: a partition has {seen.replicas} replicas of {wanted} possible"
            fix = (
                f"kafka-reassign-partitions.sh --bootstrap-server {servers} --generate"
                f" --broker-list {ids} --topics-to-move-json-file <(echo {shlex.quote(move)})"
            )
            yield finding("topic-replicas", what, fix)


def _away(facts: Facts, config: CheckerConfig) -> Iterator[Finding]:
    """Yield partitions that take no records, and what waits for real topics."""
    names = config.names
    by_topic: dict[str, list[PlacedPartition]] = {}
    for each in facts.away:
        by_topic.setdefault(each.topic, []).append(each)
    for topic, partitions in by_topic.items():
        fix = f"{describe_command(topic)} {where(config)}"
        named = ", ".join(
            f"partition {each.partition} {each.cause}" for each in partitions[:SHOWN_MAX]
        )
        more = f", and {len(partitions) - SHOWN_MAX} more" if len(partitions) > SHOWN_MAX else ""
        if names.is_internal(topic):
            what = f"{topic}: {named}{more}; what needs the partition waits until then"
            yield finding("topic-offline", what, fix)
        elif all(one.topic != topic or not one.lacks for one in facts.delayed):
            what = f"real topic {topic}: {named}{more}; deliveries to it would wait"
            yield finding("partition-offline", what, fix, Severity.WARNING)
    yield from _delayed(facts, config)


def _delayed(facts: Facts, config: CheckerConfig) -> Iterator[Finding]:
    for one in facts.delayed:
        for lack in one.lacks[:SHOWN_MAX]:
            wait_s = lack.limit_ms / 1000
            since = ""
            if one.since_ms >= 0:
                since = f", committed {max(0, facts.asked_at_ms - one.since_ms) / 1000:.0f} s ago"
            what = (
                f"{lack}: deliveries of {counted(one.transactions, 'transaction')} wait, first"
                f" {one.oldest_id}{since}; {wait_s:.0f} s after the COMMIT their messages become"
                " dead letters, UNDELIVERABLE"
            )
            code = "partition-offline" if lack.is_away else "real-topic"
            fix = f"{fix_command(lack)} {where(config)}"
            yield finding(code, one_line(what), fix, Severity.ERROR)
    # A delivery without a lack may wait for an earlier transaction with the same key.
    if facts.delayed and not any(one.lacks for one in facts.delayed):
        topics = ", ".join(one.topic for one in facts.delayed[:SHOWN_MAX])
        what = (
            f"deliveries to {topics} wait, and by metadata all partitions take records: brokers do"
            " not acknowledge, or did not until now. /healthz of the workers names the partition"
        )
        oldest = min(facts.delayed, key=lambda one: one.since_ms).oldest_id
        fix = f"halfbridge tx explain {shlex.quote(oldest)} {where(config)}"
        yield finding("delivery-waits", one_line(what), fix)


def _in_sync(facts: Facts, config: CheckerConfig) -> Iterator[Finding]:
    names = config.names
    read = (names.half, names.op, names.dead, names.settings, *facts.named_topics)
    behind = [
        topic
        for topic in dict.fromkeys(read)
        if topic in facts.topics and facts.topics[topic].out_of_sync
    ]
    if behind:
        what = (
            f"{listed(behind, SHOWN_MAX)}: replicas have not caught up; their broker is"
            " down, slow, or its disk is full. With the next broker that fails, writes may be"
            " refused"
        )
        fix = f"{describe_command(*behind[:SHOWN_MAX])} {where(config)}"
        yield finding("topic-in-sync", what, fix)


def _rights(facts: Facts, config: CheckerConfig) -> Iterator[Finding]:
    for code, acls in (("daemon-right", facts.daemon_lacks), ("client-right", facts.client_lacks)):
        for acl in acls:
            yield finding(code, _lack(acl), acl.command(config.bootstrap_servers))
    if facts.transactional_refusal:
        what = f"transactional ids {config.topic_prefix}halfbridge-*: {facts.transactional_refusal}"
        fix = f"halfbridge topics create {where(config)} --acls"  # prints this grant among others
        yield finding("daemon-right", what, fix)


def _lack(acl: Acl) -> str:
    kind = acl.resource.removeprefix("--")
    return f"{acl.principal} may not {', '.join(acl.operations)} {kind} {acl.name}".rstrip()


def _stalls(facts: Facts, config: CheckerConfig) -> Iterator[Finding]:
    for stall in facts.stalls:
        age_ms = facts.asked_at_ms - stall.since_ms
        if stall.since_ms >= 0 and age_ms < config.kafka_txn_timeout_ms:
            continue  # it has its time
        age = f"for {age_ms / 1000:.0f} s" if stall.since_ms >= 0 else "for how long is not known"
        whose = (
            f"its first record is of transaction {one_line(stall.transaction_id)}, so a worker's"
            if stall.transaction_id
            else "its first record names no transaction of this installation"
        )
        what = (
            f"{stall.topic} {stall.partition}: read_committed readers wait at offset"
            f" {stall.offset}, {age}: a kafka_txn is open, and {whose}. The first command shows its"
            " producer; abort only what no living producer will end"
        )
        tool = f"kafka-transactions.sh --bootstrap-server {config.bootstrap_servers}"
        place = f"--topic {stall.topic} --partition {stall.partition}"
        fix = (
            f"{tool} describe-producers {place} && {tool} abort {place}"
            f" --start-offset {stall.offset}"
        )
        is_old = age_ms >= KAFKA_TXN_MS_MAX or stall.since_ms < 0
        yield finding("frozen-lso", what, fix, None if is_old else Severity.WARNING)


def _damaged(facts: Facts, config: CheckerConfig) -> Iterator[Finding]:
    for number, why in facts.damaged.items():
        fix = f"{describe_command(config.names.half)} {where(config)}"
        yield finding("damaged", f"partition {number} waits: {one_line(why)}", fix)


def _workers(facts: Facts, config: CheckerConfig) -> Iterator[Finding]:
    if facts.workers is not None:
        half = facts.topics.get(config.names.half)
        if not facts.workers:
            what = f"group {config.names.daemon_group} has no member: nothing is delivered"
            yield finding("no-worker", what, f"halfbridge checker run {where(config)}")
        elif half is not None and len(facts.workers) > half.partitions:
            count = len(facts.workers)
            what = f"{count} workers for {half.partitions} partitions: the others stand by"
            fix = f"halfbridge topics create {where(config)} --grow --partitions {count}"
            yield finding("idle-workers", what, fix)
    for group, members in facts.responders.items():
        if not members:
            what = f"nobody answers checks of producer group {group}: its clients do not run"
            fix = f"halfbridge groups show {shlex.quote(group)} {where(config)}"
            yield finding("no-responder", what, fix)


def _pairs(facts: Facts, config: CheckerConfig) -> Iterator[Finding]:
    """Yield a note where pairs outnumber what the workers need, and those that the load needs."""
    half = facts.topics.get(config.names.half)
    if half is None or not facts.workers or facts.half_per_s is None:
        return
    running = len(facts.workers)
    needed = pairs_for(max(running, math.ceil(facts.half_per_s / WORKER_PER_S)))
    if half.partitions <= needed:
        return
    what = (
        f"{half.partitions} pairs, and {counted(running, 'worker')} with {facts.half_per_s:.3g}"
        f" half messages a second (mean of the last hour) need {needed}: each pair costs clients"
        " and brokers requests. If no worker is down and no busier hour is to come, move to a new"
        " installation with fewer: half partitions cannot be removed"
    )
    fix = (
        f"halfbridge topics create --bootstrap-servers {config.bootstrap_servers}"
        f" --topic-prefix {config.names.prefix}next- --partitions {needed}"
    )
    yield finding("surplus-pairs", what, fix)


def _settings(facts: Facts, config: CheckerConfig) -> Iterator[Finding]:
    if facts.record is None:
        return
    for name, theirs in facts.record.limits().items():
        mine = getattr(config, name, theirs)
        if name == DELIVERY_LIMIT:  # a word in the settings, a number in the record
            mine = Delivery(config.delivery).number
        if mine != theirs:
            what = (
                f"{name}: the daemon (worker {one_line(facts.record.worker)}) has {theirs}, these"
                f" settings say {mine}; clients and workers must agree"
            )
            yield finding("settings-differ", what, f"export HALFBRIDGE_{name.upper()}={theirs}")


def _clocks(facts: Facts) -> Iterator[Finding]:
    ahead_ms = facts.newest_ms - facts.asked_at_ms
    if facts.newest_ms >= 0 and ahead_ms > CLOCK_MS_MAX:
        what = (
            f"the newest append time is {ahead_ms / 1000:.0f} s ahead of this machine's clock: the"
            " clock of a broker, or this one, is wrong"
        )
        yield finding("clock-broker", what, "timedatectl set-ntp true && timedatectl status")
    for clock in facts.clocks:
        if abs(clock.lag_ms) > CLOCK_MS_MAX:
            word = "behind" if clock.lag_ms > 0 else "ahead of"
            what = (
                f"clients of producer group {one_line(clock.producer_group)}: their clock is"
                f" {abs(clock.lag_ms) / 1000:.0f} s {word} the brokers' ({clock.records} half"
                " messages); ids are found by that time, nothing is decided by it"
            )
            yield finding("clock-client", what, "timedatectl set-ntp true && timedatectl status")


def _real_topics(facts: Facts, config: CheckerConfig) -> Iterator[Finding]:
    for topic in facts.named_topics:
        if topic in facts.topics or any(one.topic == topic for one in facts.delayed):
            continue
        what = f"real topic {topic} does not exist (or may not be seen): its messages would wait"
        yield finding("real-topic", what, f"{create_command(topic)} {where(config)}")


def _plain_writers(facts: Facts, config: CheckerConfig) -> Iterator[Finding]:
    for topic, partition, offset, records in facts.plain:
        what = (
            f"transaction topic {topic}: {records} of its newest records were not written by the"
            f" daemon, the last one at offset {offset} of partition {partition}. The command shows"
            " who may write; remove all but the daemon"
        )
        fix = (
            f"kafka-acls.sh --bootstrap-server {config.bootstrap_servers} --list"
            f" --topic {shlex.quote(topic)}"
        )
        yield finding("plain-writer", what, fix)


# Kafka's own default; with less, a daemon that is stopped over a holiday has no offsets any more.
OFFSETS_RETENTION_MIN = 7 * 24 * 60


def judge_brokers(facts: Facts, config: CheckerConfig) -> Iterator[Finding]:
    """Yield what does not go with the daemon's settings, and brokers of other releases."""
    for broker, settings in sorted(facts.broker_settings.items()):
        yield from _limits(broker, settings, config)
    kinds = Counter(frozenset(settings) for settings in facts.broker_settings.values())
    if len(kinds) > 1:
        usual = kinds.most_common(1)[0][0]
        others = sorted(
            broker
            for broker, settings in facts.broker_settings.items()
            if frozenset(settings) != usual
        )
        what = (
            f"brokers {', '.join(map(str, others))} have other settings than most, so they are"
            " of another release; finish the upgrade (4.2.0 beside older ones: KAFKA-20322)"
        )
        fix = f"kafka-broker-api-versions.sh --bootstrap-server {config.bootstrap_servers}"
        yield finding("broker-versions", what, fix)


def _limits(broker: int, settings: Mapping[str, str], config: CheckerConfig) -> Iterator[Finding]:
    txn_ms = _number(settings, "transaction.max.timeout.ms")
    if txn_ms is not None and config.kafka_txn_timeout_ms > txn_ms:
        what = (
            f"broker {broker}: transaction.max.timeout.ms is {txn_ms}, less than"
            f" kafka_txn_timeout_ms, which is {config.kafka_txn_timeout_ms}"
        )
        yield finding("kafka-txn-timeout", what, f"export HALFBRIDGE_KAFKA_TXN_TIMEOUT_MS={txn_ms}")
    least_ms = _number(settings, "group.min.session.timeout.ms")
    most_ms = _number(settings, "group.max.session.timeout.ms")
    for bound, word, is_wrong in (
        (least_ms, "min", least_ms is not None and config.session_timeout_ms < least_ms),
        (most_ms, "max", most_ms is not None and config.session_timeout_ms > most_ms),
    ):
        if is_wrong:
            what = (
                f"broker {broker}: group.{word}.session.timeout.ms is {bound}, and"
                f" session_timeout_ms is {config.session_timeout_ms}"
            )
            yield finding("session-timeout", what, f"export HALFBRIDGE_SESSION_TIMEOUT_MS={bound}")
    minutes = _number(settings, "offsets.retention.minutes")
    if minutes is not None and minutes < OFFSETS_RETENTION_MIN:
        what = (
            f"broker {broker}: offsets.retention.minutes is {minutes}: the partitions of a daemon"
            " that is stopped for longer need `checker init`; change it on each broker, and restart"
        )
        line = f"offsets.retention.minutes={OFFSETS_RETENTION_MIN}"
        yield finding("offsets-retention", what, f"echo {line} >> config/server.properties")


def _number(settings: Mapping[str, str], name: str) -> int | None:
    text = settings.get(name, "")
    return int(text) if text.isdecimal() else None


# PostgreSQL's default of max_wal_size: a server keeps this much log between checkpoints anyway.
KEPT_BYTES_MAX = 1 << 30
_UNNAMEABLE = re.compile(r"[^A-Za-z0-9._-]")  # not allowed in the name of a connector
_BY_COMMAND = frozenset({"PAUSED", "STOPPED"})


def judge_changes(changes: Changes) -> Iterator[Finding]:
    """Yield what holds changes back, and what fills the database's disk meanwhile."""
    if changes.connect_silent:
        what = f"Kafka Connect at {changes.connect_url}: {one_line(changes.connect_silent)}"
        fix = f"curl -fsS {shlex.quote(changes.connect_url + '/')}"
        yield finding("connect-silent", what, fix)
    for connector in changes.connectors:
        yield _connector(connector, changes.connect_url)
    for slot in changes.slots:
        yield from _slot(slot, changes.database)
    for drift in changes.drifts:
        yield _drift(drift, changes)


def _connector(connector: Connector, url: str) -> Finding:
    """Failed: restart it. Stopped by a command, or between workers: a warning."""
    tasks = ", ".join(connector.tasks) or "none"
    what = f"connector {one_line(connector.name)}: state {connector.state}, tasks {tasks}"
    place = f"{url}/connectors/{quote(connector.name, safe='')}"
    if "FAILED" in (connector.state, *connector.tasks):
        trace = one_line(connector.trace) or "the log of Kafka Connect has the cause"
        restart = f"{place}/restart?includeTasks=true&onlyFailed=true"
        return finding(
            "connector-stopped",
            f"{what}: {trace}. Correct the cause; then the command restarts what failed",
            f"curl -fsS -X POST {shlex.quote(restart)}",
        )
    if _BY_COMMAND.intersection((connector.state, *connector.tasks)):
        why = "an operator stopped it; the command resumes it"
        fix = f"curl -fsS -X PUT {shlex.quote(place + '/resume')}"
    else:
        why = "it starts, or no worker has it; if it stays so, see the log of Kafka Connect"
        fix = f"curl -fsS {shlex.quote(place + '/status')}"
    return finding("connector-stopped", f"{what}: {why}", fix, Severity.WARNING)


def _drift(drift: Drift, changes: Changes) -> Finding:
    table = one_line(drift.table)
    if drift.parent:
        what = (
            f"connector {drift.connector}: its table.include.list lacks {table}, which inherits"
            f" from {one_line(drift.parent)}, so its rows are lost. The command"
            " (HALFBRIDGE_DATABASE_URL: the database) makes a connector that reads the table from"
            " its first row on; relay its topic too"
        )
        name = _UNNAMEABLE.sub("_", f"{drift.connector}-{drift.table}")
        options = ("--name", name, "--table", drift.table, "--apply", changes.connect_url)
        return finding("table-unread", what, f"halfbridge relay connector {shlex.join(options)}")
    what = (
        f"connector {drift.connector}: {table} is system-versioned now, so each update comes as an"
        " insert too. The command ends that, and drops the old versions of the rows"
    )
    name = ".".join(f"`{part}`" for part in drift.table.split(".", 1))
    statement = shlex.quote(f"ALTER TABLE {name} DROP SYSTEM VERSIONING")
    return finding("table-versioned", what, f"mariadb {changes.database} -e {statement}")


def _slot(slot: Slot, database: str) -> Iterator[Finding]:
    """Yield the worst that is wrong with a slot.

    Its command only shows the slot, because only the operator knows whether its reader comes
    back.
    """
    columns = "slot_name, active, active_pid, wal_status, restart_lsn, confirmed_flush_lsn"
    where = f"WHERE slot_name = '{slot.name}'"  # PostgreSQL allows a-z, 0-9 and _ only
    psql = f"psql {shlex.quote(database)} -c"
    show = f'{psql} "SELECT {columns} FROM pg_replication_slots {where}"'  # noqa: S608  (shown)
    drop = f"SELECT pg_drop_replication_slot('{slot.name}')"
    gone = f"start its reader. If the reader is gone for good, {drop} frees the log"
    if slot.is_lost:
        what = (
            f"slot {slot.name}: log that it needs was removed (max_slot_wal_keep_size), so changes"
            " are lost. Drop it with the command, and begin its connector with a new snapshot"
        )
        yield finding("slot-lost", what, f'{psql} "{drop}"')
    elif slot.kept_bytes > KEPT_BYTES_MAX:
        slow = "its reader is too slow, or a transaction is open for long"
        what = (
            f"slot {slot.name}: PostgreSQL keeps {slot.kept_bytes >> 20} MiB of log for it, until"
            f" the disk is full; {slow if slot.is_active else f'nobody reads it: {gone}'}"
        )
        yield finding("slot-log", what, show)
    elif not slot.is_active:
        what = (
            f"slot {slot.name}: nobody reads it; PostgreSQL keeps {max(0, slot.kept_bytes) >> 20}"
            f" MiB of log for it, and all that follows: {gone}"
        )
        yield finding("slot-inactive", what, show)


# Memory of a worker in addition to its two budgets (docs/how-to/size.md).
PROCESS_BYTES = 300 * 1024 * 1024
# A worker has half a dozen Kafka clients with a few connections to each broker; a cluster of 100
# brokers takes some 2,000 files.
FILES_MIN = 4096
# Older ones skip records after error events (librdkafka #4844).
CLIENT_MIN = (2, 15)


def judge_host(host: Host, config: CheckerConfig) -> Iterator[Finding]:
    """Yield faults of this machine."""
    yield from _packages(host)
    yield from _memory(host, config)
    if 0 < host.files_max < FILES_MIN:
        what = f"a process of this shell may open {host.files_max} files; {FILES_MIN} are wanted"
        yield finding("open-files", what, f"ulimit -n {FILES_MIN}")


def _packages(host: Host) -> Iterator[Finding]:
    for name, place in sorted(host.foreign.items()):
        what = f"{name} is imported from {place}, which is not of this installation"
        yield finding("package", what, "python -m pip install --force-reinstall halfbridge")
    version = tuple(int(part) for part in re.findall(r"\d+", host.kafka_client[0])[:2])
    if version and version < CLIENT_MIN:
        wanted = ".".join(map(str, CLIENT_MIN))
        what = f"confluent-kafka {host.kafka_client[0]} is older than {wanted}"
        fix = f"python -m pip install 'confluent-kafka>={wanted}'"
        yield finding("client-library", what, fix)


def _memory(host: Host, config: CheckerConfig) -> Iterator[Finding]:
    budgets = config.entries_bytes_max + config.ledger_bytes_max
    needed = config.workers * (budgets + PROCESS_BYTES)
    if 0 < host.memory_bytes < needed:
        left = host.memory_bytes // config.workers - PROCESS_BYTES - config.ledger_bytes_max
        fitting = max(ENTRIES_BYTES_MIN, left * 9 // 10)
        what = (
            f"{config.workers} workers may take {needed >> 20} MiB (entries_bytes_max,"
            f" ledger_bytes_max and {PROCESS_BYTES >> 20} MiB each); this machine or container has"
            f" {host.memory_bytes >> 20} MiB"
        )
        yield finding("memory", what, f"export HALFBRIDGE_ENTRIES_BYTES_MAX={fitting}")


_WRITERS = {
    Role.CLIENT: "clients",
    Role.DAEMON: "workers, which wrote copies",
    Role.OPERATOR: "operators, who resumed or redelivered",
}
_REFUSED = (
    "producer group {group}: {records} of its {writers} are not believed since {since}, the newest"
    " of {newest}: {why}. Such records are dead letters INVALID. Give the writers a key file with a"
    " key of role {role}, and restart them; if they have one, a stranger writes"
)
_TO_BE_REFUSED = (
    "producer group {group}: {records} of its {writers} would not be believed, the newest of"
    " {newest}: {why}. Signatures are demanded from {since} on. Give the writers a key file with a"
    " key of role {role} before that time, and restart them"
)


def judge_keys(facts: Facts, config: CheckerConfig) -> Iterator[Finding]:
    """Yield what has to be done before records are not believed, and who writes such records."""
    path = shlex.quote(str(config.key_file))
    if facts.key_file_flaw:
        yield finding("key-file", one_line(facts.key_file_flaw), f"halfbridge keys check {path}")
    for problem in facts.key_problems:
        yield finding("keys", one_line(problem), f"halfbridge keys check {path}")
    for each in facts.not_believed:
        holds = each.newest_ms >= each.demanded_from_ms
        text = _REFUSED if holds else _TO_BE_REFUSED
        what = text.format(
            group=one_line(each.producer_group),
            records=counted(each.records, "half record"),
            writers=_WRITERS[each.role],
            newest=shown_time(each.newest_ms),
            why=one_line(each.why),
            since=shown_time(each.demanded_from_ms),
            role=each.role.value,
        )
        severity = None if holds else Severity.WARNING
        yield finding("not-signed", what, f"export HALFBRIDGE_KEY_FILE={path}", severity)
