"""What to install for a package that is missing."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli

from halfbridge.extras import EXTRAS, install, needs

ROOT = Path(__file__).parents[2]
PROJECT = tomli.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
MAINTAINERS = {"dev", "docs"}
# Functions of which each argument after the first is a package; `install` has no other.
CALLS = {"install", "needs", "require"}


def requirements(extra: str) -> set[str]:
    """Return the names of the distributions that an extra brings."""
    named = (re.match(r"[\w-]+", each) for each in PROJECT["optional-dependencies"][extra])
    return {each.group().lower() for each in named if each}


def packages_named() -> Iterator[str]:
    """Yield every package that a text of the product names."""
    for path in (ROOT / "halfbridge").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                name = node.func.id
                if name in CALLS:
                    given = node.args if name == "install" else node.args[1:]
                    yield from (each.value for each in given if isinstance(each, ast.Constant))


@pytest.mark.parametrize("extra", sorted({*PROJECT["optional-dependencies"]} - MAINTAINERS))
def test_each_extra_is_named_for_packages_that_it_brings(extra: str) -> None:
    """The command of an error brings the package that is missing."""
    packages = [package for package, named in EXTRAS.items() if named == extra]
    assert packages
    for package in packages:
        assert any(each.startswith(package) for each in requirements(extra)), package
        assert install(package) == f"pip install 'halfbridge[{extra}]'"


def test_every_text_is_made_here() -> None:
    """No other module writes such a command, no text names an unknown package, no name is idle."""
    written = [
        path.name
        for path in (ROOT / "halfbridge").rglob("*.py")
        if "halfbridge[" in path.read_text("utf-8")
    ]
    assert written == ["extras.py"]
    assert {*EXTRAS.values()} <= {*PROJECT["optional-dependencies"]}
    assert {*packages_named()} <= {*EXTRAS}


def test_the_text_says_what_to_install() -> None:
    """Who needs it, the package, and the command."""
    said = "Fence needs the package sqlalchemy: pip install 'halfbridge[sql]'"
    assert needs("Fence", "sqlalchemy") == said
