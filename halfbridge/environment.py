"""The process's environment: the library reads it here, commands in `halfbridge.cli`.

Variables of settings are named by the classes of the settings, and all others here.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VARIABLES = os.environ

# Either name turns prometheus_client's multiprocess mode on.
PROMETHEUS_MULTIPROCESS = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")
OTEL_TRACES_EXPORTER = "OTEL_TRACES_EXPORTER"


def variables() -> Mapping[str, str]:
    """Return all variables as they are now, read-only; later changes of the process's are not seen.

    An entry point, a command or a public constructor, calls this once and makes settings of it.
    """
    return MappingProxyType(dict(os.environ))


@contextmanager
def changed(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the process for the time of a block."""
    before = {name: VARIABLES.get(name) for name in variables}
    VARIABLES.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del VARIABLES[name]
            else:
                VARIABLES[name] = value
