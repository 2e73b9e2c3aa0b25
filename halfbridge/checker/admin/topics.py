"""`topics create` and `topics check`: make what is missing, report what differs, alter nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from halfbridge.checker.admin.real_topics import real_topic_problems
from halfbridge.checker.admin.retention import retention_left_s, retention_problems
from halfbridge.checker.admin.shape import (
    Layout,
    Problem,
    TopicShape,
    find_problems,
    wanted_topics,
)
from halfbridge.checker.core.rebuild import check_against_log
from halfbridge.checker.errors import AdminError
from halfbridge.serde.progress import START, ProgressError, parse_progress
from halfbridge.serde.topic_shapes import SAFE_REPLICAS

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.read import CommittedOffset
    from halfbridge.serde.topics import TopicNames

PARTITIONS = 4  # pairs: as many workers as may share the load without a change


def _none(_topic: str) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a command did and found.

    Attributes:
        created: Topics made.
        grown: Topics that got more partitions.
        initialised: Partitions that got their first offsets.
        problems: What is left to an operator.
        retention_left_s: Seconds until retention deletes the first record that is needed, of all
            partitions; None: nothing is needed, or kept for ever.
    """

    created: tuple[str, ...] = ()
    grown: tuple[str, ...] = ()
    initialised: tuple[int, ...] = ()
    problems: tuple[Problem, ...] = ()
    retention_left_s: float | None = None

    @property
    def ok(self) -> bool:
        """Tell whether nothing that blocks is left."""
        return not any(problem.blocking for problem in self.problems)


def plan_layout(
    cluster: Cluster,
    *,
    partitions: int | None,
    replication_factor: int | None,
    producer_groups: tuple[str, ...],
    retention_ms: int,
    spark_sink: bool = False,
) -> Layout:
    """Return the layout; where nothing is given, as replicated as the cluster can, up to 3."""
    return Layout(
        partitions=PARTITIONS if partitions is None else partitions,
        replication_factor=replication_factor or min(SAFE_REPLICAS, cluster.broker_count()),
        producer_groups=producer_groups,
        retention_ms=retention_ms,
        spark_sink=spark_sink,
    )


def create_topics(
    cluster: Cluster, names: TopicNames, layout: Layout, *, grow: bool = False
) -> Report:
    """Make the missing topics and first offsets; return what was done and what differs.

    Running it twice does nothing more. An existing topic is never altered, but for `grow`.

    Args:
        cluster: Where.
        names: Of this installation.
        layout: What is wanted.
        grow: Bring op and half topic to `layout.partitions`, the op topic first.

    Raises:
        AdminError: something could not be made, or the daemon runs while growing; the operator
            acts, and runs the command again.
    """
    layout = _beside_what_is_there(cluster, names, layout)
    shapes = wanted_topics(names, layout)
    before = cluster.describe(shape.name for shape in shapes)
    grown = _grow(cluster, names, layout) if grow else ()
    created = tuple(
        shape.name
        for shape in (_beside_its_twin(shape, cluster, names) for shape in shapes)
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
    cluster: Cluster, names: TopicNames, layout: Layout, *, is_real: Callable[[str], bool] = _none
) -> Report:
    """Return every problem of topics and offsets; change nothing.

    Args:
        cluster: Where.
        names: Of this installation.
        layout: What is wanted; check topics of other producer groups are looked at too.
        is_real: Whether transactions deliver to a topic: its limit of sizes is looked at.
    """
    known = cluster.topics()
    groups = dict.fromkeys((*layout.producer_groups, *names.groups_of(known)))
    layout = _beside_what_is_there(cluster, names, replace(layout, producer_groups=tuple(groups)))
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


def _beside_what_is_there(cluster: Cluster, names: TopicNames, layout: Layout) -> Layout:
    """Return `layout` with room, in what holds copies, for what the half topic takes."""
    half = cluster.describe((names.half,)).get(names.half)
    limit = "" if half is None else half.settings.get("max.message.bytes", "")
    if not limit.isdecimal():
        return layout
    return replace(layout, max_message_bytes=max(layout.max_message_bytes, int(limit)))


def _beside_its_twin(shape: TopicShape, cluster: Cluster, names: TopicNames) -> TopicShape:
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
        raise AdminError(
            "partitions can only be added while the daemon is stopped, since a worker would stop"
            f" at partitions without offsets; running: {', '.join(members)}. Stop it, run this"
            " again, then restart daemon and producers"
        )
    for topic in short:  # the op topic stands first
        cluster.grow(topic, partitions=layout.partitions)
    return tuple(short)


def _commit_first_offsets(cluster: Cluster, names: TopicNames) -> tuple[int, ...]:
    """Commit the start for every pair that was never used and has no offsets; return which.

    Raises:
        AdminError: a daemon runs, and its group takes offsets from nobody else; the operator stops
            the daemon first.
    """
    new = [
        number
        for number, half, op in _offsets(cluster, names)
        if half.offset < 0 and op.offset < 0 and _is_unused(cluster, names, number)
    ]
    if new:
        members = cluster.live_members(names.daemon_group)
        if members:
            raise AdminError(
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
        prefix = f" --topic-prefix {names.prefix}" if names.prefix else ""
        where = f"--bootstrap-servers {cluster.bootstrap_servers}{prefix}"
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
