"""Which transaction a refused kafka_txn is blamed on: the one that stands in it alone."""

from __future__ import annotations

from typing import Any, cast

import pytest

from checker.blame import Blame
from checker.failures import KafkaTxnFailedError
from checker.routes import Routes
from serde.topics import TopicNames
from tests.playbook import UNLIMITED, Playbook, Step, commit, half, junk_half, restart, unread

LIMIT_MAX = 1_000
ROUNDS = 50


def _rounds_until_blamed(beside: list[Step]) -> int:
    """Have the broker refuse A, naming nothing, while B and `beside` come in each round."""
    routes = Routes(0)
    routes.update({"real": 1}, 0)
    blame = Blame(TopicNames(), routes, cast("Any", None), limit_max=LIMIT_MAX)
    book = Playbook() >> unread(half("A"), commit("A"))
    for number in range(ROUNDS):
        book >> unread(half(f"B{number}"), commit(f"B{number}"), *beside)
        book.reader.read()
        while True:
            limit = blame.limit(0)
            plan = book.ledger.plan(book.now_ms, records_max=limit, size_bytes_max=UNLIMITED)
            if not plan.records:
                break
            (refused,) = [one for one in plan.deliveries if one.transaction_id == "A"] or [None]
            if refused is not None:
                blame.failed(KafkaTxnFailedError("invalid", permanent=True), {0: plan}, 0)
                if routes.refusal(refused):
                    return number
                restart(book)
                break
            book.plan = plan
            book.commit()
            blame.succeeded({0: plan})
    return ROUNDS


@pytest.mark.parametrize("junk", [0, 1, 30])
def test_dead_letters_do_not_hide_a_refused_transaction(junk: int) -> None:
    """They are written before it, and prove nothing of it: batches stay as small as they were."""
    assert _rounds_until_blamed([junk_half()] * junk) < 10


def test_deliveries_make_the_batches_larger_again() -> None:
    """Twice as large each time, so that a refused transaction costs its pair little."""
    blame = Blame(TopicNames(), Routes(0), cast("Any", None), limit_max=LIMIT_MAX)
    book = Playbook() >> half("A") >> half("B") >> commit("A") >> commit("B")
    book.take_plan()
    blame.failed(KafkaTxnFailedError("invalid", permanent=True), {0: book.plan}, 0)
    limits = [blame.limit(0)]
    while limits[-1] < LIMIT_MAX:
        blame.succeeded({0: book.plan})
        limits.append(blame.limit(0))
    assert limits == [125, 250, 500, 1000]
