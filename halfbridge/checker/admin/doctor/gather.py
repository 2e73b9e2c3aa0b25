"""Asks brokers about an installation, all questions in parallel; changes nothing.

Rights are tried: brokers are asked for the rights of this principal, and a producer with the
transactional id `<prefix>halfbridge-doctor`, which no worker uses, is initialised.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from halfbridge.checker.admin.acls import daemon_acls, lacking, producer_acls
from halfbridge.checker.admin.cluster import CALL_TIMEOUT_S, FIRST_ANSWER_S, Cluster
from halfbridge.checker.admin.doctor.facts import Delayed, Facts
from halfbridge.checker.admin.doctor.logs import (
    NewestHalves,
    key_problems,
    newest_halves,
    open_txns,
    plain_records,
)
from halfbridge.checker.admin.real_topics import RETENTION_AGES, lacks_of, needed, placed
from halfbridge.checker.admin.shape import HALF_RETENTION_MS
from halfbridge.checker.admin.topics import check_topics, plan_layout
from halfbridge.checker.admin.transactions.asked import daemon_limits
from halfbridge.checker.admin.transactions.logs import Slice, spans_between
from halfbridge.checker.admin.transactions.undecided import read_pairs
from halfbridge.checker.policy import may_deliver
from halfbridge.kafka.error_log import Reasons
from halfbridge.kafka.errors import NO_RIGHT, BridgeError, Code, ConfigError, KafkaFailure
from halfbridge.kafka.settings_topic import READING, read_settings
from halfbridge.kafka.signatures import load_signatures
from halfbridge.serde.progress import ProgressError, parse_progress
from halfbridge.serde.settings_topic import TopicType
from halfbridge.serde.signing_keys import Role
from halfbridge.serde.topics import DEADLY
from halfbridge.serde.units import MS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from halfbridge.checker.admin.acls import Acl
    from halfbridge.checker.admin.doctor.facts import Host
    from halfbridge.checker.admin.real_topics import PlacedPartition
    from halfbridge.checker.admin.topics import Report
    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.core.entries import Entry
    from halfbridge.checker.core.events import OpRead
    from halfbridge.checker.policy import Policy
    from halfbridge.kafka.ports import Admin, Answer, Ports, Running, TopicPartition
    from halfbridge.serde.records import DaemonSettings
    from halfbridge.serde.signing_keys import KeyRing

T = TypeVar("T")

# Producer groups whose members are asked for; real topics whose rights and ends are. Both can be
# invented by clients or grow without a bound, and each costs questions to brokers. More make the
# findings complete on large installations, but do not end within timeout_s on slow ones.
GROUPS_MAX = 100
REAL_TOPICS_MAX = 200
# A mean over less follows each pause of a load; over more, the load that was.
_RATE_S = 3_600


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Options beyond the daemon's settings."""

    # Groups that need a check topic; others are found by their topics.
    producer_groups: tuple[str, ...] = ()
    real_topics: tuple[str, ...] = ()  # real topics in addition to the policy's
    # Properties of a client's principal; None: its rights are not tried.
    client_kafka: Mapping[str, str] | None = None
    # The daemon's and the client's, for the commands that grant rights.
    principals: tuple[str, str] = ("User:halfbridge", "User:client")
    policy_topics: tuple[str, ...] = ()  # topics that the policy names without a pattern
    # A person waits for it. Longer waits for brokers that do not answer, shorter misses slow ones.
    timeout_s: float = 30.0


def gather(
    config: CheckerConfig, policy: Policy, request: Request, *, host: Host, ports: Ports
) -> Facts:
    """Return what brokers say, within `request.timeout_s` and the time to reach one."""
    named = tuple(dict.fromkeys((*request.policy_topics, *request.real_topics)))
    facts = Facts(asked_at_ms=ports.clock.time_ms(), host=host, named_topics=named)
    ring = _key_ring(config, facts)
    common = _common(config, config.kafka)
    reasons = Reasons()
    admin = ports.kafka.admin({**common, "error_cb": reasons.note})
    try:
        facts.topics = admin.topics(min(FIRST_ANSWER_S, request.timeout_s))
    except KafkaFailure as failure:
        admin.poll(0)  # reports its connection errors
        facts.unreachable = reasons.explain(failure)
        return facts
    real = [
        topic
        for topic in facts.topics
        if not config.names.is_internal(topic)
        and (topic in request.real_topics or may_deliver(policy, topic))
    ][:REAL_TOPICS_MAX]
    questions = Questions(ports, request.timeout_s)
    typed = [
        (topic, number)
        for topic, seen in facts.topics.items()
        if policy.type_of(topic) is TopicType.TRANSACTION and not config.names.is_internal(topic)
        for number in range(seen.partitions)
        if number not in seen.leaderless
    ]
    if typed:
        questions.start(
            "records of transaction topics", partial(plain_records, typed, ports, common)
        )
    groups = dict.fromkeys((*request.producer_groups, *config.names.groups_of(facts.topics)))
    _Gatherer(
        config=config,
        request=request,
        facts=facts,
        real=real,
        admin=admin,
        ports=ports,
        common=common,
        ring=ring,
        groups=list(groups)[:GROUPS_MAX],
    ).ask(questions)
    questions.wait()
    return _filled(facts, questions)


@dataclass(slots=True, kw_only=True)
class _Gatherer:
    """Begins all questions about one installation."""

    config: CheckerConfig
    request: Request
    facts: Facts
    real: list[str]
    admin: Admin
    ports: Ports
    common: Mapping[str, object]
    ring: KeyRing | None
    groups: list[str]

    def ask(self, questions: Questions) -> None:
        names, topics = self.config.names, self.facts.topics
        questions.start("topics and offsets", self._report)
        questions.start("brokers", self._brokers)
        questions.start("rights of the daemon", self._daemon_lacks)
        questions.start("transactional ids", self._transactional_refusal)
        questions.start("workers", partial(self._members, names.daemon_group))
        questions.start("check responders", self._responders)
        mine = [names.half, names.op, names.dead, *self.real]
        places = [
            (name, number)
            for name in mine
            if name in topics
            for number in range(topics[name].partitions)
            if number not in topics[name].leaderless
        ]
        checks = [names.check(group) for group in self.groups]
        known = [*mine, names.settings, *checks]
        questions.start(
            "partitions", partial(self._away, [each for each in known if each in topics])
        )
        questions.start("ends of logs", partial(open_txns, places, self.ports, self.common))
        halves = [place for place in places if place[0] == names.half]
        if halves:
            newest = partial(newest_halves, halves, self.ports, self.common, names=names)
            questions.start("deferred deliveries", partial(self._delayed, halves))
            questions.start("damaged records", partial(self._damaged, halves))
            questions.start("half records", partial(newest, ring=self.ring))
            questions.start("rate of half messages", partial(self._half_per_s, halves))
        if names.settings in topics:
            questions.start("settings record", self._record)
        if self.request.client_kafka is not None:
            questions.start("rights of the client", self._client_lacks)

    def _cluster(self) -> Cluster:
        """Return a cluster for one question: clients are not shared by threads."""
        config = self.config
        return Cluster(config.bootstrap_servers, kafka=config.kafka, ports=self.ports)

    def _report(self) -> Report:
        config, request, cluster = self.config, self.request, self._cluster()
        layout = plan_layout(
            cluster,
            producer_groups=request.producer_groups,
            retention_ms=max(HALF_RETENTION_MS, RETENTION_AGES * config.transaction_age_ms_max),
        )
        return check_topics(cluster, self.config.names, layout, is_real=set(self.real).__contains__)

    def _damaged(self, halves: list[TopicPartition]) -> dict[int, str]:
        found = self._cluster().committed(self.config.names.reading_group, halves)
        return {
            number: each.metadata.removeprefix(DEADLY)
            for (_, number), each in found.items()
            if each.metadata.startswith(DEADLY)
        }

    def _away(self, topics: list[str]) -> tuple[PlacedPartition, ...]:
        found = placed(self._cluster(), topics)
        return tuple(each for topic in found.values() for each in topic if each.why)

    def _delayed(self, halves: list[TopicPartition]) -> tuple[Delayed, ...]:
        """Return what committed transactions wait for; only pairs that have some are read."""
        cluster, names = self._cluster(), self.config.names
        ops = [(names.op, number) for _, number in halves]
        committed = cluster.committed(names.daemon_group, [*halves, *ops])
        waits = []
        for half, op in zip(halves, ops, strict=True):
            with suppress(ProgressError):  # `topics check` reports it
                at = committed[op]
                progress = parse_progress(committed[half].offset, at.offset, at.metadata)
                waits += [half[1]] if progress.deferred else []
        if not waits:
            return ()
        pairs, _ = read_pairs(cluster, names, daemon_limits(cluster, names), partitions=waits)
        deferred = [one for pair in pairs for one in pair.ledger.deferred]
        return _delayed(cluster, deferred, self.config.topic_gone_ms)

    def _half_per_s(self, halves: list[TopicPartition]) -> float:
        time = Slice(self.facts.asked_at_ms - _RATE_S * MS_PER_S, None)
        spans = spans_between(self._cluster(), halves, time)
        return sum(span.end - span.start for span in spans.values()) / _RATE_S

    def _brokers(self) -> tuple[Mapping[int, str], Mapping[int, Mapping[str, str]]]:
        brokers = self.admin.ask_cluster(CALL_TIMEOUT_S).result().brokers
        asked = {
            broker: self.admin.ask_broker_settings(broker, CALL_TIMEOUT_S) for broker in brokers
        }
        answers = {broker: _settings_of(answer) for broker, answer in asked.items()}
        return brokers, {broker: settings for broker, settings in answers.items() if settings}

    def _daemon_lacks(self) -> tuple[Acl, ...]:
        daemon, _ = self.request.principals
        wanted = daemon_acls(self.config.names, daemon, real_topics=tuple(self.real))
        checks = [self.config.names.check(group) for group in self.groups]
        return lacking(self.admin, wanted, topics=self.facts.topics, prefixed=checks)

    def _client_lacks(self) -> tuple[Acl, ...]:
        _, client = self.request.principals
        admin = self.ports.kafka.admin(_common(self.config, self.request.client_kafka or {}))
        wanted = [
            acl
            for group in self.request.producer_groups
            for acl in producer_acls(self.config.names, group, client, real_topics=tuple(self.real))
        ]
        return lacking(admin, wanted, topics=self.facts.topics)

    def _transactional_refusal(self) -> str:
        writer = self.ports.kafka.transactional_writer(
            {
                **self.common,
                "transactional.id": f"{self.config.names.prefix}halfbridge-doctor",
                "transaction.timeout.ms": self.config.kafka_txn_timeout_ms,
            }
        )
        try:
            writer.init(min(CALL_TIMEOUT_S, self.request.timeout_s / 2))
        except KafkaFailure as failure:
            if failure.is_retriable or failure.code in {Code.TIMED_OUT, Code.TRANSPORT}:
                raise
            return failure.text
        return ""

    def _members(self, group: str) -> tuple[str, ...]:
        try:
            return tuple(self.admin.ask_members(group, CALL_TIMEOUT_S).result())
        except KafkaFailure as failure:
            if failure.code == Code.GROUP_ID_NOT_FOUND:
                return ()
            raise

    def _responders(self) -> dict[str, tuple[str, ...]]:
        return {group: self._members(self.config.names.check_group(group)) for group in self.groups}

    def _record(self) -> DaemonSettings | None:
        reader = self.ports.kafka.reader(
            {**self.common, "group.id": self.config.names.daemon_group, **READING}
        )
        try:
            said, _ = read_settings(
                reader,
                self.config.names.settings,
                stop=self.ports.run.event(),
                clock=self.ports.clock,
            )
        finally:
            self.ports.run.close_clients(reader)
        known = [each.settings for each in said if each.settings is not None]
        return known[-1] if known else None


def _delayed(
    cluster: Cluster, deferred: list[tuple[Entry, OpRead]], gone_ms: int
) -> tuple[Delayed, ...]:
    """Return the real topics of deferred transactions, the most awaited ones first."""
    by_topic: dict[str, list[OpRead]] = {}
    wanted = set()
    for entry, read in deferred:
        messages = [half.metadata for half in entry.messages.values()]
        wanted |= {needed(one.real_topic, one.real_partition, 0) for one in messages}
        for topic in {one.real_topic for one in messages}:
            by_topic.setdefault(topic, []).append(read)
    most = sorted(by_topic, key=lambda topic: -len(by_topic[topic]))[:REAL_TOPICS_MAX]
    lacks = lacks_of(cluster, [each for each in wanted if each.topic in most], gone_ms)
    found = []
    for topic in most:
        oldest = min(by_topic[topic], key=lambda read: read.append_ms)
        its = tuple(lack for lack in lacks if lack.topic == topic)
        one = Delayed(topic, len(by_topic[topic]), oldest.op.transaction_id, oldest.append_ms, its)
        found.append(one)
    return tuple(found)


def _filled(facts: Facts, questions: Questions) -> Facts:
    answer = questions.answer
    facts.silent = questions.silent
    facts.report = answer("topics and offsets", facts.report)
    facts.brokers, facts.broker_settings = answer("brokers", ({}, {}))
    facts.daemon_lacks = answer("rights of the daemon", ())
    facts.client_lacks = answer("rights of the client", ())
    facts.transactional_refusal = answer("transactional ids", "")
    facts.workers = answer("workers", None)
    facts.responders = answer("check responders", {})
    facts.stalls = answer("ends of logs", ())
    facts.away = answer("partitions", ())
    facts.delayed = answer("deferred deliveries", ())
    facts.damaged = answer("damaged records", {})
    facts.plain = answer("records of transaction topics", ())
    facts.clocks, facts.newest_ms, facts.not_believed = answer("half records", NewestHalves())
    facts.half_per_s = answer("rate of half messages", None)
    facts.record = answer("settings record", None)
    return facts


def _key_ring(config: CheckerConfig, facts: Facts) -> KeyRing | None:
    try:
        ring = load_signatures(config.key_file, Role.DAEMON, config.names).ring
    except ConfigError as error:
        facts.key_file_flaw = str(error)
        return None
    if ring is not None:
        facts.key_problems = tuple(key_problems(ring, facts.asked_at_ms))
    return ring


def _settings_of(answer: Answer[dict[str, str]]) -> dict[str, str]:
    try:
        return answer.result()
    except KafkaFailure as failure:
        if failure.code in NO_RIGHT:  # only doctor needs that right
            return {}
        raise


def _common(config: CheckerConfig, kafka: Mapping[str, str]) -> dict[str, object]:
    return {
        **kafka,
        "bootstrap.servers": config.bootstrap_servers,
        "allow.auto.create.topics": False,
        "log_level": 0,  # errors come back from the calls
    }


class Questions:
    """Asks questions in parallel, from now on for `timeout_s` together.

    Attributes:
        silent: Question -> why it was not answered.
    """

    def __init__(self, ports: Ports, timeout_s: float) -> None:
        self._ports = ports
        self._timeout_s = timeout_s
        self._deadline = ports.clock.monotonic() + timeout_s
        self._running: dict[str, Running] = {}
        self._answers: dict[str, object] = {}
        self.silent: dict[str, str] = {}

    def start(self, question: str, call: Callable[[], object]) -> None:
        """Start a question; `question` is its text."""
        run = partial(self._ask, question, call)
        self._running[question] = self._ports.run.start(run, "halfbridge-doctor")

    def wait(self) -> None:
        """Return when all are answered, or when time is up."""
        for question, running in self._running.items():
            running.join(max(0.0, self._deadline - self._ports.clock.monotonic()))
            if question not in self._answers and question not in self.silent:
                self.silent[question] = f"no answer within {self._timeout_s:g} s"

    def answer(self, question: str, default: T) -> T:
        """Return the answer, or `default` without one."""
        return cast("T", self._answers.get(question, default))

    def _ask(self, question: str, call: Callable[[], object]) -> None:
        try:
            self._answers[question] = call()
        except (BridgeError, KafkaFailure) as error:
            self.silent[question] = str(error)
