"""What a producer under test does, drawn from a seed: the same number, the same transaction."""

import random
from dataclasses import dataclass
from enum import Enum

from tests.kit.load import REAL_TOPICS

_KEYS = 20
_BODY_BYTES_MAX = 2000


class Kind(str, Enum):
    """What becomes of a transaction after its half messages are durable."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    MULTI = "multi"  # three messages in two topics, committed
    CHECKED_COMMIT = "checked_commit"  # local commit, no decision: the check answers COMMIT
    CHECKED_ROLLBACK = "checked_rollback"  # the check answers ROLLBACK
    NEVER = "never"  # no local transaction: checks answer UNKNOWN until it is discarded
    TARDY = "tardy"  # local commit, COMMIT after the check was due: two equal decisions
    CONTRADICTED = "contradicted"  # as TARDY, but the producer decides ROLLBACK: a conflict
    BRINK = "brink"  # SIGKILL of the producer between local commit and decision


_WEIGHTS = {
    Kind.COMMITTED: 62,
    Kind.ROLLED_BACK: 10,
    Kind.MULTI: 9,
    Kind.CHECKED_COMMIT: 6,
    Kind.CHECKED_ROLLBACK: 3,
    Kind.NEVER: 2,
    Kind.TARDY: 5,
    Kind.CONTRADICTED: 3,
}


@dataclass(frozen=True, slots=True)
class PlannedMessage:
    """One message; its value is like no other's."""

    topic: str
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Planned:
    """One transaction."""

    kind: Kind
    messages: tuple[PlannedMessage, ...]


def planned(client: str, seed: int, number: int) -> Planned:
    """Return transaction `number` of a client; its first ones are one of each kind."""
    draw = random.Random(f"{client}:{seed}:{number}")
    kinds = list(_WEIGHTS)
    kind = draw.choices(kinds, list(_WEIGHTS.values()))[0]
    if number < len(kinds):  # a short run has every kind as well
        kind = kinds[number]
    key = None if draw.random() < 0.1 else f"{client}-{draw.randrange(_KEYS)}".encode()
    first, second = REAL_TOPICS
    topics = (first, second, first) if kind is Kind.MULTI else (draw.choice(REAL_TOPICS),)
    return Planned(
        kind,
        tuple(
            PlannedMessage(
                topic,
                key,
                f"{client}:{seed}:{number}:{index}:".encode()
                + draw.randbytes(draw.randrange(_BODY_BYTES_MAX)),
                (("trace", draw.randbytes(8)), ("empty", None)) if draw.random() < 0.3 else (),
            )
            for index, topic in enumerate(topics)
        ),
    )
