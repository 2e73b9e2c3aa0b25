"""Loads the names of a package when they are used first, so that importing the package is cheap."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from halfbridge.extras import EXTRAS, needs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType


def lazy_names(
    package: str, modules: Sequence[str], names: Sequence[str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package, whose names (`__all__`) are in `modules`.

    The modules are searched in order, so those that import much come last.
    """
    namespace = vars(sys.modules[package])

    def get(name: str) -> object:
        if name in names:
            for module in modules:
                value = vars(_imported(module, name)).get(name)
                if getattr(value, "__module__", None) == module:
                    namespace[name] = value
                    return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def listed() -> list[str]:
        return sorted({*namespace, *names})

    return get, listed


def _imported(module: str, wanted: str) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        raise ModuleNotFoundError(needs(wanted, error.name), name=error.name) from error
