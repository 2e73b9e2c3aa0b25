"""Errors of the daemon and of operators' commands, with classes by who must act."""

import ast
import inspect
import pickle
import re
from pathlib import Path

import pytest

import halfbridge
from halfbridge.checker import errors
from halfbridge.checker.errors import (
    EXIT_ERROR,
    AdminError,
    AdminRequestError,
    AdminRetriableError,
    AdminSetupError,
    CheckerError,
    DamagedRecordError,
    InDoubtError,
)


@pytest.mark.parametrize(
    "kind", [AdminRequestError, AdminSetupError, AdminRetriableError, InDoubtError]
)
def test_each_kind_keeps_text_and_fields(kind: type[AdminError]) -> None:
    """Each error keeps class, text and fields, also after a pickle."""
    error = kind("do this", topics=["a", "b"], group="g", transaction_id="t")
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert type(each) is kind
        assert (str(each), each.topics, each.group) == ("do this", ("a", "b"), "g")
        assert (each.transaction_id, each.exit_code) == ("t", EXIT_ERROR)
    bare = kind("do this")
    assert (bare.topics, bare.group, bare.transaction_id) == ((), "", "")


def test_a_damaged_record_names_its_topic() -> None:
    """A DamagedRecordError has its topic in `topics`."""
    assert DamagedRecordError(("orders", 3), 7).topics == ("orders",)


def test_the_tree_names_each_error() -> None:
    """The docstring of the module lists each error class."""
    kinds = {
        name
        for name, value in inspect.getmembers(errors, inspect.isclass)
        if issubclass(value, CheckerError) and value is not CheckerError
    }
    assert set(re.findall(r"[├└]─ (\w+) +\w", errors.__doc__ or "")) == kinds


def _bare(node: ast.AST) -> ast.expr | None:
    """Return the function of a call, or the exception of a raise."""
    if isinstance(node, ast.Call):
        return node.func
    return node.exc if isinstance(node, ast.Raise) else None


def test_no_error_leaves_open_who_acts() -> None:
    """No code raises AdminError itself; only its subclasses are used."""
    assert halfbridge.__file__ is not None
    root = Path(halfbridge.__file__).parent
    made: dict[str, list[str]] = {"AdminError": [], "AdminSetupError": []}
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            found = _bare(node)
            name = getattr(found, "id", getattr(found, "attr", ""))
            if name in made:
                made[name].append(f"{path.relative_to(root)}:{found.lineno}")
    assert made["AdminError"] == []
    assert made["AdminSetupError"]  # the search finds uses
