"""Questions beside each other, with one deadline."""

from __future__ import annotations

from threading import Event
from time import monotonic
from typing import NoReturn

from halfbridge.checker.admin.doctor.gather import Questions
from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.errors import Code, KafkaFailure

TIMEOUT_S = 0.3


def refuse() -> NoReturn:
    """Answer as a broker that refuses."""
    raise KafkaFailure(Code.TOPIC_AUTHORIZATION_FAILED, "no")


def test_one_that_is_silent_holds_up_none() -> None:
    """Answers are there, refusals are told, and time-outs are as long as was said."""
    never = Event()
    questions = Questions(system_ports(), TIMEOUT_S)
    began = monotonic()
    for number in range(5):
        questions.ask(f"silent {number}", never.wait)
    questions.ask("answered", lambda: 7)
    questions.ask("refused", refuse)
    questions.wait()
    assert TIMEOUT_S <= monotonic() - began < 5 * TIMEOUT_S
    never.set()
    assert questions.answer("answered", 0) == 7
    assert questions.answer("silent 0", -1) == -1
    assert "no" in questions.silent["refused"]
    assert questions.silent["silent 4"] == "no answer within 0.3 s"
    assert "answered" not in questions.silent
