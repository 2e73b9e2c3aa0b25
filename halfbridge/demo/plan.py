"""Which orders are placed, how each order ends, and which messages must arrive. Pure; seeded."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum

ORDERS_TOPIC = "orders"
PARCELS_TOPIC = "parcels"
TOPICS = (ORDERS_TOPIC, PARCELS_TOPIC)
PRODUCER_GROUP = "order-service"
BRINK = "all others are decided; between local commit and decision stand"
SERVICES = 3  # order services, one after the other; all but the last are killed
ORDERS_MIN = 10  # at least one order of each kind
MULTI_MESSAGES = 3  # of a transaction that has several
_CUSTOMERS = 50  # keys: several orders of each
_KILLED_MAX = 64  # each occupies a thread between its local commit and its decision
_SEED = 20  # arbitrary, but fixed, so that two runs place the same orders


class Kind(str, Enum):
    """How an order ends."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    KILLED = "killed"
    ABANDONED = "abandoned"
    UNKNOWN = "unknown"
    MULTI = "multi"


@dataclass(frozen=True, slots=True)
class Order:
    """One order.

    Attributes:
        number: Unique, from 0.
        customer: Key of its messages.
        kind: How it ends.
        service: Which of the SERVICES places it.
    """

    number: int
    customer: str
    kind: Kind
    service: int

    @property
    def is_decided_by_service(self) -> bool:
        """Tell whether the service that places it decides it too."""
        return self.kind not in (Kind.KILLED, Kind.ABANDONED, Kind.UNKNOWN)

    @property
    def messages(self) -> tuple[tuple[str, bytes, bytes], ...]:
        """Topic, key and value of each message, in the order sent."""
        key = self.customer.encode()
        order = (ORDERS_TOPIC, key, f'{{"order": {self.number}, "step": "placed"}}'.encode())
        if self.kind is not Kind.MULTI:
            return (order,)
        parcels = [
            (PARCELS_TOPIC, key, f'{{"order": {self.number}, "parcel": {parcel}}}'.encode())
            for parcel in range(1, MULTI_MESSAGES)
        ]
        return (order, *parcels)


@dataclass(frozen=True, slots=True)
class Expectation:
    """How many messages of a kind must be delivered and dead-lettered."""

    delivered: int
    dead_lettered: int

    @property
    def total(self) -> int:
        """Messages that must be delivered or dead-lettered."""
        return self.delivered + self.dead_lettered


def make_plan(orders: int) -> tuple[Order, ...]:
    """Return `orders` orders in the order of their services; the killed orders of a service last.

    Raises:
        ValueError: There are fewer than ORDERS_MIN orders.
    """
    if orders < ORDERS_MIN:
        raise ValueError(f"the demo needs at least {ORDERS_MIN} orders")
    killed = min(max(2, orders * 3 // 100), _KILLED_MAX)
    others = (
        [Kind.ROLLED_BACK] * max(1, orders // 10)
        + [Kind.MULTI] * max(1, orders // 10)
        + [Kind.ABANDONED] * max(1, orders // 50)
        + [Kind.UNKNOWN] * max(1, orders // 100)
    )
    others += [Kind.COMMITTED] * (orders - killed - len(others))
    dice = random.Random(_SEED)  # noqa: S311  # a plan, not a secret
    dice.shuffle(others)
    placed: list[tuple[int, Kind]] = []
    for service in range(SERVICES):
        placed += [(service, kind) for kind in others[service::SERVICES]]
        if service < SERVICES - 1:
            doomed = killed // 2 + (killed % 2 if service == 0 else 0)
            placed += [(service, Kind.KILLED)] * doomed
    return tuple(
        Order(number, f"customer-{dice.randrange(_CUSTOMERS)}", kind, service)
        for number, (service, kind) in enumerate(placed)
    )


def expectations(plan: tuple[Order, ...]) -> dict[Kind, Expectation]:
    """Return the expected messages of `plan` for every kind."""
    counts = dict.fromkeys(Kind, 0)
    for order in plan:
        counts[order.kind] += len(order.messages)
    counts[Kind.ROLLED_BACK] = counts[Kind.ABANDONED] = 0
    return {
        kind: Expectation(0, count) if kind is Kind.UNKNOWN else Expectation(count, 0)
        for kind, count in counts.items()
    }
