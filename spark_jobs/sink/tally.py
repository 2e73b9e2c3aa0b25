"""How many messages of published batches became dead letters. Pure: no clock, no Kafka.

A dead letter counts when a winning manifest lists its transaction: then its row was published, and
is not in its topic. Whoever may write half messages may also claim another's name, so that a name
alone counts nothing.

The daemon gives a transaction up as a whole, and the manifest has the number of its messages. So
the dead letter of message 0 stands for all of them. There is exactly one, wherever a look at the
topic begins or ends. It alone names the batch, but for a stub, which has no RMQ_CONTEXT.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.serde.avro import DEAD_LETTER, SINK_CONTEXT
from halfbridge.serde.errors import SerdeError
from halfbridge.serde.headers import CONTEXT, DEAD, parse_half

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from halfbridge.serde.headers import Headers
    from halfbridge.serde.records import BatchManifest

# Batches whose manifests are looked up for one look at the dead letters: each costs a search. What
# a policy refuses is refused batch by batch; claims of more at once are an outage of hours, of
# which ten tell enough, or somebody else's invention.
CLAIMED_BATCHES_MAX = 10
# How far back a claim is looked up: the search reads all that stands behind its batch, and a claim
# of batch 0 would make a commit read the whole partition. With a batch each ten seconds 1,000 are
# nearly three hours, longer than a daemon that runs takes to deliver.
CLAIMED_AGE_BATCHES_MAX = 1_000
NO_BATCH = -1


class Letter(NamedTuple):
    """The dead letter of message 0 of a transaction of the producer group.

    Attributes:
        transaction_id: Of its half message.
        batch_id: The batch that it claims; NO_BATCH: none, it is a stub or somebody else's.
        why: Reason and detail.
    """

    transaction_id: str
    batch_id: int
    why: str


class Tally(NamedTuple):
    """What is known of an app's refused messages.

    Attributes:
        refused_count: Messages of its batches found among the dead letters so far.
        offsets: Up to where the dead-letter topic was read, the partitions in order; empty: it
            cannot be.
    """

    refused_count: int = 0
    offsets: tuple[int, ...] = ()


NO_TALLY = Tally()


class Refused(NamedTuple):
    """What one look at the dead letters found.

    Attributes:
        by_batch: Batch -> messages.
        why: Of one of them.
        unverified: Transactions that may be of published batches, which was not looked up or
            cannot be.
    """

    by_batch: Mapping[int, int]
    why: str
    unverified: int

    @property
    def messages(self) -> int:
        """Messages of all batches."""
        return sum(self.by_batch.values())


def letter_of(headers: Headers | None, *, app_id: str, producer_group: str) -> Letter | None:
    """Return the dead letter of a message 0 that may be of the app; None of all others."""
    try:
        metadata, _ = parse_half(headers)
        if metadata.message_index or metadata.producer_group != producer_group:
            return None
        given = dict(headers or ())
        letter = DEAD_LETTER.decode(given.get(DEAD) or b"")
        context = SINK_CONTEXT.decode(given[CONTEXT] or b"") if CONTEXT in given else None
    except SerdeError:
        return None
    if context is not None and context.app_id != app_id:
        return None  # another app of the group
    why = f"{letter.reason.value}: {letter.detail}" if letter.detail else letter.reason.value
    batch_id = NO_BATCH if context is None else context.batch_id
    return Letter(metadata.transaction_id, batch_id, why)


def newest_tally(manifests: Sequence[BatchManifest]) -> Tally:
    """Return the tally that has come furthest: each counts on from the one before it."""
    tallies = (Tally(each.refused_count, each.dead_letter_offsets) for each in manifests)
    return max(tallies, key=lambda tally: sum(tally.offsets), default=NO_TALLY)


def refused_by(
    letters: Sequence[Letter],
    winner_of: Callable[[int], BatchManifest | None],
    *,
    newest_batch: int,
) -> Refused:
    """Return how many messages of published batches the letters are.

    A claim of a batch later than the newest one is neither counted nor unverified: that batch is
    not published, for example because its driver died and it is run again now.

    Args:
        letters: Dead letters of the producer group.
        winner_of: Batch -> its winning manifest. Asked for CLAIMED_BATCHES_MAX batches at most,
            none of them older than CLAIMED_AGE_BATCHES_MAX.
        newest_batch: The latest one that was published; letters that name no batch may be its.
    """
    why = {each.transaction_id: each.why for each in letters}
    claims = {each.transaction_id: each.batch_id for each in letters}
    nameless = {name for name, batch in claims.items() if batch == NO_BATCH}
    wanted = dict.fromkeys([newest_batch] if nameless else [])
    wanted.update(dict.fromkeys(claims.values()))
    oldest = max(0, newest_batch - CLAIMED_AGE_BATCHES_MAX + 1)
    within = (batch for batch in wanted if oldest <= batch <= newest_batch)
    looked_up = list(islice(within, CLAIMED_BATCHES_MAX))
    by_batch: Counter[int] = Counter()
    text = ""
    for batch in looked_up:
        winner = winner_of(batch)
        for attempt in () if winner is None else winner.attempts:
            for each in attempt.transactions:
                if each.transaction_id in claims:
                    del claims[each.transaction_id]
                    by_batch[batch] += each.message_count
                    text = text or why[each.transaction_id]
    unverified = sum(
        name in nameless or (batch not in looked_up and batch <= newest_batch)
        for name, batch in claims.items()
    )
    return Refused(dict(sorted(by_batch.items())), text, unverified)
