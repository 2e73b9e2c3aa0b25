"""Calls in threads: limits, and answers that several requests share."""

import asyncio
import threading
from typing import Any

import pytest

from halfbridge.web.guards import Refusal
from halfbridge.web.work import CALLS_MAX, KEPT_MAX, Answers, Work

LIMIT_S = 60.0


async def _returned(work: Work) -> None:
    while work._calls:  # noqa: ASYNC110  (the product counts, and tells nobody)
        await asyncio.sleep(0.001)


def _run(test: Any) -> Any:
    return asyncio.run(test)


def test_a_call_that_takes_too_long_is_given_up() -> None:
    """The request is answered in time; the call still counts until it returns."""

    async def go() -> None:
        work, gate = Work(), threading.Event()
        with pytest.raises(Refusal) as caught:
            await work.run(gate.wait, within_s=0.01)
        assert caught.value.status == 504
        assert work._calls == 1
        gate.set()
        assert await work.run(lambda: 7) == 7
        await asyncio.wait_for(_returned(work), LIMIT_S)
        work.close()

    _run(go())


def test_calls_beyond_the_limit_are_refused_at_once() -> None:
    """Requests that wait for a Kafka that does not answer take bounded memory."""

    async def go() -> None:
        work, gate = Work(), threading.Event()
        waiting = [asyncio.create_task(work.run(gate.wait)) for _ in range(CALLS_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(Refusal) as caught:
            await work.run(lambda: 1)
        assert (caught.value.status, "Retry-After" in caught.value.headers) == (503, True)
        gate.set()
        await asyncio.gather(*waiting)
        work.close()

    _run(go())


def test_one_call_answers_all_who_ask_meanwhile() -> None:
    """Twenty browsers cost one reading of the log, and a young answer costs none."""

    async def go() -> None:
        work, calls = Work(), []
        answers = Answers(work)

        def call() -> int:
            calls.append(1)
            return len(calls)

        asked = [answers.get(("a",), call, fresh_s=60) for _ in range(20)]
        found = await asyncio.gather(*asked)
        again = await answers.get(("a",), call, fresh_s=60)
        other = await answers.get(("b",), call, fresh_s=60)
        assert [each.value for each in found if each] == [1] * 20
        assert again is not None
        assert other is not None
        assert (again.value, other.value) == (1, 2)
        answers.forget()
        anew = await answers.get(("a",), call, fresh_s=60)
        assert anew is not None
        assert anew.value == 3
        work.close()

    _run(go())


def test_a_slow_call_is_not_waited_for() -> None:
    """At first there is no answer; later the one of before, while a new one is made."""

    async def go() -> None:
        work, gate = Work(), threading.Event()
        answers = Answers(work)

        async def ask(wait_s: float) -> Any:
            return await answers.get(("a",), gate.wait, fresh_s=0, old_s=60, wait_s=wait_s)

        assert await ask(0.01) is None
        gate.set()
        first = await ask(10)
        gate.clear()
        second = await ask(0.01)
        assert first.value is second.value is True
        assert second.age_s >= first.age_s
        gate.set()
        await ask(10)
        work.close()

    _run(go())


def test_a_failure_is_raised_and_kept_for_a_while() -> None:
    """A Kafka that does not answer is not asked anew by each request."""

    async def go() -> None:
        work, calls = Work(), []
        answers = Answers(work)

        def fail() -> int:
            calls.append(1)
            raise ValueError("no")

        for _ in range(3):
            with pytest.raises(ValueError, match="no"):
                await answers.get(("a",), fail, fresh_s=60)
        assert len(calls) == 1
        with pytest.raises(ValueError, match="no"):
            await answers.get(("a",), fail, fresh_s=0)
        assert len(calls) == 2
        work.close()

    _run(go())


def test_keys_without_end_take_bounded_memory() -> None:
    """A stranger who asks for another id each time makes room by his own answers."""

    async def go() -> None:
        work = Work()
        answers = Answers(work)
        for each in range(KEPT_MAX + 5):
            await answers.get((each,), lambda: 1, fresh_s=60)
        assert len(answers._places) <= KEPT_MAX
        work.close()

    _run(go())


def test_what_was_read_before_a_change_is_not_shown_after_it() -> None:
    """A reading that was under way when somebody changed something is for those who waited."""

    async def go() -> None:
        work, begun, gate, calls = Work(), threading.Event(), threading.Event(), []
        answers = Answers(work)

        def call() -> int:
            calls.append(1)
            number = len(calls)
            begun.set()
            assert number > 1 or gate.wait(10)
            return number

        before = asyncio.create_task(answers.get(("a",), call, fresh_s=60))
        await asyncio.to_thread(begun.wait, 10)
        answers.forget()
        after = await answers.get(("a",), call, fresh_s=60)
        gate.set()
        first, again = await before, await answers.get(("a",), call, fresh_s=60)
        assert [each.value for each in (first, after, again) if each] == [1, 2, 2]
        work.close()

    _run(go())
