"""The process's environment, read as a whole and changed for a block."""

import os

import pytest

from halfbridge import environment

ADDED, CHANGED = "HALFBRIDGE_TEST_ADDED", "HALFBRIDGE_TEST_CHANGED"


def test_variables_are_a_copy_that_nobody_can_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings are made of one moment's variables."""
    monkeypatch.setenv(CHANGED, "before")
    then = environment.variables()
    monkeypatch.setenv(CHANGED, "after")
    assert (then[CHANGED], environment.variables()[CHANGED]) == ("before", "after")
    with pytest.raises(TypeError):
        then[CHANGED] = "mine"  # type: ignore[index]  # (what is refused)


def test_a_change_ends_with_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was there is put back, and what was not is gone, also after an error."""
    monkeypatch.setenv(CHANGED, "before")
    values = {ADDED: "1", CHANGED: "2"}
    with pytest.raises(ZeroDivisionError), environment.changed(values):
        assert {name: os.environ[name] for name in values} == values
        raise ZeroDivisionError
    assert (os.environ.get(ADDED), os.environ[CHANGED]) == (None, "before")
