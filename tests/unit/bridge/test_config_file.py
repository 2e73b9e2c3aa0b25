"""TOML files of settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfbridge.bridge.config import read_toml
from halfbridge.kafka.errors import BridgeError, ConfigError


def test_read_toml(tmp_path: Path) -> None:
    """A TOML file is read; a missing or broken one is a ConfigError that names it."""
    path = tmp_path / "halfbridge.toml"
    path.write_text('count = 3\n[kafka]\n"client.id" = "x"\n')
    assert read_toml(path) == {"count": 3, "kafka": {"client.id": "x"}}
    path.write_text("count = ")
    with pytest.raises(ConfigError, match=r"halfbridge\.toml"):
        read_toml(path)
    with pytest.raises(ConfigError, match="absent") as caught:
        read_toml(tmp_path / "absent.toml")
    assert isinstance(caught.value, BridgeError)
