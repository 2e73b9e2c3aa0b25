"""The process's environment: no other module reads it, except options of commands.

Entry points call this: commands, processes of ours, constructors that users call. They make frozen
settings of it, which they pass on. A contract of import-linter (pyproject.toml) names them all.
An option that a variable may set has click's `envvar=` (exception E-005 of DESIGN.md).
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def variables() -> Mapping[str, str]:
    """Return a read-only copy of all variables as they are now."""
    return MappingProxyType(dict(os.environ))


@contextmanager
def changed(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the process for the time of a block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
