"""Reads check requests, their answers, the daemon's limits, and the members of a producer group."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.admin.transactions.logs import (
    Scan,
    Span,
    after,
    edges,
    headers_or_none,
    offsets_at,
)
from halfbridge.checker.admin.transactions.waits import (
    CHECK_BACKOFF_MS_MAX,
    TOPIC_GONE_MS,
    CheckRequests,
    Limits,
    WaitContext,
)
from halfbridge.checker.errors import AdminError
from halfbridge.kafka.ports import Edge
from halfbridge.serde.avro import CHECK_REQUEST
from halfbridge.serde.delivery import DELIVERY_LIMIT, Delivery
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import CHECK
from halfbridge.serde.records import DaemonSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.read import Key
    from halfbridge.kafka.ports import StoredRecord, TopicPartition
    from halfbridge.serde.records import CheckRequest, Op
    from halfbridge.serde.topics import TopicNames

# Groups whose members are asked for and whose check topics are read, by one command: the group
# names of half records are any text, and each group costs a question to a broker.
GROUPS_MAX = 100
# Requests read by one `tx list`, the newest ones of each partition: a second's reading.
REQUESTS_MAX = 100_000
# Longest RMQ_CHECK that is decoded. One with two names of 249 characters takes 700 bytes, one with
# the longest id and group that a half record may name 3,500.
REQUEST_BYTES_MAX = 8_192


class Request(NamedTuple):
    """A check request and its position."""

    request: CheckRequest
    topic: str
    partition: int
    offset: int


def daemon_limits(cluster: Cluster, names: TopicNames) -> Limits:
    """Return the daemon's limits as its settings record says; the defaults where there is none."""
    said: DaemonSettings | None = None
    # Brokers that do not answer at all are an error here: the record would be waited for in vain.
    cluster.broker_count()
    with suppress(AdminError):
        records = cluster.settings(names).said
        said = next((each.settings for each in reversed(records) if each.settings), None)
    settings = said or DaemonSettings()
    backoff_ms = settings.further.get("check_backoff_ms_max", CHECK_BACKOFF_MS_MAX)
    return Limits(
        transaction_timeout_ms=settings.transaction_timeout_ms,
        check_interval_ms=settings.check_interval_ms,
        check_count_max=settings.check_count_max,
        transaction_age_ms_max=settings.transaction_age_ms_max,
        check_backoff_ms_max=max(backoff_ms, settings.check_interval_ms),
        topic_gone_ms=settings.further.get("topic_gone_ms", TOPIC_GONE_MS),
        delivery=Delivery.of_number(settings.further.get(DELIVERY_LIMIT)),
    )


def members_of(cluster: Cluster, groups: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the live members of consumer groups; groups that cannot be seen are left out."""
    found = {}
    for group in groups:
        with suppress(AdminError):
            found[group] = tuple(cluster.live_members(group))
    return found


def requests(
    cluster: Cluster,
    places: Collection[TopicPartition],
    *,
    since_ms: int,
    records_max: int,
    is_wanted: Callable[[bytes], bool] = lambda _value: True,
) -> Iterator[Request]:
    """Yield the readable check requests of some partitions, the newest `records_max` at most.

    Only requests whose bytes of RMQ_CHECK `is_wanted` accepts are decoded.
    """
    starts = edges(cluster, places, Edge.START)
    ends = edges(cluster, places, Edge.STABLE_END)
    begin = offsets_at(cluster, dict.fromkeys(places, since_ms))
    share = max(1, records_max // max(1, len(places)))
    spans = {}
    for place in places:
        first, end = begin[place], ends[place]
        if first is not None:
            spans[place] = Span(max(starts[place], first, end - share), end)
    for batch in Scan(cluster, spans).batches():
        for record in batch:
            request = _request_in(record, is_wanted)
            if request is not None:
                yield Request(
                    request, record.topic(), record.partition() or 0, record.offset() or 0
                )


def asked_by_transaction(found: Iterable[Request]) -> dict[Key, CheckRequests]:
    """Return the requests about each transaction: how many, and the newest one.

    Requests about one transaction are in several partitions. The newest one is the one that was
    sent last, by the daemon's partition time.
    """
    asked: dict[Key, CheckRequests] = {}
    for each in found:
        request = each.request
        key = request.transaction_id, request.resume_count, request.producer_group
        before = asked.get(key)
        if before is None:
            asked[key] = CheckRequests(1, request)
        else:
            last = max(before.last, request, key=_order)
            asked[key] = CheckRequests(before.requests + 1, last)
    return asked


def check_places(names: TopicNames, group: str, counts: Mapping[str, int]) -> list[TopicPartition]:
    """Return the partitions of a group's check topic; none where there is no such topic."""
    topic = names.check(group)
    return [(topic, number) for number in range(counts.get(topic, 0))]


def _order(request: CheckRequest) -> tuple[int, int]:
    return request.sent_timestamp, request.attempt


def _request_in(record: StoredRecord, is_wanted: Callable[[bytes], bool]) -> CheckRequest | None:
    for name, value in reversed(headers_or_none(record)):
        if name == CHECK and value is not None and len(value) <= REQUEST_BYTES_MAX:
            if not is_wanted(value):
                return None
            with suppress(DecodeError):
                return CHECK_REQUEST.decode(value)
            return None
    return None


# Check requests of a group that are read for one transaction, the newest ones: some five seconds'
# reading (REQUESTS_MAX).
SEARCHED_REQUESTS_MAX = 500_000


class CheckHistory(NamedTuple):
    """Finds the check requests of a transaction, and their answers."""

    cluster: Cluster
    names: TopicNames
    key: Key
    limits: Limits
    counts: Mapping[str, int]

    def requests(self, begun_ms: int, decided_ms: int | None) -> list[Request]:
        """Return the requests that can still be read; without `decided_ms` it is undecided."""
        places = check_places(self.names, self.key[2], self.counts)
        due_ms = begun_ms + self.limits.transaction_timeout_ms
        if not places or (decided_ms is not None and decided_ms < after(due_ms)):
            return []  # it was decided before its first check was due
        needle = self.key[0].encode("utf-8", "surrogatepass")
        found = requests(
            self.cluster,
            places,
            since_ms=after(begun_ms),
            records_max=SEARCHED_REQUESTS_MAX,
            is_wanted=lambda value: needle in value,
        )
        return [each for each in found if each.request.transaction_id == self.key[0]]

    def world(self, requests: Sequence[Request], ops: Sequence[Op]) -> WaitContext:
        """Return the facts by which the transaction's wait is explained."""
        names, group = self.names, self.key[2]
        members = members_of(self.cluster, [names.daemon_group, names.check_group(group)])
        answers = [
            op for op in ops if (op.transaction_id, op.resume_count, op.producer_group) == self.key
        ]
        workers, answering = members.get(names.daemon_group), members.get(names.check_group(group))
        return WaitContext(
            now_ms=self.cluster.ports.clock.time_ms(),
            limits=self.limits,
            workers=None if workers is None else len(workers),
            check_topics=frozenset([group] if names.check(group) in self.counts else []),
            members={} if answering is None else {group: len(answering)},
            asked=asked_by_transaction(requests),
            answers={self.key: answers[-1]} if answers else {},
        )
