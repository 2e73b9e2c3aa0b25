"""What clients, clocks and failures may do next, as data."""

from __future__ import annotations

import os
from dataclasses import dataclass

from halfbridge.serde.limits import TRANSACTION_BYTES_MAX
from halfbridge.serde.limits import TRANSACTION_MESSAGES_MAX as MESSAGES_MAX
from halfbridge.serde.records import OpKind, OpSource
from tests.kit.examples import HealthCheck, settings, st

# `make test` takes the default; `make test-fast` and a long run set the variable.
EXAMPLES = int(os.environ.get("HALFBRIDGE_PROPERTY_EXAMPLES", "500"))

PROFILE = settings(
    max_examples=EXAMPLES,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

THE_NEXT = -1
STEPS_MAX = 80
Step = tuple[str, tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class Said:
    """Somebody says something about a transaction.

    Attributes:
        counted: The op carries the message count.
        check_number: THE_NEXT is the number that counts.
        reach: How far half_offset is from the transaction's last half message: 0 as the protocol
            demands; "end": the partition's last; other numbers: a client that is wrong.
    """

    kind: OpKind
    source: OpSource
    counted: bool
    check_number: int
    reach: int | str


_decisions = st.builds(
    Said,
    kind=st.sampled_from((OpKind.COMMIT, OpKind.COMMIT, OpKind.ROLLBACK)),
    source=st.sampled_from((OpSource.PRODUCER, OpSource.CHECK, OpSource.OPERATOR)),
    counted=st.booleans(),
    check_number=st.just(0),
    reach=st.sampled_from((0, 0, 0, 0, "end", "end", -1, -3, 1_000)),
)
_answers = st.builds(
    Said,
    kind=st.just(OpKind.UNKNOWN),
    source=st.just(OpSource.CHECK),
    counted=st.just(False),
    check_number=st.sampled_from((THE_NEXT, THE_NEXT, 0, 1, 2, 7)),
    reach=st.sampled_from((0, "end")),
)
_discards = st.builds(
    Said,
    kind=st.just(OpKind.DISCARD),
    source=st.sampled_from((OpSource.OPERATOR, OpSource.PRODUCER)),
    counted=st.just(False),
    check_number=st.just(0),
    reach=st.sampled_from((0, "end")),
)
said = st.one_of(_decisions, _decisions, _answers, _discards)


def _step(name: str, *arguments: st.SearchStrategy[object]) -> st.SearchStrategy[Step]:
    return st.tuples(st.just(name), st.tuples(*arguments))


_which = st.integers(0, 5)
_groups = st.sampled_from(("orders", "orders", "orders", "billing"))
_limits = st.sampled_from((1_000, 1, 2, 5))
_flaws = st.sampled_from(("", "", "", "", "reserved header RMQ_DEAD"))
_real_topics = st.sampled_from(("real", "real", "real", "forbidden"))
# Two messages of the larger size are what a transaction may have, three are more.
_sizes = st.sampled_from((0, 0, 0, TRANSACTION_BYTES_MAX // 2))
_indices = st.one_of(
    st.integers(0, 3), st.integers(0, 3), st.integers(MESSAGES_MAX, MESSAGES_MAX + 2)
)
# The longer one outlasts every decision; of two shorter ones only both together do.
_silences = st.sampled_from((20_000, 6_000, 6_000))
_nobody_else = st.sampled_from(("", "", "", "", "", "", "billing", "orders"))

_steps = st.one_of(
    _step("begins", _groups, st.integers(1, 3), _real_topics, _flaws, _sizes),
    _step("begins", _groups, st.integers(1, 3), _real_topics, _flaws, _sizes),
    _step("stores_more", _which, _indices, _groups),
    _step("is_redelivered", _which, st.sets(st.integers(0, 3), min_size=1)),
    _step("says", _which, said, _nobody_else),
    _step("says", _which, said, _nobody_else),
    _step("is_asked_and_answers", _which, _answers),
    _step("writes_junk", st.booleans()),
    _step("time_passes", st.sampled_from((1, 50, 200, 1_000))),
    _step("long_silence", _silences),
    _step("reads_halves", _limits),
    _step("reads_ops", _limits),
    _step("works", _limits),
    _step("works", _limits),
    _step("asks", _limits),
    _step("takes_a_plan", _limits),
    _step("commits"),
    _step("dies"),
    _step("would_do_the_same_after_a_restart"),
)


def _lists_of(steps: st.SearchStrategy[Step]) -> st.SearchStrategy[list[Step]]:
    # Lists alone would be short, mostly.
    return st.integers(0, STEPS_MAX).flatmap(
        lambda length: st.lists(steps, min_size=length, max_size=length)
    )


histories = _lists_of(_steps)
_topics_away = st.sampled_from(("real", "other"))
histories_with_topics_away = _lists_of(
    st.one_of(
        _steps,
        _step("begins", _groups, st.integers(1, 3), _topics_away, _flaws, st.just(0)),
        _step("says", _which, _decisions, st.just("")),
        _step("goes_away", _topics_away),
        _step("is_back", _topics_away),
    )
)
