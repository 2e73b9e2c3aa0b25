"""Any content of a configuration file, variable or flag gives settings or one clear error."""

from __future__ import annotations

import os
import random
import string
from typing import TYPE_CHECKING

import click
import pytest

from halfbridge.bridge.config import BridgeConfig, read_toml
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.policy import Policy, load_policy
from halfbridge.cli.checker import checker
from halfbridge.cli.options import load_settings
from halfbridge.kafka.errors import ConfigError
from halfbridge.serde.settings import describe, load
from halfbridge.serde.topics import TopicNames
from tests.property.mutants import mutant

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.more

SEED = int(os.environ.get("HALFBRIDGE_FUZZ_SEED") or random.SystemRandom().randrange(10**9))
FEW = 1_500
MANY = int(os.environ.get("HALFBRIDGE_FUZZ_INPUTS") or 1_000_000) // 20

_CONFIGS = [
    b'bootstrap_servers = "one:9092"\ntopic_prefix = "a."\nworkers = 2\n[kafka]\n"ssl.ca" = "x"\n',
    b"check_interval_ms = 30_000\ncheck_count_max = 15\ntransaction_age_ms_max = 259200000\n",
    b'policy_file = "/etc/policy.toml"\nmetrics_port = 9400\nbatch_bytes_max = 1e6\n',
    b"check_rate_max = true\nledger_bytes_max = [1, 2]\n[[kafka]]\na = 1\n",
]
_POLICIES = [
    b'default = "deny"\n[groups]\n"orders-service" = ["orders", "invoices-*"]\n',
    b'default = "allow"\n[groups]\nshop = []\n"caf\xc3\xa9" = ["*", "a.b-c_*"]\n',
    b"groups = 3\n",
]
_WORDS = (
    *("", " ", "0", "-1", "1", "99999999999999999999", "1e3", "nan", "inf", "0x10", "true", "\x00"),
    *("one:9092", "::", "a=b", "=", "a=", "é", "../..", "/dev/null", "None", "1_000", "٣"),
)


@pytest.fixture(autouse=True)
def _no_settings_of_this_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("HALFBRIDGE_")]:
        monkeypatch.delenv(name)


def _or_refusal(call: Callable[[], object]) -> object:
    """Return what `call` returns, or its refusal; anything else it raises is a defect."""
    try:
        return call()
    except (ConfigError, click.UsageError) as error:
        refusal = error
    said = refusal.format_message() if isinstance(refusal, click.UsageError) else refusal.allowed
    assert said
    return refusal


def _word(draw: random.Random) -> str:
    if draw.random() < 0.7:
        return draw.choice(_WORDS)
    return "".join(draw.choices(string.printable, k=draw.randrange(12)))


def _fuzz_config_files(draw: random.Random, path: Path) -> None:
    path.write_bytes(mutant(draw, _CONFIGS))
    cls = draw.choice((BridgeConfig, CheckerConfig))
    got = _or_refusal(lambda: load(cls, flags={}, environ={}, file=read_toml(path)))
    assert isinstance(got, (cls, ConfigError))


def _fuzz_policy_files(draw: random.Random, path: Path) -> None:
    path.write_bytes(mutant(draw, _POLICIES))
    got = _or_refusal(lambda: load_policy(path, names=TopicNames("a.")))
    if isinstance(got, Policy):
        assert not got.allows("orders-service", "__consumer_offsets")
        got.allows("shop", "orders")
    else:
        assert str(path) in str(got)


def _fuzz_variables(draw: random.Random, _: Path) -> None:
    cls = draw.choice((BridgeConfig, CheckerConfig))
    named = [each.environment for each in describe(cls)]
    environ = {draw.choice(named): _word(draw) for _ in range(draw.randrange(1, 5))}
    got = _or_refusal(lambda: load(cls, flags={}, environ=environ, file={}))
    assert isinstance(got, (cls, ConfigError))


def _fuzz_flags(draw: random.Random, _: Path) -> None:
    run = checker.commands["run"]
    flags = [each.flag for each in describe(CheckerConfig)]
    words = []
    for _each in range(draw.randrange(1, 5)):
        words += [draw.choice((*flags, "--nonsense", "-x", "--"))]
        words += [_word(draw) for _more in range(draw.randrange(3))]

    def parsed() -> CheckerConfig:
        with run.make_context("run", words) as context:
            return load_settings(CheckerConfig, context.params)

    assert isinstance(_or_refusal(parsed), (CheckerConfig, ConfigError, click.UsageError))


_TARGETS = {
    "configuration files": _fuzz_config_files,
    "policy files": _fuzz_policy_files,
    "variables": _fuzz_variables,
    "flags": _fuzz_flags,
}


def _fuzz(target: str, count: int, path: Path) -> None:
    print(f"HALFBRIDGE_FUZZ_SEED={SEED}")
    draw = random.Random(f"{target}:{SEED}")
    for number in range(count):
        where = f"{target}, input {number}"
        try:
            _TARGETS[target](draw, path)
        except Exception as error:
            raise AssertionError(where) from error


@pytest.mark.parametrize("target", _TARGETS)
def test_damaged_settings(target: str, tmp_path: Path) -> None:
    """A part of the long run, in every run."""
    _fuzz(target, FEW, tmp_path / "file.toml")


@pytest.mark.long
@pytest.mark.parametrize("target", _TARGETS)
def test_many_damaged_settings(target: str, tmp_path: Path) -> None:
    """One in 20 of HALFBRIDGE_FUZZ_INPUTS, for each target."""
    _fuzz(target, MANY, tmp_path / "file.toml")
