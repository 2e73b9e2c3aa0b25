"""Finds what an operator wants to decide, and how far the op topic was read for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.admin.decisions.decider import op_ends
from halfbridge.checker.admin.decisions.wish import standing_text
from halfbridge.checker.admin.transactions.life import NOT_FOUND
from halfbridge.checker.admin.transactions.listing import list_undecided
from halfbridge.checker.admin.transactions.look_up import look_up
from halfbridge.checker.admin.transactions.undecided import wanted_partitions
from halfbridge.checker.errors import AdminError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.transactions.listing import Filter
    from halfbridge.checker.admin.transactions.look_up import Wanted
    from halfbridge.checker.admin.transactions.undecided import Stopped
    from halfbridge.checker.admin.transactions.waits import Undecided
    from halfbridge.serde.topics import TopicNames


class Considered(NamedTuple):
    """Undecided transactions that may be decided.

    Attributes:
        transactions: As they were found.
        ends: Pair -> op offset; no decision of theirs stands below it.
        matching: How many there are, with those beyond a limit.
        stopped: Pairs of which nobody knows what is undecided.
    """

    transactions: Sequence[Undecided]
    ends: dict[int, int]
    matching: int
    stopped: Sequence[Stopped] = ()


def consider_one(
    cluster: Cluster,
    names: TopicNames,
    wanted: Wanted,
    *,
    tell: Callable[[str], None] = lambda _line: None,
) -> Considered:
    """Return one transaction, which is undecided.

    Raises:
        AdminError: it is not known, or decided, and by whom; or as `look_up`.
    """
    ends = _ends(cluster, names, None if wanted.partition is None else (wanted.partition,))
    life = look_up(cluster, names, wanted, tell=tell)
    if life.state == NOT_FOUND:
        raise AdminError(
            f"no transaction {wanted.id} was found: check the id and --topic-prefix, or give"
            " --from TIME"
        )
    if life.undecided is None:
        raise AdminError(standing_text(life))
    return Considered((life.undecided,), ends, 1)


def consider_many(
    cluster: Cluster,
    names: TopicNames,
    wanted: Filter,
    *,
    on_progress: Callable[[int], None] = lambda _records: None,
) -> Considered:
    """Return the undecided transactions that are wanted, the oldest first.

    Raises:
        AdminError: as `list_undecided`.
    """
    ends = _ends(cluster, names, wanted.partitions)
    found = list_undecided(cluster, names, wanted, on_progress=on_progress)
    return Considered(found.transactions, ends, found.undecided, found.stopped)


def _ends(
    cluster: Cluster, names: TopicNames, partitions: tuple[int, ...] | None
) -> dict[int, int]:
    return op_ends(cluster, names, wanted_partitions(cluster, names, partitions))
