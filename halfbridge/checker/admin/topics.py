"""Creates and checks the topics of an installation: `topics create` and `topics check`.

Existing topics are never altered here: differences are reported with the command that removes them.
`topics create NAME --type` also creates a real topic and writes its type to the settings topic.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.admin.real_topics import real_topic_problems
from halfbridge.checker.admin.shape import (
    Layout,
    Problem,
    TopicShape,
    alter_command,
    find_problems,
    wanted_topics,
)
from halfbridge.checker.core.rebuild import check_against_log
from halfbridge.checker.errors import AdminError, AdminRequestError, AdminSetupError
from halfbridge.serde.progress import START, ProgressError, parse_progress
from halfbridge.serde.records import ActionOutcome
from halfbridge.serde.settings_topic import TopicType, TopicTypeRecord, encode_type, type_key
from halfbridge.serde.topics import PAIRS, SAFE_REPLICAS
from halfbridge.serde.units import MS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from halfbridge.checker.admin.appending import Appender
    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.operator_log import OperatorLog
    from halfbridge.checker.admin.read import CommittedOffset
    from halfbridge.checker.admin.shape import SeenTopic
    from halfbridge.serde.topics import TopicNames


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a command."""

    created: tuple[str, ...] = ()
    grown: tuple[str, ...] = ()  # topics that got more partitions
    initialised: tuple[int, ...] = ()  # partitions that got their first offsets
    problems: tuple[Problem, ...] = ()
    # Seconds until retention deletes the first record that is needed, of all partitions; None:
    # nothing is needed, or kept for ever.
    retention_left_s: float | None = None

    @property
    def ok(self) -> bool:
        """Tell whether nothing that blocks is left."""
        return not any(problem.blocking for problem in self.problems)


def plan_layout(
    cluster: Cluster,
    *,
    partitions: int | None = None,
    replication_factor: int | None = None,
    producer_groups: tuple[str, ...],
    retention_ms: int,
    spark_sink: bool = False,
) -> Layout:
    """Return the layout; where nothing is given, as replicated as the cluster can, up to 3."""
    return Layout(
        partitions=PAIRS if partitions is None else partitions,
        replication_factor=replication_factor or min(SAFE_REPLICAS, cluster.broker_count()),
        producer_groups=producer_groups,
        retention_ms=retention_ms,
        spark_sink=spark_sink,
    )


def create_topics(
    cluster: Cluster, names: TopicNames, layout: Layout, *, grow: bool = False
) -> Report:
    """Create the missing topics and first offsets; return these and the differences.

    Running it twice does nothing more. An existing topic is never altered, except that `grow`
    brings op and half topic to `layout.partitions`, the op topic first, while the daemon is
    stopped.
    """
    layout = _with_limit_of_half_topic(cluster, names, layout)
    shapes = wanted_topics(names, layout)
    before = cluster.describe(shape.name for shape in shapes)
    grown = _grow(cluster, names, layout) if grow else ()
    created = tuple(
        shape.name
        for shape in (_with_partitions_of_twin(shape, cluster, names) for shape in shapes)
        if shape.name not in before
        and cluster.create(shape, replication_factor=layout.replication_factor)
    )
    initialised = _commit_first_offsets(cluster, names)
    return Report(
        created=created,
        grown=grown,
        initialised=initialised,
        problems=check_topics(cluster, names, layout).problems,
    )


def check_topics(
    cluster: Cluster,
    names: TopicNames,
    layout: Layout,
    *,
    is_real: Callable[[str], bool] = lambda _topic: False,
) -> Report:
    """Return every problem of topics and offsets; change nothing.

    Check topics of other producer groups than the layout's are checked too, and the size limits of
    topics of which `is_real` says that transactions deliver to them.
    """
    known = cluster.topics()
    groups = dict.fromkeys((*layout.producer_groups, *names.groups_of(known)))
    layout = _with_limit_of_half_topic(
        cluster, names, replace(layout, producer_groups=tuple(groups))
    )
    shapes = wanted_topics(names, layout)
    real = [topic for topic in known if not names.is_internal(topic) and is_real(topic)]
    seen = cluster.describe((*(shape.name for shape in shapes), *real))
    servers = cluster.bootstrap_servers
    needed = [
        (topic, number, offset.offset)
        for number, half, op in _offsets(cluster, names)
        for topic, offset in ((names.half, half), (names.op, op))
    ]
    now_ms = int(datetime.now(timezone.utc).timestamp() * 1000)  # of this machine
    left_s = retention_left_s(cluster, seen, needed, now_ms=now_ms)
    return Report(
        retention_left_s=min(left_s.values(), default=None),
        problems=(
            *find_problems(shapes, seen, names=names, bootstrap_servers=servers),
            *real_topic_problems(seen, real, names=names, bootstrap_servers=servers),
            *_offset_problems(cluster, names),
            *retention_problems(left_s, seen, bootstrap_servers=servers),
        ),
    )


def common_partitions(cluster: Cluster, names: TopicNames) -> int:
    """Return how many partitions half and op topic both have."""
    return min(cluster.partition_count(names.half), cluster.partition_count(names.op))


def _with_limit_of_half_topic(cluster: Cluster, names: TopicNames, layout: Layout) -> Layout:
    """Return `layout` with topics of copies that take every record of the half topic."""
    half = cluster.describe((names.half,)).get(names.half)
    limit = "" if half is None else half.settings.get("max.message.bytes", "")
    if not limit.isdecimal():
        return layout
    return replace(layout, max_message_bytes=max(layout.max_message_bytes, int(limit)))


def _with_partitions_of_twin(shape: TopicShape, cluster: Cluster, names: TopicNames) -> TopicShape:
    """Return `shape` with as many partitions as its twin has, if that one exists already."""
    twin = {names.half: names.op, names.op: names.half}.get(shape.name)
    there = cluster.partition_count(twin) if twin else 0
    return TopicShape(shape.name, there, shape.settings) if there else shape


def _grow(cluster: Cluster, names: TopicNames, layout: Layout) -> tuple[str, ...]:
    counts = {topic: cluster.partition_count(topic) for topic in (names.op, names.half)}
    short = [topic for topic, count in counts.items() if 0 < count < layout.partitions]
    if not short:
        return ()
    members = cluster.live_members(names.daemon_group)
    if members:
        raise AdminSetupError(
            "partitions can only be added while the daemon is stopped, since a worker would stop"
            f" at partitions without offsets; running: {', '.join(members)}. Stop it, run this"
            " again, then restart daemon and producers"
        )
    for topic in short:  # the op topic is first
        cluster.grow(topic, partitions=layout.partitions)
    return tuple(short)


def _commit_first_offsets(cluster: Cluster, names: TopicNames) -> tuple[int, ...]:
    """Commit the start for every pair that was never used and has no offsets; return which."""
    new = [
        number
        for number, half, op in _offsets(cluster, names)
        if half.offset < 0 and op.offset < 0 and _is_unused(cluster, names, number)
    ]
    if new:
        members = cluster.live_members(names.daemon_group)
        if members:
            raise AdminSetupError(
                "the daemon was started before its topics were there, and first offsets can only"
                f" be committed without it; running: {', '.join(members)}. Stop it, run this again,"
                " then start it"
            )
        offsets = {(names.half, number): (START.half, "") for number in new}
        offsets.update({(names.op, number): (START.op, START.metadata()) for number in new})
        cluster.commit(names.daemon_group, offsets)
    return tuple(new)


def _is_unused(cluster: Cluster, names: TopicNames, number: int) -> bool:
    # Without any op nothing can have been delivered, so that starting at 0 delivers nothing
    # twice. With one, missing offsets mean that something went wrong.
    return cluster.watermarks(names.op, number) == (0, 0) and (
        cluster.watermarks(names.half, number)[0] == 0
    )


def _offsets(
    cluster: Cluster, names: TopicNames
) -> list[tuple[int, CommittedOffset, CommittedOffset]]:
    count = common_partitions(cluster, names)
    if not count:
        return []
    found = cluster.committed(
        names.daemon_group,
        [(topic, number) for number in range(count) for topic in (names.half, names.op)],
    )
    return [(number, found[names.half, number], found[names.op, number]) for number in range(count)]


def _offset_problems(cluster: Cluster, names: TopicNames) -> list[Problem]:
    problems = []
    for number, half, op in _offsets(cluster, names):
        where = names.options(cluster.bootstrap_servers)
        fix = f"halfbridge checker init --partition {number} {where}"
        if half.offset < 0 and op.offset < 0 and _is_unused(cluster, names, number):
            fix = f"halfbridge topics create {where}"
        try:
            progress = parse_progress(half.offset, op.offset, op.metadata)
            check_against_log(
                progress,
                cluster.watermarks(names.half, number),
                cluster.watermarks(names.op, number),
            )
        except ProgressError as error:
            problems.append(Problem(f"partition {number}", str(error), fix, code="offsets"))
    return problems


# Less than this is a problem: somebody has to notice, and to act.
LEFT_S_MIN = 24 * 3600.0


def retention_left_s(
    cluster: Cluster,
    seen: Mapping[str, SeenTopic],
    needed: Iterable[tuple[str, int, int]],
    *,
    now_ms: int,
) -> dict[tuple[str, int], float]:
    """Return (topic, partition) -> seconds until the first record that is needed is deleted.

    `needed` are topics, partitions and committed offsets. Kafka deletes whole segments: it may come
    later, and never sooner. Left out are partitions of which nothing is needed, whose topic keeps
    everything, or whose record cannot be read.
    """
    left_s = {}
    for topic, partition, offset in needed:
        kept_ms = seen[topic].settings.get("retention.ms", "") if topic in seen else ""
        if offset < 0 or not kept_ms.isdecimal():  # -1: for ever
            continue
        append_ms = _append_ms_at(cluster, topic, partition, offset)
        if append_ms >= 0:
            left_s[topic, partition] = (append_ms + int(kept_ms) - now_ms) / MS_PER_S
    return left_s


def retention_problems(
    left_s: Mapping[tuple[str, int], float],
    seen: Mapping[str, SeenTopic],
    *,
    bootstrap_servers: str,
) -> list[Problem]:
    """Return where less than a day is left; to keep everything for now gains the time to act."""
    problems = []
    for (topic, partition), seconds in left_s.items():
        if seconds < LEFT_S_MIN:
            kept_ms = seen[topic].settings["retention.ms"]
            what = (
                f"the oldest record that is needed is deleted in {seconds / 3600:.1f} hours"
                f" (retention.ms is {kept_ms}): find out who does not decide, and keep all for now"
            )
            fix = alter_command(topic, "retention.ms", "-1", bootstrap_servers=bootstrap_servers)
            where = f"{topic} {partition}"
            problems.append(
                Problem(where, what, fix, setting="retention.ms", code="retention-ends")
            )
    return problems


def _append_ms_at(cluster: Cluster, topic: str, partition: int, offset: int) -> int:
    """Return the append time of the first record at or above `offset`; -1 without one."""
    try:
        _, end = cluster.watermarks(topic, partition)
        with closing(cluster.read(topic, partition, start=offset, end=end)) as reading:
            return next((record.append_ms for record in reading), -1)
    except AdminError:  # no right to read, say: there is no line about it then
        return -1


REAL_TOPICS_MAX = 500  # a page is read by a person


@dataclass(frozen=True, slots=True)
class ListedTopic:
    """One topic."""

    name: str
    # The records in it: "half", "op", "dead letters", "check", "settings", "audit" or "manifests";
    # for a real topic its type, "transaction" or "plain".
    use: str
    partitions: int
    retention_ms: int | None  # -1: for ever; None: the brokers do not report it
    is_compacted: bool
    problems: int  # how many problems are about this topic or a partition of it


def list_topics(
    cluster: Cluster, names: TopicNames, problems: Sequence[Problem]
) -> tuple[ListedTopic, ...]:
    """Return the installation's topics that exist: internal ones, then real ones by name.

    At most `REAL_TOPICS_MAX` real topics are listed. A real topic without a type is not among them:
    nothing says which installation writes there.
    """
    uses = _uses(cluster, names)
    seen = cluster.describe(uses)
    about = [problem.subject.split()[0] for problem in problems]
    return tuple(
        ListedTopic(
            name,
            use,
            seen[name].partitions,
            _retention_ms(seen[name].settings.get("retention.ms", "")),
            "compact" in seen[name].settings.get("cleanup.policy", ""),
            about.count(name),
        )
        for name, use in uses.items()
        if name in seen
    )


def _uses(cluster: Cluster, names: TopicNames) -> dict[str, str]:
    known = cluster.topics()
    internal = {
        names.half: "half",
        names.op: "op",
        names.dead: "dead letters",
        names.settings: "settings",
        names.audit: "audit",
        names.manifest: "manifests",
        **{names.check(group): "check" for group in names.groups_of(known)},
    }
    types = types_of(cluster, names) if names.settings in known else {}
    real = sorted(types)[:REAL_TOPICS_MAX]
    return internal | {topic: types[topic].value.lower() for topic in real}


def _retention_ms(text: str) -> int | None:
    return int(text) if text.removeprefix("-").isdecimal() else None


_PARTITION = 0  # the only one of the settings topic


class RealTopic(NamedTuple):
    """A real topic that is wanted; one that exists keeps its partitions and replicas."""

    name: str
    type: TopicType
    partitions: int
    replicas: int


class Typed(NamedTuple):
    """Whether a real topic is new, and its type until now; None: it had none."""

    is_new: bool
    before: TopicType | None


def create_real_topic(
    cluster: Cluster, names: TopicNames, log: OperatorLog, appender: Appender, wanted: RealTopic
) -> Typed:
    """Create the topic unless it exists, and write its type to the settings topic.

    Repeating it is harmless: the last record of a topic holds.

    Raises:
        AdminRequestError: the name is internal; the operator chooses another one.
        AdminSetupError: the brokers do not answer; the operator runs the command again.
    """
    if names.is_internal(wanted.name):
        raise AdminRequestError(
            f"{wanted.name} is an internal name, which no real topic may have",
            topics=(wanted.name,),
        )
    cluster.require(names, names.settings, "from which clients read types")
    type_before = types_of(cluster, names).get(wanted.name)
    there = "there" if cluster.partition_count(wanted.name) else "not there"
    before = f"{there}, {'no type' if type_before is None else type_before.value}"
    intended = log.record(
        "topics create", wanted.name, why="", before=before, after=wanted.type.value
    )
    with log.recording_failure(intended):
        shape = TopicShape(wanted.name, wanted.partitions, ())
        is_new = cluster.create(shape, replication_factor=wanted.replicas)
        record = TopicTypeRecord(wanted.type, intended.at_ms, log.who)
        place = (names.settings, _PARTITION)
        appender.append(place, encode_type(record), type_key(wanted.name))
    log.conclude(intended, ActionOutcome.DONE, after=wanted.type.value)
    return Typed(is_new, type_before)


def types_of(cluster: Cluster, names: TopicNames) -> dict[str, TopicType]:
    """Return the types that clients go by; a record that cannot be read says no type."""
    types = cluster.settings(names).types
    return {topic: each for topic, each in types.items() if each is not None}
