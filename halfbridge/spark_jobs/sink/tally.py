"""Counts messages of published batches that became dead letters. Pure: no clock, no Kafka.

A dead letter counts if a winning manifest lists its transaction: its row was published, and is not
in its topic. Any writer of half messages can claim another app's name, so a name alone does not
count.

The daemon gives up a transaction as a whole, and the manifest has the number of its messages. So
the dead letter of message 0 is counted for all of them: there is exactly one, wherever a look
begins or ends. Only this dead letter names the batch, unless it is a stub, which has no
RMQ_CONTEXT.
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
    from halfbridge.serde.manifest_records import BatchManifest

# Batches whose manifests are looked up in one look, because each costs a search. A policy refuses
# batch by batch. Claims of more batches mean an outage of hours, of which ten batches tell enough,
# or an invention.
CLAIMED_BATCHES_MAX = 10
# The oldest claim that is looked up. A search reads all records after the claimed batch, so a claim
# of batch 0 would make a commit read the whole partition. At a batch every ten seconds 1,000
# batches are nearly three hours, longer than a running daemon takes to deliver.
CLAIMED_AGE_BATCHES_MAX = 1_000
NO_BATCH = -1


class Letter(NamedTuple):
    """The dead letter of message 0 of a transaction of the producer group.

    Attributes:
        transaction_id: The half message's transaction.
        batch_id: The claimed batch; NO_BATCH: none, because it is a stub or of another sender.
        why: Reason and detail.
    """

    transaction_id: str
    batch_id: int
    why: str


class Tally(NamedTuple):
    """The count of an app's refused messages.

    Attributes:
        refused_count: The app's messages that were found among the dead letters so far.
        offsets: The position in each partition of the dead-letter topic, in order; empty: the topic
            cannot be read.
        topic_id: Kafka's id of the topic that the offsets are of; empty: not known.
    """

    refused_count: int = 0
    offsets: tuple[int, ...] = ()
    topic_id: str = ""


NO_TALLY = Tally()


class Refused(NamedTuple):
    """The refused messages that one look has found.

    Attributes:
        by_batch: Batch -> number of messages.
        why: Reason and detail of one of them.
        unverified: Number of transactions that may be of published batches, but were not looked up.
    """

    by_batch: Mapping[int, int]
    why: str
    unverified: int

    @property
    def messages(self) -> int:
        """Messages of all batches."""
        return sum(self.by_batch.values())


def letter_of(headers: Headers | None, *, app_id: str, producer_group: str) -> Letter | None:
    """Return the dead letter of a message 0 that may be of the app; None for all others."""
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
    """Return the newest tally; each one continues the one before.

    The count goes first: offsets begin anew where the topic was created again.
    """
    return max(
        map(tally_of, manifests),
        key=lambda tally: (tally.refused_count, sum(tally.offsets)),
        default=NO_TALLY,
    )


def tally_of(manifest: BatchManifest) -> Tally:
    """Return the tally in a manifest."""
    return Tally(
        manifest.refused_count, manifest.dead_letter_offsets, manifest.dead_letter_topic_id
    )


def refused_by(
    letters: Sequence[Letter],
    winner_of: Callable[[int], BatchManifest | None],
    *,
    newest_batch: int,
) -> Refused:
    """Return how many messages of published batches are among the dead letters.

    A claim of a batch after the newest one is neither counted nor unverified: that batch is not
    published, for example because its driver died and it is being run again.

    Args:
        letters: Dead letters of the producer group.
        winner_of: Batch -> its winning manifest. Called for at most CLAIMED_BATCHES_MAX batches,
            none older than CLAIMED_AGE_BATCHES_MAX.
        newest_batch: The latest published batch; dead letters without a batch may belong to it.
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
