"""The argument for sends anywhere in a block, by all interleavings of block, broker, check, death.

docs/reference/fence-blocks.md has it in words. The steps of a block are letters:

    S   hands a half message to the client          W   waits until all of them are acknowledged
    B   inserts the fence row, with the number of messages if all are acknowledged, else 0
    T   runs the first statement                    E   ends the sends, and waits as W
    N   writes the number into its row              C   commits the database
    M   sends the op COMMIT                         R   rolls back      X   writes rolled_back
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import pytest

from halfbridge.checker.core.events import HalfRead
from halfbridge.checker.core.ops import judge_commit
from halfbridge.serde.records import OpKind
from tests.ledger_log import Log, metadata, op_record

MESSAGES_MAX = 3
ASKS_MAX = 2
ABANDON, TAIL = "RX", "ENCM"
STATES_MAX = 2_000_000  # a model that grows beyond this is wrong


class State(NamedTuple):
    """State of the model. `row`: None, or its outcome and number; "open" is not committed yet."""

    steps: str  # that the block has still to do; empty: it is over
    sent: int = 0
    queued: int = 0  # sent, and not acknowledged
    stored: int = 0  # the offset after the last half message
    has_failed: bool = False
    has_begun: bool = False  # the first statement has run
    row: tuple[str, int] | None = None
    ops: tuple[tuple[OpKind, int, int], ...] = ()  # kind, number, half offset
    asks: int = ASKS_MAX
    check: tuple[str, OpKind, int, int] | None = None  # phase, answer, number, end of the half log


@dataclass(frozen=True)
class Rules:
    """What a defect changes."""

    reads_open_rows: bool = False
    asks_end_first: bool = False


def programs() -> Iterator[str]:
    """Yield each order in which a block sends, waits, and begins its database transaction."""
    for count in range(MESSAGES_MAX + 1):
        for sends in product(("S", "SW"), repeat=count):
            for before in range(count + 1):
                yield "".join(sends[:before]) + "BT" + "".join(sends[before:]) + TAIL


def successors(state: State, rules: Rules) -> Iterator[State]:
    """Yield all possible next states."""
    yield from _broker(state)
    yield from _check(state, rules)
    if state.steps:
        is_open = state.row is not None and state.row[0] == "open"
        yield state._replace(steps="", row=None if is_open else state.row)  # it dies
        after = _block(state)
        if after is not None:
            yield after


def _broker(state: State) -> Iterator[State]:
    if state.queued:
        yield state._replace(queued=state.queued - 1, stored=state.stored + 1)
        yield state._replace(queued=0, has_failed=True)


def _block(state: State) -> State | None:
    """Return the state after the block's next step; None: it waits."""
    step, after = state.steps[0], state._replace(steps=state.steps[1:])
    is_refused = step in "SWE" and state.has_failed
    if is_refused or (step == "B" and state.row is not None):  # a check came first
        return state._replace(steps=ABANDON)
    if step in "WE":
        return None if state.queued else after
    if step == "S":
        return after._replace(sent=state.sent + 1, queued=state.queued + 1)
    if step == "T":
        return after._replace(has_begun=True)
    if step in "MX":
        return _ended(step, after)
    outcome, number = state.row or ("open", 0)
    rows = {
        "B": ("open", 0 if state.queued or state.has_failed else state.sent),
        "N": (outcome, state.sent),
        "C": ("committed", number),
        "R": None if outcome == "open" else state.row,
    }
    return after._replace(row=rows[step])


def _ended(step: str, state: State) -> State:
    """Return the state after the message transaction's decision, M or X."""
    if step == "X":
        state = state._replace(row=state.row or ("rolled_back", 0))
        return _decided(state, OpKind.ROLLBACK, 0) if state.sent else state
    is_allowed = state.sent and not state.queued and not state.has_failed
    return _decided(state, OpKind.COMMIT, state.sent) if is_allowed else state


def _decided(state: State, kind: OpKind, count: int) -> State:
    return state._replace(ops=(*state.ops, (kind, count, state.stored - 1)))


def _check(state: State, rules: Rules) -> Iterator[State]:
    if state.check is None:
        if state.asks and state.stored:
            begun = ("begun", OpKind.UNKNOWN, 0, state.stored - 1)
            yield state._replace(asks=state.asks - 1, check=begun)
        return
    phase, kind, count, end = state.check
    if phase == "answers":
        at = end if rules.asks_end_first else state.stored - 1
        yield state._replace(ops=(*state.ops, (kind, count, at)), check=None)
    elif state.row is None:
        assert not (state.has_begun and state.steps and state.steps not in ABANDON), "in flight"
        answered = ("answers", OpKind.ROLLBACK, 0, end)
        yield state._replace(row=("rolled_back", 0), check=answered)
    elif state.row[0] == "open":  # the insert waits, and gives up
        yield state._replace(check=None)
        if rules.reads_open_rows and phase == "begun":
            yield state._replace(check=("waits", kind, state.row[1], end))
    elif state.row[0] == "rolled_back":
        yield state._replace(check=("answers", OpKind.ROLLBACK, 0, end))
    else:
        number = count if phase == "waits" else state.row[1]
        found = ("answers", OpKind.COMMIT, number, end) if number else None
        yield state._replace(check=found)


def verify(state: State) -> None:
    """Check a state in which block, broker and check have ended: all messages, or none."""
    if state.steps or state.queued or state.check is not None:
        return
    if not state.ops and state.stored:
        asked = state._replace(asks=1)
        while asked.check is not None or asked.asks:
            asked = next(_check(asked, Rules()))
        state = asked
    is_committed = state.row is not None and state.row[0] == "committed"
    assert state.ops or not state.stored, "it stays undecided"
    delivered, dead = _delivered(state)
    assert dead == 0, "dead letters"
    assert delivered == (state.sent if is_committed else 0), "the database says otherwise"
    assert {kind for kind, _, _ in state.ops} <= {
        OpKind.COMMIT if is_committed else OpKind.ROLLBACK
    }, "a conflict"


def _delivered(state: State) -> tuple[int, int]:
    """Return how many messages the daemon delivers and dead-letters: the first decision wins."""
    if not state.ops or state.ops[0][0] is OpKind.ROLLBACK:
        return 0, 0
    kind, count, at = state.ops[0]
    op = op_record("A", kind, half_offset=at)._replace(message_count=count)
    effect = judge_commit(_halves(state.stored), op, lambda _group, _topic: True)
    return len(effect.deliver), len(effect.dead)


def _halves(count: int) -> list[HalfRead]:
    log = Log()
    for index in range(count):
        log.append_half(metadata("A", index), 0)
    return [each for each in log.half if isinstance(each, HalfRead)]


def explore(program: str, rules: Rules) -> set[State]:
    """Visit all states, and verify each."""
    seen = {State(program)}
    left = list(seen)
    while left:
        state = left.pop()
        verify(state)
        new = {*successors(state, rules)} - seen
        seen |= new
        left += new
        assert len(seen) <= STATES_MAX
    return seen


def test_all_messages_or_none_in_each_interleaving() -> None:
    """In all orders of sends, deaths, lost sends and checks, all messages or none are delivered."""
    ends = set()
    for program in programs():
        for state in explore(program, Rules()):
            if not state.steps and state.check is None:
                ends.add((state.row, tuple(kind for kind, _, _ in state.ops)))
    # Commits and rollbacks, decided by block and check, have occurred.
    assert {row for row, _ in ends if row is not None} == {
        ("rolled_back", 0),
        *(("committed", count) for count in range(MESSAGES_MAX + 1)),
    }
    assert {len(kinds) for _, kinds in ends} >= {0, 1, 2}


def _as_it_is(program: str) -> str:
    return program


DEFECTS: dict[str, tuple[Callable[[str], str], Rules]] = {
    "the number is written too early": (
        lambda program: program.replace("N", "").replace("BT", "BTN"),
        Rules(),
    ),
    "the number is never written": (lambda program: program.replace("N", ""), Rules()),
    "a late send is not waited for": (lambda program: program.replace("E", ""), Rules()),
    "the number is written in a transaction of its own": (
        lambda program: program.replace("NC", "CN"),
        Rules(),
    ),
    "the row is read before its update": (_as_it_is, Rules(reads_open_rows=True)),
    "the row is the last statement, and checks meet open work": (
        lambda program: program.replace("BT", "T").replace("N", "BN"),
        Rules(),
    ),
    "the end of the half log is asked before the row": (_as_it_is, Rules(asks_end_first=True)),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_each_planted_defect_is_found(name: str) -> None:
    """An interleaving of at least one program fails."""
    change, rules = DEFECTS[name]
    with pytest.raises(AssertionError):
        for program in programs():
            explore(change(program), rules)
