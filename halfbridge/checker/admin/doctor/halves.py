"""What the newest half records show: clients' clocks, and who does not sign as is demanded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from halfbridge.checker.admin.doctor.facts import BornClock, NotBelieved
from halfbridge.checker.admin.doctor.keys import as_if_demanded, demanded_from_ms
from halfbridge.checker.admin.doctor.reading import half_of, newest_starts, reading, records_of
from halfbridge.checker.core.events import append_ms_of
from halfbridge.serde.errors import NotBelievedError
from halfbridge.serde.headers import headers_of
from halfbridge.serde.signing_keys import MARGIN_MS
from halfbridge.serde.verifier import Verifier, role_of_half

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from halfbridge.kafka.ports import Place, Ports
    from halfbridge.serde.signing_keys import KeyRing, Role
    from halfbridge.serde.topics import TopicNames

PLACES_MAX = 16  # of the partitions: with 200 records each, READ_S suffices
GROUPS_MAX = 1_000  # bounds memory: who may write the half topic chooses the groups' names


class NewestHalves(NamedTuple):
    """What the newest half records of an installation show.

    Attributes:
        clocks: Clients' clocks, by producer group.
        newest_ms: Newest append time; -1: none.
        not_believed: Who writes records that are not signed as is demanded.
    """

    clocks: tuple[BornClock, ...] = ()
    newest_ms: int = -1
    not_believed: tuple[NotBelieved, ...] = ()


def newest_halves(
    places: Sequence[Place],
    ports: Ports,
    common: Mapping[str, Any],
    *,
    names: TopicNames,
    ring: KeyRing | None,
) -> NewestHalves:
    """Return what the newest half records show.

    The time from `born_timestamp` to append is the error of a client's clock and the delay of the
    send. The half record with the least such time has the least delay, so that record tells the
    clock of its producer group. Copies tell no clock: the daemon wrote the copies later.

    Args:
        places: Partitions of the half topic; the first PLACES_MAX are read.
        ports: To read with.
        common: Properties of Kafka clients.
        names: The installation's topics.
        ring: What the key file says; None: there is none, and nothing is judged.

    Raises:
        KafkaFailure: the half topic cannot be read.
    """
    asked = places[:PLACES_MAX]
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


def _doubt(verifier: Verifier, record: Any, append_ms: int, half: Any) -> str:
    """Return why a record is not believed; empty: it is."""
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
