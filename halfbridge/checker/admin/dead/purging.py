"""Gives dead letters up, and deletes what is dealt with from the start of each partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.admin.dead.actions import Acting, DeadLetters, Order, standing_before
from halfbridge.serde.records import ActionOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfbridge.checker.admin.dead.transactions import DeadTransaction

# Letters that are marked by one kafka_txn.
BATCH_MAX = 1_000


class Purged(NamedTuple):
    """What a purge does.

    Attributes:
        given_up: Transactions with open letters, which are marked as given up.
        upto: Partition -> offset below which records are deleted.
        letters: How many dead letters are deleted.
    """

    given_up: tuple[DeadTransaction, ...]
    upto: dict[int, int]
    letters: int


def purge(
    letters: DeadLetters,
    order: Order,
    agrees: Callable[[Purged], bool],
    *,
    gives_up: bool,
) -> Purged | None:
    """Give up letters, and delete what is dealt with from the start of each partition.

    Args:
        letters: Of the installation.
        order: Which transactions, who and why.
        agrees: Is shown what would be done before anything is done.
        gives_up: Mark the open letters of the transactions that the order names.

    Returns:
        What was done, or would be; None: the operator did not agree.

    Raises:
        AdminError: the same order may be given again.
    """
    found = letters.find(order.wanted)[: order.limit]
    given_up = tuple(each for each in found if each.open_letters) if gives_up else ()
    meant = _purged(letters, given_up)
    if order.dry_run:
        return meant
    if not agrees(meant):
        return None
    named = {each.key for each in given_up}
    with letters.acting(order) as acting:
        # Another command may have done something about them meanwhile.
        every = letters.topic.found.transactions(order.wanted)
        given_up = tuple(each for each in every if each.key in named and each.open_letters)
        _give_up(given_up, acting)
        letters.topic.read_on()
        done = _purged(letters, ())._replace(given_up=given_up)
        _delete(letters, done, acting)
    return done


def _give_up(transactions: Sequence[DeadTransaction], acting: Acting) -> None:
    for each in transactions:
        places = [(letter.place, each.key.transaction_id) for letter in each.open_letters]
        intended = acting.log.record(
            "dead purge",
            each.name,
            why=acting.order.why,
            before=standing_before(each),
            after="given up; may be deleted",
        )
        with acting.log.telling_failure(intended):
            for at in range(0, len(places), BATCH_MAX):
                acting.writer.purge(places[at : at + BATCH_MAX])
        acting.log.conclude(intended, ActionOutcome.DONE, after="marked as given up")


def _delete(letters: DeadLetters, done: Purged, acting: Acting) -> None:
    if not done.upto:
        return
    topic = letters.names.dead
    offsets = ", ".join(f"{partition}:{at}" for partition, at in sorted(done.upto.items()))
    intended = acting.log.record(
        "dead purge",
        topic,
        why=acting.order.why,
        before=f"{done.letters} dead letters that are dealt with",
        after=f"records deleted below {offsets}",
    )
    with acting.log.telling_failure(intended):
        letters.cluster.delete_before({(topic, number): at for number, at in done.upto.items()})
    acting.log.conclude(intended, ActionOutcome.DONE, after=intended.after)


def _purged(letters: DeadLetters, given_up: tuple[DeadTransaction, ...]) -> Purged:
    topic = letters.topic
    also = frozenset(letter.place for each in given_up for letter in each.open_letters)
    upto = {
        partition: at
        for partition, at in topic.found.deletable(topic.ends, also).items()
        if at > topic.starts[partition]
    }
    return Purged(given_up, upto, topic.found.count_below(upto))
