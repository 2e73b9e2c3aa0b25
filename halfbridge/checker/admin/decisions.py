"""`tx commit` and `tx rollback`: write an operator's decisions, and read back which decision won.

For each decision, in this order: the intention is stored in the audit topic, the fence row is
written, the op is stored, and the op topic is read to find the first decision. A command that dies
in between leaves the transaction undecided or decided, and may be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from halfbridge.checker.admin.read import First, Key, first_decisions, readable_ops
from halfbridge.checker.admin.transactions.explain import span_text
from halfbridge.checker.admin.transactions.life import NOT_FOUND
from halfbridge.checker.admin.transactions.logs import edges
from halfbridge.checker.admin.transactions.look_up import look_up
from halfbridge.checker.admin.transactions.undecided import list_undecided, wanted_partitions
from halfbridge.checker.admin.transactions.waits import Wait
from halfbridge.checker.admin.words import counted
from halfbridge.checker.errors import AdminError, AdminRequestError, InDoubtError
from halfbridge.checker.signatures import check_signer, signed_op
from halfbridge.kafka.ports import Edge
from halfbridge.serde.avro import OP
from halfbridge.serde.headers import CONTEXT
from halfbridge.serde.limits import shortened
from halfbridge.serde.protocol import NO_APPEND_MS
from halfbridge.serde.records import (
    COUNT_UNKNOWN,
    ActionOutcome,
    Op,
    OperatorAction,
    OpKind,
    OpSource,
    new_op,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from halfbridge.checker.admin.appending import Appender
    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.operator_log import OperatorLog
    from halfbridge.checker.admin.transactions.life import Life
    from halfbridge.checker.admin.transactions.look_up import Wanted
    from halfbridge.checker.admin.transactions.undecided import Filter, Stopped
    from halfbridge.checker.admin.transactions.waits import Undecided
    from halfbridge.serde.topics import TopicNames

# Bytes in UTF-8 of an op's texts, so that an op with the longest id and group is no longer than
# OP_BYTES_MAX. The audit topic has the whole reason.
_REASON_BYTES_MAX = 512
_ACTOR_BYTES_MAX = 128


class FencePort(Protocol):
    """The fence of the local transactions, as decisions need it; see halfbridge.sql."""

    def committed_count(self, undecided: Undecided, context: bytes | None) -> int:
        """Return how many messages the committed fence row names.

        Raises AdminError: there is no such row; the operator follows the text.
        """

    def roll_back(self, undecided: Undecided, context: bytes | None) -> None:
        """Return once a fence row says rolled_back.

        Raises AdminError: it says committed; the operator commits.
        """


class Decided(NamedTuple):
    """What became of one decision."""

    undecided: Undecided
    # DONE: this decision is the first. OVERRULED: another one is. FAILED: nothing was written.
    # IN_DOUBT: not known.
    outcome: ActionOutcome
    offset: int | None  # op offset; None: not known, or none was written
    first: First | None  # the first decision; None: not known
    detail: str = ""  # what went wrong; empty where nothing did


class _Written(NamedTuple):
    """A decision that was sent; `offset` is None where it is not known whether it is stored."""

    undecided: Undecided
    intended: OperatorAction
    op: Op
    offset: int | None


class Decider:
    """Writes decisions, and says what became of them. Not thread-safe."""

    def __init__(
        self,
        cluster: Cluster,
        names: TopicNames,
        log: OperatorLog,
        appender: Appender,
        *,
        requested: DecisionRequest,
        fence: FencePort | None = None,
    ) -> None:
        self._cluster, self._names = cluster, names
        self._log, self._appender = log, appender
        self._requested, self._fence = requested, fence

    def decide(
        self, transactions: Iterable[Undecided], ends: Mapping[int, int], *, pause_s: float = 0.0
    ) -> list[Decided]:
        """Decide transactions, one after the other, and return what became of each, in order.

        `ends` are op offsets by pair, up to which the op topic was readable before the transactions
        were found undecided. If the audit topic takes no record, earlier decisions remain.
        """
        decided: dict[Key, Decided] = {}
        sent: list[_Written] = []
        for number, undecided in enumerate(transactions):
            if number and pause_s:
                self._cluster.ports.run.pause(pause_s)
            found = self._write(undecided)
            if isinstance(found, _Written):
                sent.append(found)
                found = Decided(undecided, ActionOutcome.IN_DOUBT, found.offset, None)
            decided[_key(undecided)] = found
        decided |= {_key(each.undecided): each for each in self._read_back(sent, ends)}
        return list(decided.values())

    def _write(self, undecided: Undecided) -> _Written | Decided:
        names, requested = self._names, self._requested
        intended = self._log.record(
            requested.action,
            undecided.id,
            why=requested.reason,
            before=before_text(undecided),
            after="COMMITTED" if requested.kind is OpKind.COMMIT else "ROLLED_BACK",
        )
        try:
            # Before a fence is written: what cannot be signed is refused.
            check_signer(self._cluster.signatures, undecided.producer_group, intended.at_ms)
            op = self._op(undecided, intended, self._ask_fence(undecided))
            key, value = undecided.id.encode(), OP.encode(op)
            headers = signed_op(
                self._cluster.signatures,
                undecided.producer_group,
                undecided.partition,
                key=key,
                value=value,
                now_ms=op.timestamp,
            )
        except AdminError as error:
            return self._failed(undecided, intended, str(error))
        place = (names.op, undecided.partition)
        try:
            offset, _ = self._appender.append(place, value, key, headers)
        except InDoubtError:
            return _Written(undecided, intended, op, None)
        except AdminError as error:
            return self._failed(undecided, intended, str(error))
        return _Written(undecided, intended, op, offset)

    def _ask_fence(self, undecided: Undecided) -> int:
        """Return the op's message count; write the same decision to the fence."""
        count, fence = self._requested.message_count, self._fence
        if fence is None:
            return count
        context = context_of(self._cluster, self._names, undecided)
        if self._requested.kind is OpKind.COMMIT:
            return fence.committed_count(undecided, context)
        fence.roll_back(undecided, context)
        return count

    def _op(self, undecided: Undecided, intended: OperatorAction, count: int) -> Op:
        return new_op(
            transaction_id=undecided.id,
            timestamp=intended.at_ms,
            half_offset=undecided.last_offset,
            producer_group=undecided.producer_group,
            kind=self._requested.kind,
            message_count=count if self._requested.kind is OpKind.COMMIT else COUNT_UNKNOWN,
            source=OpSource.OPERATOR,
            actor=shortened(self._log.who, _ACTOR_BYTES_MAX),
            resume_count=undecided.resume_count,
            reason=shortened(self._requested.reason, _REASON_BYTES_MAX),
        )

    def _failed(self, undecided: Undecided, intended: OperatorAction, text: str) -> Decided:
        self._log.conclude(intended, ActionOutcome.FAILED, after=text)
        return Decided(undecided, ActionOutcome.FAILED, None, None, text)

    # --- which decision is the first ----------------------------------------------------------

    def _read_back(self, sent: Sequence[_Written], ends: Mapping[int, int]) -> list[Decided]:
        found: list[Decided] = []
        for partition in sorted({each.undecided.partition for each in sent}):
            mine = [each for each in sent if each.undecided.partition == partition]
            try:
                first = self._first(partition, mine, ends[partition])
            except AdminError as error:
                found += [self._conclude(each, None, str(error)) for each in mine]
            else:
                found += [self._conclude(each, first.get(_key(each.undecided))) for each in mine]
        return found

    def _first(self, partition: int, mine: Sequence[_Written], start: int) -> dict[Key, First]:
        """Return the first decision of each transaction, read to the end of the written ops."""
        offsets = [each.offset for each in mine]
        known = [offset + 1 for offset in offsets if offset is not None]
        end = max(known, default=0)
        if None in offsets:  # stored after all others, or not at all
            end = self._cluster.watermarks(self._names.op, partition)[1]
        records = self._cluster.read(self._names.op, partition, start=start, end=end)
        ops = readable_ops(records, self._cluster.signatures.verifier)
        return first_decisions(ops, {_key(each.undecided): _first_ms(each) for each in mine})

    def _conclude(self, written: _Written, first: First | None, problem: str = "") -> Decided:
        undecided, offset = written.undecided, written.offset
        if first is None:
            outcome = ActionOutcome.IN_DOUBT
            problem = problem or "the op was not found among those that have an effect"
        elif first.offset == offset or (offset is None and first.op == written.op):
            outcome, offset = ActionOutcome.DONE, first.offset
        else:
            outcome = ActionOutcome.OVERRULED
        text = problem if first is None else first_text(first)
        self._log.conclude(written.intended, outcome, after=text)
        return Decided(undecided, outcome, offset, first, problem)


def op_ends(
    cluster: Cluster, names: TopicNames, partitions: Collection[int] | None
) -> dict[int, int]:
    """Return the stable ends of op partitions: any later reader can read up to them."""
    places = [(names.op, number) for number in wanted_partitions(cluster, names, partitions)]
    found = edges(cluster, places, Edge.STABLE_END)
    return {place[1]: end for place, end in found.items()}


def context_of(cluster: Cluster, names: TopicNames, undecided: Undecided) -> bytes | None:
    """Return the context of the first message, or None.

    Raises AdminRequestError: the message has expired; the operator decides without the fence.
    """
    place, at = (names.half, undecided.partition), undecided.offset
    start, end = cluster.watermarks(*place)
    if not start <= at < end:
        raise AdminRequestError(
            f"the first half message of {undecided.id} has expired, so its fence is unknown:"
            " decide without --fence-url",
            transaction_id=undecided.id,
        )
    for record in cluster.read(*place, start=at, end=at + 1):
        return next((value for name, value in record.headers if name == CONTEXT), None)
    return None


def _first_ms(written: _Written) -> int:
    known = written.undecided.first_append_ms
    return NO_APPEND_MS if known is None else known


def _key(undecided: Undecided) -> Key:
    return undecided.id, undecided.resume_count, undecided.producer_group


class Candidates(NamedTuple):
    """Undecided transactions that may be decided."""

    transactions: Sequence[Undecided]
    ends: dict[int, int]  # pair -> op offset; the transactions have no decision below it
    matching: int  # how many there are, with those beyond a limit
    stopped: Sequence[Stopped] = ()  # pairs whose undecided transactions are unknown


def find_candidate(
    cluster: Cluster,
    names: TopicNames,
    wanted: Wanted,
    *,
    on_progress: Callable[[str], None] = lambda _line: None,
) -> Candidates:
    """Return one transaction, which is undecided.

    Raises AdminRequestError: not found, or decided (the text says by whom); the operator corrects
    the command.
    """
    ends = op_ends(cluster, names, None if wanted.partition is None else (wanted.partition,))
    life = look_up(cluster, names, wanted, on_progress=on_progress)
    if life.state == NOT_FOUND:
        raise AdminRequestError(
            f"no transaction {wanted.id} was found: check the id and --topic-prefix, or give"
            " --from TIME",
            transaction_id=wanted.id,
        )
    if life.undecided is None:
        raise AdminRequestError(decision_text(life), transaction_id=life.id)
    return Candidates((life.undecided,), ends, 1)


def find_candidates(cluster: Cluster, names: TopicNames, wanted: Filter) -> Candidates:
    """Return the undecided transactions that are wanted, the oldest first."""
    ends = op_ends(cluster, names, wanted.partitions)
    found = list_undecided(cluster, names, wanted)
    return Candidates(found.transactions, ends, found.undecided, found.stopped)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRequest:
    """The operator's request."""

    kind: OpKind
    reason: str
    # How many messages a COMMIT covers; COUNT_UNKNOWN: all that are there.
    message_count: int = COUNT_UNKNOWN

    @property
    def action(self) -> str:
        """The action, as the audit topic names it."""
        return f"tx {self.kind.value.lower()}"


def refusal_of(undecided: Undecided, requested: DecisionRequest, *, force: bool) -> str:
    """Return why a transaction may not be decided by `requested` now; empty where it may.

    With `force` the operator knows that the producer does not run, and how a COMMIT treats a
    transaction without all of its messages.
    """
    if undecided.wait is Wait.DECISION_WAITS:
        return f"{undecided.why}: it will be decided without you"
    if force:
        return ""
    if undecided.wait is Wait.NOT_DUE:
        return f"{undecided.why}; give --force if its producer is dead"
    if requested.kind is OpKind.COMMIT and requested.message_count > undecided.messages:
        return (
            f"of {requested.message_count} messages {undecided.messages} are there, so that COMMIT"
            " would make dead letters of them (INCOMPLETE); give --messages all, or --force"
        )
    return ""


def effect_text(undecided: Undecided, requested: DecisionRequest) -> str:
    """Return the effect of a decision as a sentence."""
    there, count = undecided.messages, requested.message_count
    if requested.kind is OpKind.ROLLBACK:
        return f"ROLLBACK delivers nothing of its {counted(there, 'message')}"
    if count > there:
        wanted = counted(count, "message")
        return f"COMMIT of {wanted}: the existing ones, {there}, become dead letters (INCOMPLETE)"
    if COUNT_UNKNOWN < count < there:
        extra = counted(there - count, "dead letter")
        return f"COMMIT delivers {counted(count, 'message')}; the others become {extra} (EXTRA)"
    whole = "" if count == there else ", whether these are all or not"
    return f"COMMIT delivers the existing {counted(there, 'message')}{whole}"


def decision_text(life: Life) -> str:
    """Return how a transaction was decided, and by whom."""
    winner = life.decided_by
    if winner is None:
        return f"{life.id} is {life.state} already"
    text = f"{winner.op} by {winner.source} {winner.actor} at op offset {winner.offset}"
    reason = f" ({winner.reason})" if winner.reason else ""
    return f"{life.id} is {life.state} already: {text}{reason}"


def before_text(undecided: Undecided) -> str:
    """Return how a transaction was found, for the audit topic."""
    age = "of unknown age" if undecided.age_ms is None else f"{span_text(undecided.age_ms)} old"
    return (
        f"{undecided.state}, {age}, {counted(undecided.messages, 'message')} of group"
        f" {undecided.producer_group}, pair {undecided.partition}, {undecided.wait.value}"
    )


def first_text(first: First) -> str:
    """Return which decision is the first, and who wrote it."""
    op = first.op
    text = f"{op.kind.value} by {op.source.value} {op.actor} at op offset {first.offset}"
    return f"{text}: {op.reason}" if op.reason else text
