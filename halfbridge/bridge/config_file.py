"""Reads the TOML files of halfbridge's settings and policies."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from halfbridge.kafka.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_toml(path: Path) -> Mapping[str, object]:
    """Return the table in a TOML file.

    Raises:
        ConfigError: the file is missing, unreadable or not TOML; the user corrects it.
    """
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except (OSError, ValueError) as error:
        raise ConfigError(
            field="config",
            value=repr(str(path)),
            origin="--config or HALFBRIDGE_CONFIG",
            allowed=f"a readable TOML file; this one: {error}",
        ) from error
