"""Reads a bounded part of the logs for doctor.

It finds the record where an open kafka_txn begins, other writers in transaction topics, the offsets
of clients' clocks, and unsigned records where signatures are demanded.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, cast

from halfbridge.checker.admin.doctor.facts import BornClock, NotBelieved, PlainRecords, Stall
from halfbridge.checker.admin.words import shown_time
from halfbridge.checker.core.events import append_ms_of
from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.kafka.ports import Edge
from halfbridge.serde.avro import OP
from halfbridge.serde.errors import DecodeError, NotBelievedError
from halfbridge.serde.headers import TRANSACTION_ID, headers_of, parse_half
from halfbridge.serde.signatures import Verifier, role_of_half
from halfbridge.serde.signing_keys import ANY_GROUP, MARGIN_MS, Role

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from halfbridge.kafka.ports import Admin, Ports, Reader, StoredRecord, TopicPartition
    from halfbridge.serde.records import HalfMetadata
    from halfbridge.serde.signing_keys import KeyRing, SigningKey
    from halfbridge.serde.topics import TopicNames

# Pause between two reads of the last stable offsets: a loaded worker's kafka_txns take far less.
STILL_S = 2.0
# Partitions whose ends are asked for; stalled partitions, and partitions of TRANSACTION topics,
# whose records are read, which takes a fetch or more each within READ_S. More would be judged in
# part and take longer than a person waits; fewer miss findings on large installations.
PLACES_MAX = 1_000
STALLS_MAX = 20
PLAIN_PLACES_MAX = 64


def open_txns(
    places: Sequence[TopicPartition], ports: Ports, common: Mapping[str, object]
) -> tuple[Stall, ...]:
    """Return the partitions whose last stable offset is below the end, and stays there.

    Kafka does not tell a client which producer holds it (only `kafka-transactions.sh` asks that);
    the first record of the kafka_txn says since when, and of which transaction it is.
    """
    admin = ports.kafka.admin(common)
    asked = places[:PLACES_MAX]
    before = _held(admin, asked)
    if not before:
        return ()
    ports.run.pause(STILL_S)
    after = _held(admin, list(before))
    still = [place for place, offset in before.items() if after.get(place) == offset]
    with reading(ports, common) as reader:
        return tuple(_stall(reader, place, before[place], ports) for place in still[:STALLS_MAX])


def plain_records(
    places: Sequence[TopicPartition], ports: Ports, common: Mapping[str, object]
) -> tuple[PlainRecords, ...]:
    """Return the topics in which newest records were not written by the daemon."""
    admin = ports.kafka.admin(common)
    asked = places[:PLAIN_PLACES_MAX]
    starts = newest_starts(admin, asked)
    found: dict[str, PlainRecords] = {}
    with reading(ports, common) as reader:
        for record in records_of(reader, starts, ports):
            if TRANSACTION_ID in dict(headers_of(record) or ()):
                continue
            before = found.get(record.topic())
            count = 1 if before is None else before.records + 1
            place = (record.topic(), record.partition(), record.offset())
            found[record.topic()] = PlainRecords(*place, count)
    return tuple(found.values())


def _held(admin: Admin, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the last stable offset of partitions in which it is below the end."""
    stable = ends_of(admin, places, Edge.STABLE_END)
    ends = ends_of(admin, places, Edge.END)
    return {place: offset for place, offset in stable.items() if offset < ends[place]}


def _stall(reader: Reader, place: TopicPartition, offset: int, ports: Ports) -> Stall:
    record = next(records_of(reader, {place: offset}, ports), None)
    if record is None:
        return Stall(*place, offset, -1, "")
    _, time_ms = record.timestamp()
    return Stall(*place, offset, time_ms, _transaction_id(record))


def _transaction_id(record: StoredRecord) -> str:
    """Return the transaction that a record of the daemon's kafka_txn is about; empty for none."""
    half = half_of(record)
    if half is not None:
        return str(half.transaction_id)
    try:
        named = dict(headers_of(record) or ()).get(TRANSACTION_ID)
        if named is not None:
            return named.decode("utf-8", "replace")
        return OP.decode(record.value() or b"").transaction_id
    except DecodeError:
        return ""


HALF_PLACES_MAX = 16  # of the partitions: with 200 records each, READ_S suffices
GROUPS_MAX = 1_000  # bounds memory: any writer of the half topic can invent groups


class NewestHalves(NamedTuple):
    """Facts from the newest half records of an installation."""

    clocks: tuple[BornClock, ...] = ()
    newest_ms: int = -1
    not_believed: tuple[NotBelieved, ...] = ()


def newest_halves(
    places: Sequence[TopicPartition],
    ports: Ports,
    common: Mapping[str, object],
    *,
    names: TopicNames,
    ring: KeyRing | None,
) -> NewestHalves:
    """Return facts from the newest half records; without a key ring, nothing about signatures.

    The time from `born_timestamp` to append is the error of a client's clock and the delay of the
    send. The half record with the least such time has the least delay, so that record shows the
    clock of its producer group. Copies show no clock: the daemon wrote them later.
    """
    asked = places[:HALF_PLACES_MAX]
    now_ms = ports.clock.time_ms()
    demanded = None if ring is None else as_if_demanded(ring, now_ms)
    verifier = None if demanded is None else Verifier(demanded, names)
    lags: dict[str, list[int]] = {}
    seen: dict[tuple[str, Role], _Seen] = {}
    newest_ms = -1
    starts = newest_starts(ports.kafka.admin(common), asked)
    with reading(ports, common) as reader:
        for record in records_of(reader, starts, ports):
            append_ms = append_ms_of(*record.timestamp())
            newest_ms = max(newest_ms, append_ms)
            half = half_of(record)
            if half is None or append_ms < 0:
                continue
            group = half.producer_group
            if half.origin_offset < 0 and (group in lags or len(lags) < GROUPS_MAX):
                lags.setdefault(group, []).append(append_ms - half.born_timestamp)
            writer = (group, role_of_half(half))
            if verifier is not None and (writer in seen or len(seen) < GROUPS_MAX):
                doubt = _doubt(verifier, record, append_ms, half)
                seen.setdefault(writer, _Seen()).add(append_ms, doubt)
    return NewestHalves(
        tuple(BornClock(group, min(all_ms), len(all_ms)) for group, all_ms in lags.items()),
        newest_ms,
        tuple(_not_believed(seen, ring, now_ms)) if ring is not None else (),
    )


@dataclass(slots=True)
class _Seen:
    """Records of one writer: a producer group's clients, daemon or operators."""

    believed_ms: int = -1
    doubts: list[tuple[int, str]] = field(default_factory=list)

    def add(self, append_ms: int, doubt: str) -> None:
        if doubt:
            self.doubts.append((append_ms, doubt))
        else:
            self.believed_ms = max(self.believed_ms, append_ms)

    def late_doubts(self) -> list[tuple[int, str]]:
        """Return append time and reason of the doubted records that are a finding.

        Records from more than MARGIN_MS before the writer's newest signed record are left out: the
        writer had no key file then. Where one of two clients has no key file, its records lie
        between the signed records of the other client.
        """
        return [each for each in self.doubts if each[0] > self.believed_ms - MARGIN_MS]


def _not_believed(
    seen: Mapping[tuple[str, Role], _Seen], ring: KeyRing, now_ms: int
) -> Iterator[NotBelieved]:
    for (group, role), each in seen.items():
        if doubts := each.late_doubts():
            newest_ms, why = max(doubts)
            since_ms = demanded_from_ms(ring, group, now_ms)
            yield NotBelieved(group, role, len(doubts), newest_ms, why, since_ms)


def _doubt(verifier: Verifier, record: StoredRecord, append_ms: int, half: HalfMetadata) -> str:
    try:
        verifier.check_half(
            record.partition(),
            append_ms,
            half,
            headers=headers_of(record) or (),
            key=record.key(),
            value=record.value(),
        )
    except NotBelievedError as error:
        return error.reason
    return ""


ENDS_S = 10.0  # a partition without a leader is a finding, and not waited for longer
READ_S = 5.0  # then doctor continues; of a partition not read to its end, a part is judged
_POLL_S = 0.1  # how much longer than READ_S a read takes at most
# How many of the newest records of each partition are read. More may not end within READ_S; fewer
# may all be copies, which show no clock.
RECORDS_MAX = 200


def newest_starts(admin: Admin, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Return where the newest RECORDS_MAX records of each partition begin, empty ones left out."""
    firsts = ends_of(admin, places, Edge.START)
    ends = {place: end for place, end in ends_of(admin, places, Edge.END).items() if end > 0}
    return {place: max(firsts[place], end - RECORDS_MAX) for place, end in ends.items()}


def ends_of(
    admin: Admin, places: Sequence[TopicPartition], edge: Edge
) -> dict[TopicPartition, int]:
    """Return one end of each partition."""
    if not places:
        return {}
    answers = admin.ask_ends(places, edge, ENDS_S)
    return {place: answer.result() for place, answer in answers.items()}


def records_of(
    reader: Reader, starts: Mapping[TopicPartition, int], ports: Ports
) -> Iterator[StoredRecord]:
    """Yield records from offsets to the ends of their partitions, for at most `READ_S`."""
    left = set(starts)
    if not left:
        return
    reader.read_from(starts)
    deadline = ports.clock.monotonic() + READ_S
    while left and ports.clock.monotonic() < deadline:
        record = reader.poll(_POLL_S)
        if record is None:
            continue
        error = record.error()
        if error is None:
            yield cast("StoredRecord", record)  # no error: its place is known
            continue
        failure = failure_of(error)
        if failure.code != Code.PARTITION_EOF:
            raise KafkaFailure(failure.code, failure.text)
        left.discard((record.topic(), record.partition()))


def half_of(record: StoredRecord) -> HalfMetadata | None:
    """Return the half metadata of a record; None: the record has none that can be read."""
    try:
        metadata, _ = parse_half(headers_of(record))
    except DecodeError:
        return None
    return metadata


@contextmanager
def reading(ports: Ports, common: Mapping[str, object]) -> Iterator[Reader]:
    """Give a reader without a group, which sees open and aborted kafka_txns too."""
    reader = ports.kafka.reader(
        {
            **common,
            "group.id": "halfbridge-admin",
            "isolation.level": "read_uncommitted",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    try:
        yield reader
    finally:
        ports.run.close_clients(reader)


# How long before its end a key without a successor is reported: time to give all a new file.
END_MS = 14 * 24 * 3_600_000
# A demand that begins within this time is taken as if it held: an operator has this long to give
# the key file to clients that have none.
SOON_MS = 24 * 3_600_000


def key_problems(ring: KeyRing, now_ms: int) -> list[str]:
    """Return what has to be done about a key file, in words."""
    ends = [
        f"key {key.id} ends at {shown_time(key.valid_until_ms)}, and no other key of role"
        f" {key.role.value} follows it: add one with `halfbridge keys new`"
        for key in ring.keys.values()
        if now_ms < key.valid_until_ms <= now_ms + END_MS and not _is_followed(ring, key)
    ]
    if not any(each.until_ms > now_ms for each in ring.demands):
        return ends
    there = {key.role for key in ring.keys.values()}
    lacks = [
        f"signatures are demanded, and there is no key of role {role.value}"
        for role in Role
        if role not in there
    ]
    return ends + lacks


def as_if_demanded(ring: KeyRing, now_ms: int) -> KeyRing | None:
    """Return the key ring as it will be within SOON_MS; None: nothing is demanded then.

    Its demands hold at all append times, so that records from before a demand are judged as if the
    demand had held.
    """
    demands = tuple(
        replace(each, from_ms=0)
        for each in ring.demands
        if each.from_ms <= now_ms + SOON_MS and now_ms < each.until_ms
    )
    return replace(ring, demands=demands) if demands else None


def demanded_from_ms(ring: KeyRing, group: str, now_ms: int) -> int:
    """Return since when, or from when on, signatures of a producer group are demanded.

    A demand that is over does not count; at least one other demand must name the group.
    """
    return min(
        each.from_ms
        for each in ring.demands
        if now_ms < each.until_ms and (group in each.groups or ANY_GROUP in each.groups)
    )


def _is_followed(ring: KeyRing, key: SigningKey) -> bool:
    return all(
        ring.end_of(key.role, group, key.valid_until_ms - 1) > key.valid_until_ms
        for group in key.groups
    )
