"""The commands that change dead letters: resume and redeliver transactions, and purge.

Transactions are written whole, in the order of their decisions. A purge gives letters up, and
deletes settled records from the start of each partition.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.admin.appending import appending
from halfbridge.checker.admin.dead.letters import Remedy
from halfbridge.checker.admin.dead.plans import NewLife, Refusal, chosen_letters, plan_life
from halfbridge.checker.admin.dead.reading import DeadTopic, examine
from halfbridge.checker.admin.dead.writing import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, DeadWriter
from halfbridge.checker.admin.operator_log import OperatorLog
from halfbridge.checker.admin.real_topics import RealTopics
from halfbridge.serde.records import ActionOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.dead.letters import (
        Choice,
        DeadTransaction,
        ExaminedLetter,
        Letter,
        Wanted,
    )
    from halfbridge.serde.records import OperatorAction
    from halfbridge.serde.topics import TopicNames

# Transactions of one kafka_txn, each with two records in the audit topic: those of a second at the
# command's default rate.
BATCH_TRANSACTIONS_MAX = 100


class Change(NamedTuple):
    """A change to a transaction, planned or done."""

    transaction: DeadTransaction  # as it was before
    resume_count: int  # the new life's; -1: none
    indices: tuple[int, ...]
    refusal: str = ""  # why nothing is done; empty where something is


def redo(
    letters: DeadLetters, order: Order, choice: Choice, agrees: Callable[[Sequence[Change]], bool]
) -> list[Change]:
    """Resume or redeliver transactions; return the changes, planned with `dry_run`.

    Each kafka_txn holds whole transactions. `agrees` is called with what would be done before
    anything is written; nothing is done if it returns False. The same order may be given again
    after an AdminError.
    """
    found = letters.first(order.wanted, order.limit)
    preview = _Planning(letters, choice)
    meant = [
        _change_of(*planned) for batch in _batches(found, order) for planned in preview.plan(batch)
    ]
    able = {each.transaction.key for each in meant if not each.refusal}
    if order.dry_run or not able or not agrees(meant):
        return meant
    refused = [each for each in meant if each.refusal]
    with letters.exclusively(order) as context:
        every = letters.topic.found.transactions(order.wanted)
        rest = [each for each in every if each.key in able and each.open_letters]
        return [*refused, *_redo(letters, rest, choice, context)]


def _redo(
    letters: DeadLetters, rest: Sequence[DeadTransaction], choice: Choice, context: ChangeContext
) -> list[Change]:
    """Write the transactions batch by batch, at the order's rate; return what became of each."""
    done: list[Change] = []
    planning = _Planning(letters, choice)
    for batch in _batches(rest, context.order):
        planned = planning.plan(batch)
        lives = [life for _, life in planned if isinstance(life, NewLife)]
        if lives:
            with _logged(context, choice.remedy.value, planned):
                context.writer.write(lives)
        done += [_change_of(transaction, life) for transaction, life in planned]
        letters.on_progress(f"{len(done)} of {len(rest)} transactions done")
        letters.cluster.ports.run.pause(len(lives) / context.order.rate)
    return done


class _Planning:
    """Plans batches; no two lives of a transaction get the same resume count."""

    def __init__(self, letters: DeadLetters, choice: Choice) -> None:
        self._letters, self._choice = letters, choice
        self._given: dict[str, int] = {}
        self._topics = RealTopics(letters.cluster, letters.names)

    def plan(
        self, batch: Sequence[DeadTransaction]
    ) -> list[tuple[DeadTransaction, NewLife | Refusal]]:
        """Return the new life or the refusal of each transaction, with the bodies to write."""
        chosen = {each.key: chosen_letters(each, self._choice) for each in batch}
        letters = [
            letter for each in chosen.values() if not isinstance(each, Refusal) for letter in each
        ]
        examined = {each.letter.place: each for each in self._letters.examine(letters)}
        planned: list[tuple[DeadTransaction, NewLife | Refusal]] = []
        for each in batch:
            mine = chosen[each.key]
            if isinstance(mine, Refusal):
                planned.append((each, mine))
                continue
            name = each.key.transaction_id
            number = max(
                self._letters.topic.found.next_resume_count(name), self._given.get(name, 0) + 1
            )
            life = plan_life(each, [examined[one.place] for one in mine], self._choice, number)
            if isinstance(life, NewLife):
                life = self._deliverable(life)
            if isinstance(life, NewLife):
                self._given[name] = number
            planned.append((each, life))
        return planned

    def _deliverable(self, life: NewLife) -> NewLife | Refusal:
        """Return `life`, or why its messages would only become dead letters again."""
        if self._choice.remedy is not Remedy.REDELIVER:
            return life
        why = self._topics.objection(half.metadata for half in life.halves)
        return Refusal(life.key, why) if why else life


@contextmanager
def _logged(
    context: ChangeContext,
    action: str,
    planned: Sequence[tuple[DeadTransaction, NewLife | Refusal]],
) -> Iterator[None]:
    intended: list[OperatorAction] = [
        context.log.record(
            f"dead {action}",
            transaction.name,
            why=context.order.why,
            before=state_before(transaction),
            after=f"life {life.resume_count} of {len(life.halves)} messages",
        )
        for transaction, life in planned
        if isinstance(life, NewLife)
    ]
    with context.log.recording_failure(*intended):
        yield
    for each in intended:
        context.log.conclude(each, ActionOutcome.DONE, after=each.after)


def _batches(
    transactions: Sequence[DeadTransaction], order: Order
) -> Iterator[list[DeadTransaction]]:
    """Yield transactions in order, as many at a time as one kafka_txn takes."""
    count_max = max(1, min(BATCH_TRANSACTIONS_MAX, int(order.rate)))
    batch: list[DeadTransaction] = []
    records = size_bytes = 0
    for each in transactions:
        more = 2 * len(each.letters) + 1
        more_bytes = sum(letter.size_bytes for letter in each.letters)
        is_full = (
            len(batch) >= count_max
            or records + more > BATCH_RECORDS_MAX
            or size_bytes + more_bytes > BATCH_BYTES_MAX
        )
        if batch and is_full:
            yield batch
            batch, records, size_bytes = [], 0, 0
        batch.append(each)
        records += more
        size_bytes += more_bytes
    if batch:
        yield batch


def _change_of(transaction: DeadTransaction, life: NewLife | Refusal) -> Change:
    if isinstance(life, Refusal):
        return Change(transaction, -1, (), life.why)
    indices = tuple(each.metadata.message_index for each in life.halves)
    return Change(transaction, life.resume_count, indices)


# Letters that are marked by one kafka_txn. Marks are small; more hold up readers of the dead-letter
# topic for longer, fewer cost a commit more often.
BATCH_MAX = 1_000


class Purged(NamedTuple):
    """The effect of a purge."""

    # Transactions with open letters, which are marked as given up.
    given_up: tuple[DeadTransaction, ...]
    upto: dict[int, int]  # partition -> offset below which records are deleted
    letters: int  # how many dead letters are deleted


def purge(
    letters: DeadLetters, order: Order, agrees: Callable[[Purged], bool], *, gives_up: bool
) -> Purged | None:
    """Give up letters, and delete settled records from the start of each partition.

    With `gives_up` the open letters of the transactions that the order names are marked. `agrees`
    is called with what would be done. Returns None if the operator did not agree; with `dry_run`
    the plan. The same order may be given again after an AdminError.
    """
    found = letters.first(order.wanted, order.limit)
    given_up = tuple(each for each in found if each.open_letters) if gives_up else ()
    meant = _purged(letters, given_up)
    if order.dry_run:
        return meant
    if not agrees(meant):
        return None
    named = {each.key for each in given_up}
    with letters.exclusively(order) as context:
        # Another command may have done something about them meanwhile.
        every = letters.topic.found.transactions(order.wanted)
        given_up = tuple(each for each in every if each.key in named and each.open_letters)
        _give_up(given_up, context)
        letters.topic.read_on()
        done = _purged(letters, ())._replace(given_up=given_up)
        _delete(letters, done, context)
    return done


def _give_up(transactions: Sequence[DeadTransaction], context: ChangeContext) -> None:
    for each in transactions:
        places = [(letter.place, each.key.transaction_id) for letter in each.open_letters]
        intended = context.log.record(
            "dead purge",
            each.name,
            why=context.order.why,
            before=state_before(each),
            after="given up; may be deleted",
        )
        with context.log.recording_failure(intended):
            for at in range(0, len(places), BATCH_MAX):
                context.writer.purge(places[at : at + BATCH_MAX])
        context.log.conclude(intended, ActionOutcome.DONE, after="marked as given up")


def _delete(letters: DeadLetters, done: Purged, context: ChangeContext) -> None:
    if not done.upto:
        return
    topic = letters.names.dead
    offsets = ", ".join(f"{partition}:{at}" for partition, at in sorted(done.upto.items()))
    intended = context.log.record(
        "dead purge",
        topic,
        why=context.order.why,
        before=f"{done.letters} dead letters that are dealt with",
        after=f"records deleted below {offsets}",
    )
    with context.log.recording_failure(intended):
        letters.cluster.delete_before({(topic, number): at for number, at in done.upto.items()})
    context.log.conclude(intended, ActionOutcome.DONE, after=intended.after)


def _purged(letters: DeadLetters, given_up: tuple[DeadTransaction, ...]) -> Purged:
    topic = letters.topic
    also = frozenset(letter.place for each in given_up for letter in each.open_letters)
    upto = {
        partition: at
        for partition, at in topic.found.deletable(topic.ends, also).items()
        if at > topic.starts[partition]
    }
    return Purged(given_up, upto, topic.found.count_below(upto))


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The operator's order: the first `limit` transactions that were decided, `rate` a second."""

    wanted: Wanted
    limit: int
    rate: float
    who: str
    why: str
    dry_run: bool = False


class ChangeContext(NamedTuple):
    """The context of a command that changes something."""

    writer: DeadWriter
    log: OperatorLog
    order: Order


class DeadLetters:
    """The dead letters of one installation, for one command.

    Attributes:
        left_out: How many wanted transactions the last call of `first` left out.
    """

    def __init__(
        self,
        cluster: Cluster,
        names: TopicNames,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.left_out = 0
        self.cluster, self.names, self.on_progress = cluster, names, on_progress
        self.topic = DeadTopic(cluster, names, on_progress)

    def find(self, wanted: Wanted) -> list[DeadTransaction]:
        """Read the topic to its end; return the wanted transactions in the order of decisions."""
        self.topic.read_on()
        return self.topic.found.transactions(wanted)

    def first(self, wanted: Wanted, limit: int) -> list[DeadTransaction]:
        """Return at most `limit` of what `find` returns, and note the rest in `left_out`."""
        found = self.find(wanted)
        self.left_out = max(0, len(found) - limit)
        return found[:limit]

    def examine(self, letters: Sequence[Letter]) -> list[ExaminedLetter]:
        """Return letters with their bodies; stubs are followed into the half topic."""
        return examine(self.cluster, self.names, letters)

    @contextmanager
    def exclusively(self, order: Order) -> Iterator[ChangeContext]:
        """Keep other commands from writing, and read all marks that they wrote."""
        writer = DeadWriter(self.cluster, self.names, actor=order.who, reason=order.why)
        try:
            with appending(self.cluster) as appender:
                log = OperatorLog(self.cluster, self.names, appender, who=order.who)
                self.topic.read_on(writer.fence_out_earlier(self.topic.partitions))
                yield ChangeContext(writer, log, order)
        finally:
            writer.close()


def state_before(transaction: DeadTransaction) -> str:
    """Return a transaction's state for the audit topic, before it changes."""
    reasons = ", ".join(each.value for each in transaction.reasons)
    return f"{len(transaction.letters)} dead letters, {reasons}, {transaction.state}"
