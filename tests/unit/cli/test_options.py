"""Options made of a settings dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from halfbridge.cli.options import load_settings, settings_options
from halfbridge.kafka.errors import ConfigError
from halfbridge.serde.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One setting of each kind."""

    refusal = ConfigError

    count_max: int = setting(3, doc="How many.", minimum=1)
    leave: bool = setting(default=False, doc="Whether to leave.")
    topics: tuple[str, ...] = setting((), doc="Which topics.")
    kafka: Mapping[str, str] = setting({}, doc="More.", secret=True)


def _load(*words: str) -> Settings:
    found: list[Settings] = []

    @click.command()
    @settings_options(Settings)
    def command(**values: Any) -> None:
        found.append(load_settings(Settings, values))

    CliRunner().invoke(command, words, catch_exceptions=False)
    return found[0]


def test_defaults_where_nothing_is_given() -> None:
    """No flag, no variable, no file: the dataclass's defaults."""
    assert _load() == Settings()


def test_each_kind_of_flag() -> None:
    """Numbers, switches, repeated words and repeated pairs."""
    loaded = _load(
        *("--count-max", "5", "--leave", "--topics", "a", "--topics", "b"),
        *("--kafka", "sasl.password=a,b=c", "--kafka", "x=y"),
    )

    assert loaded == Settings(
        count_max=5, leave=True, topics=("a", "b"), kafka={"sasl.password": "a,b=c", "x": "y"}
    )


def test_flag_wins_over_variable_and_variable_over_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The strongest place that names a setting gives its value; --no-leave is a value too."""
    file = tmp_path / "settings.toml"
    file.write_text('count_max = 7\nleave = true\ntopics = ["file"]\n')
    monkeypatch.setenv("HALFBRIDGE_TOPICS", "env")

    loaded = _load("--config", str(file), "--no-leave")

    assert loaded == Settings(count_max=7, leave=False, topics=("env",))


def test_config_file_can_be_named_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HALFBRIDGE_CONFIG stands for --config."""
    file = tmp_path / "settings.toml"
    file.write_text("count_max = 7\n")
    monkeypatch.setenv("HALFBRIDGE_CONFIG", str(file))

    assert _load().count_max == 7


def test_unknown_key_in_the_file_names_the_nearest(tmp_path: Path) -> None:
    """A typo in the file is an error, not silence."""
    file = tmp_path / "settings.toml"
    file.write_text("cuont_max = 7\n")

    with pytest.raises(ConfigError, match="count_max"):
        _load("--config", str(file))
