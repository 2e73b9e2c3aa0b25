"""tests/README.md covers every module of the product: its unit test, or a line that names tests."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.test_tidy import LINKED, MIRRORED, PACKAGES, ROOT

TESTS = ROOT / "tests"
HEADING = "## Modules without a unit test of their own"
# A module in a text, or the beginning of its name; `halfbridge` alone is the command.
NAME = re.compile(r"\b(?:halfbridge|tests)(?:\.\w+)+(?:\.$)?|^halfbridge$")
# They pass names and calls on, and hold nothing else.
LEFT_OUT = ("__init__.py", "__main__.py")


def modules() -> set[str]:
    """Return every module of the product, by its path in the repository."""
    found = (
        path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py")
    )
    return {
        path.as_posix()
        for path in found
        if path.name not in LEFT_OUT and not {*LINKED} & {*path.parts[1:2]}
    }


def with_unit_test() -> set[str]:
    """Return the modules that a unit test mirrors."""
    return {
        f"{source}/{path.parent.relative_to(TESTS / 'unit' / folder) / name}".replace("/./", "/")
        for folder, source in MIRRORED.items()
        for path in (TESTS / "unit" / folder).rglob("test_*.py")
        for name in [f"{path.stem.removeprefix('test_')}.py"]
    }


def lines() -> list[tuple[list[str], list[str]]]:
    """Return the modules and the tests of each line of the table."""
    _, _, section = (TESTS / "README.md").read_text("utf-8").partition(HEADING)
    rows = re.findall(r"^\| (`.+`) \| (`.+`) \|$", section, re.MULTILINE)
    return [
        (re.findall(r"`([^`]+)`", left), re.findall(r"`([^`]+)`", right)) for left, right in rows
    ]


@cache
def _names(path: Path) -> frozenset[Path]:
    """Return the modules that a module imports anywhere in it, or names as a program to run."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= set(NAME.findall(_text(node.value)))
    return frozenset(each for name in names for each in _files_of(name))


def _text(constant: str) -> str:
    """Return a text of a test; in place of a file's name, of a file at the top, what is in it."""
    is_name = constant.endswith(".yml") and (ROOT / constant).is_file()
    return (ROOT / constant).read_text("utf-8") if is_name else constant


def _files_of(name: str) -> list[Path]:
    parts = name.split(".")
    if parts[0] == "halfbridge" and parts[1:2] and parts[1] in LINKED:
        del parts[0]
    base = ROOT.joinpath(*parts)
    if name.endswith("."):  # the beginning of a name that is made at run time: any module there
        return sorted(base.glob("*.py"))
    places = (base.with_suffix(".py"), base / "__init__.py", base / "__main__.py")
    return [each for each in places if each.is_file()]


def reached(test: Path) -> set[str]:
    """Return what a test imports or starts, and what that does in turn."""
    fixtures = [each / "conftest.py" for each in test.parents if TESTS in (each, *each.parents)]
    seen, todo = set[Path](), [test, *(each for each in fixtures if each.is_file())]
    while todo:
        path = todo.pop()
        if path not in seen:
            seen.add(path)
            todo += _names(path)
    return {path.relative_to(ROOT).as_posix() for path in seen}


def test_every_module_has_a_unit_test_or_a_line() -> None:
    """Whoever changes a module finds its tests."""
    told = {module for left, _ in lines() for module in left}
    assert modules() - with_unit_test() - told == set()


def test_no_line_is_stale() -> None:
    """The module is there, has no unit test of its own by now, and stands in one line."""
    told = [module for left, _ in lines() for module in left]
    assert set(told) - (modules() - with_unit_test()) == set()
    assert len(told) == len(set(told))


@pytest.mark.parametrize(("told", "tests"), lines(), ids=lambda each: each[0])
def test_the_tests_of_a_line_reach_its_modules(told: list[str], tests: list[str]) -> None:
    """They are there, and import or start the modules; which lines they run is not looked at."""
    for test in tests:
        assert set(told) - reached(TESTS / test) == set(), test
