"""What the server reads for operators: metrics, producer groups, topics, faults, and the audit log.

Each answer is that of the command: `groups list|show`, `topics check`, `doctor`, `audit-log list`.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from halfbridge.checker.admin.doctor.facts import finding_body, host_facts
from halfbridge.checker.admin.doctor.gather import Request, gather
from halfbridge.checker.admin.doctor.judge import judge
from halfbridge.checker.admin.operator_log import ActionFilter, KeptAction, action_json, read
from halfbridge.checker.admin.shape import HALF_RETENTION_MS
from halfbridge.checker.admin.topics import (
    ListedTopic,
    Report,
    check_topics,
    list_topics,
    plan_layout,
)
from halfbridge.checker.admin.transactions import plain
from halfbridge.checker.admin.transactions.groups import Groups, read_groups
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.policy import load_policy
from halfbridge.kafka.adapter import system_ports
from halfbridge.web.api.routes import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    PAGING,
    Argument,
    Call,
    Route,
    page_of,
)
from halfbridge.web.guards import Refusal
from halfbridge.web.work import CachePolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.checker.admin.doctor.facts import Finding
    from halfbridge.web.services import Services


async def _workers(call: Call) -> dict[str, Any]:
    watch = call.services.watch
    found = watch.overview()
    return {
        "daemons": [_health(each) for each in watch.health],
        "workers": []
        if found is None
        else [{"worker": name, "up": up} for name, up in sorted(found.now.workers.items())],
    }


async def _overview(call: Call) -> dict[str, Any]:
    """Return the overview; numbers that are not known are null."""
    watch = call.services.watch
    found = watch.overview()
    if found is None:
        return {"read": False, "daemons": []}
    now = found.now
    return {
        "read": True,
        "per_second": dict(found.rates),
        "latency_s": {f"p{share * 100:g}": _finite(s) for share, s in found.latency_s.items()},
        "undecided_messages": now.totals["undecided"],
        "oldest_undecided_s": now.oldest_s,
        "partitions_stopped": now.totals["stopped"],
        "partitions_waiting": now.totals["waiting"],
        "retention_left_s": _finite(now.retention_s),
        "lag": [
            {"partition": partition, "offset": letter, "records": records}
            for (partition, letter), records in sorted(now.lags.items())
        ],
        "daemons": [_health(each) for each in watch.health],
    }


def _health(each: Any) -> dict[str, Any]:
    return {**asdict(each), "partition_errors": dict(each.partition_errors)}


def _finite(value: float | None) -> float | None:
    """Return a number as JSON can have it: infinity is null."""
    return None if value is None or math.isinf(value) else value


# Groups change seldom, and their reading takes the ops of ten minutes: longer than KEEPS of the
# transactions. Longer shows members later that came or went.
GROUPS_KEPT = CachePolicy(fresh_s=5.0, old_s=120.0)
SINCE = Argument(
    "since_s",
    int,
    "Count ops of the last so many seconds.",
    default=600,
    minimum=1,
    maximum=30 * 86_400,
)


def read_groups_of(services: Services, values: Mapping[str, Any], *, only: str = "") -> Groups:
    """Return the producer groups that were seen, those with the most undecided first."""
    cluster = services.cluster()
    since_ms = max(0, cluster.ports.clock.time_ms() - values["since_s"] * 1000)
    return read_groups(cluster, services.config.names, since_ms=since_ms, only=only)


async def _groups(call: Call) -> dict[str, Any]:
    body = plain.groups(await call.read(read_groups_of))
    body["groups"], paging = page_of(body["groups"], call.values)
    return {**body, **paging}


async def _group(call: Call) -> dict[str, Any]:
    found = await call.read(partial(read_groups_of, only=call.values["name"]))
    if not found.groups:
        raise Refusal(404, "no such producer group was seen")
    return plain.group(found.groups[0])


# Topics change least, and each is asked for its settings: twice as long as groups. Longer shows a
# correction later.
TOPICS_KEPT = CachePolicy(fresh_s=10.0, old_s=300.0)


class TopicsFound(NamedTuple):
    """The installation's topics, and the report of `topics check`."""

    report: Report
    topics: tuple[ListedTopic, ...]


def find_topics(services: Services) -> TopicsFound:
    """Return the installation's topics, and every problem of topics and offsets."""
    cluster, names = services.cluster(), services.config.names
    layout = plan_layout(
        cluster,
        producer_groups=tuple(names.groups_of(cluster.topics())),
        retention_ms=HALF_RETENTION_MS,
    )
    report = check_topics(cluster, names, layout)
    return TopicsFound(report, list_topics(cluster, names, report.problems))


async def _topics(call: Call) -> dict[str, Any]:
    kept = await call.kept("topics", find_topics, TOPICS_KEPT)
    report = kept.value.report
    listed = [asdict(each) for each in kept.value.topics]
    return {"ok": report.ok, **asdict(report), "topics": listed, "age_s": kept.age_s}


# A dozen questions to each broker, for up to QUESTIONS_S_MAX: not with each view of the page.
# Longer shows a correction later. Ten minutes: an old finding with its age is better
# than an empty page.
FINDINGS_KEPT = CachePolicy(fresh_s=30.0, old_s=600.0)
QUESTIONS_S_MAX = 20.0  # within the CALL_S_MAX of a request
_OF_A_DAEMON = frozenset(("settings-differ", "memory", "open-files"))


def find_faults(services: Services) -> tuple[Finding, ...]:
    """Return all findings of this process, errors first.

    Findings about a daemon's own settings and machine are left out: this process has neither. The
    rights that are tried are those of this process's principal.
    """
    given = services.config
    config = CheckerConfig(
        bootstrap_servers=given.bootstrap_servers,
        topic_prefix=given.topic_prefix,
        kafka=given.kafka,
    )
    facts = gather(
        config,
        load_policy(None, names=config.names),
        Request(timeout_s=QUESTIONS_S_MAX),
        host=host_facts(),
        ports=services.ports or system_ports(),
    )
    return tuple(each for each in judge(facts, config) if each.code not in _OF_A_DAEMON)


async def _doctor(call: Call) -> dict[str, Any]:
    kept = await call.kept("doctor", find_faults, FINDINGS_KEPT)
    return {**finding_body(kept.value), "age_s": kept.age_s}


# An operator wants to see the action just made: 2 s only spares brokers from reloads. An old list
# misleads more here than elsewhere, so it is shown for a minute at most.
ACTIONS_KEPT = CachePolicy(fresh_s=2.0, old_s=60.0)
ACTION_ARGUMENTS = (
    Argument("action", str, "Such as `tx commit`, or `tx` for all of tx.", default=""),
    Argument("actor", str, "Who acted.", default=""),
    Argument("subject", str, "Such as a transaction id.", default=""),
    Argument(
        "limit", int, "The newest so many.", default=LIMIT_DEFAULT, minimum=1, maximum=LIMIT_MAX
    ),
)


def find_actions(services: Services, values: Mapping[str, Any]) -> list[KeptAction]:
    """Return the newest records of the audit topic that are asked for, the newest first."""
    wanted = ActionFilter(
        action=values["action"],
        who=values["actor"],
        subject=values["subject"],
        limit=values["limit"],
    )
    return read(services.cluster(), services.config.names, wanted)[::-1]


async def _audit_log(call: Call) -> dict[str, Any]:
    return {"actions": [action_json(each) for each in await call.read(find_actions)]}


ROUTES = (
    Route(path="/overview", summary="Rates, latency, lag and health.", answer=_overview),
    Route(
        path="/workers", summary="Daemons and workers, and whether they are up.", answer=_workers
    ),
    Route(
        path="/groups",
        summary="Producer groups: who answers checks, and what is undecided.",
        answer=_groups,
        query=(SINCE, *PAGING),
    ),
    Route(path="/groups/{name}", summary="One producer group.", answer=_group, query=(SINCE,)),
    Route(
        path="/topics",
        summary="The installation's topics; problems of topics and offsets, each with a fix.",
        answer=_topics,
    ),
    Route(
        path="/doctor",
        summary="What is wrong with the installation, each with a command that mends it.",
        answer=_doctor,
    ),
    Route(
        path="/audit-log",
        summary="What operators did, the newest first.",
        answer=_audit_log,
        query=ACTION_ARGUMENTS,
    ),
)
