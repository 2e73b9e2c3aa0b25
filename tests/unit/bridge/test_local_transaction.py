"""What a local transaction says, and what is decided by it."""

from __future__ import annotations

from typing import Any

import pytest

from halfbridge.bridge.local_transaction import Ran, decided, run
from halfbridge.bridge.message import Message, Resolution
from halfbridge.bridge.message_transaction import roll_back_quietly
from halfbridge.kafka.errors import OutcomeUnknownError

MESSAGE = Message("orders", value=b"v")


class _Transaction:
    """Notes what it is told to do; fails with `error` where there is one."""

    id = "0" * 32

    def __init__(self, error: Exception | None = None) -> None:
        self.told: list[str] = []
        self._error = error

    def commit(self, timeout: float | None) -> str:
        """Note it."""
        return self._do("commit", timeout)

    def rollback(self, timeout: float | None) -> str:
        """Note it."""
        return self._do("rollback", timeout)

    def _do(self, what: str, timeout: float | None) -> str:
        assert timeout == 3.0
        self.told.append(what)
        if self._error is not None:
            raise self._error
        return what


def _decided(tx: Any, ran: Ran) -> Any:
    receipt: Any = None
    return decided(tx, receipt, ran, 3.0)


@pytest.mark.parametrize("resolution", Resolution)
def test_its_word_is_carried_out(resolution: Resolution) -> None:
    """UNKNOWN decides nothing."""
    tx = _Transaction()
    result = _decided(tx, run(lambda _message, said: said, MESSAGE, resolution))
    wanted = {Resolution.COMMIT: ["commit"], Resolution.ROLLBACK: ["rollback"]}
    assert tx.told == wanted.get(resolution, [])
    assert (result.resolution, result.remark, result.error) == (resolution, "", None)


@pytest.mark.parametrize("answer", [True, "COMMIT", 7])
def test_what_is_neither_a_resolution_nor_nothing_is_an_error(answer: object) -> None:
    """A caller that returns True means something: guessing what would be worse than asking."""
    said: Any = answer
    with pytest.raises(
        TypeError, match=f"returned {answer!r}.*Resolution or None.*nothing was dec"
    ):
        run(lambda _message, said: said, MESSAGE, said)


def test_what_is_raised_or_says_nothing_is_unknown() -> None:
    """The local transaction may have committed all the same."""
    failed = run(lambda *_: {}["row"], MESSAGE, None)
    assert (failed.resolution, type(failed.error)) == (Resolution.UNKNOWN, KeyError)
    silent: Any = run(lambda *_: None, MESSAGE, None)  # type: ignore[arg-type,return-value]
    assert (silent.resolution, silent.error) == (Resolution.UNKNOWN, None)
    assert "returned None" in silent.remark


def test_a_decision_in_doubt_is_told_and_not_raised(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is raised once the local transaction has run."""
    error = OutcomeUnknownError("in doubt", transaction_id="0" * 32)
    result = _decided(_Transaction(error), Ran(Resolution.COMMIT))
    assert (result.decision, result.decision_error) == (None, error)
    failing: Any = _Transaction(error)
    roll_back_quietly(failing, 3.0)
    assert "a check settles it" in caplog.text
