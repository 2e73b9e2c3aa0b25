"""What `halfbridge fence respond` makes of options and file, before it speaks to Kafka."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from halfbridge.cli import cli
from halfbridge.cli.fence import GROUPS_MAX, FenceSettings, planned

SERVERS = "127.0.0.1:1"
OPTIONS = {"url": None, "name": "halfbridge_fence", "schema": None, "config_file": None}
TWO = """
bootstrap_servers = "kafka:9092"

[kafka]
"security.protocol" = "SSL"

[[fence]]
producer_group = "order-service"
url = "sqlite:///orders.db"

[[fence]]
producer_group = "billing-service"
name = "billing_fence"
schema = "bills"
"""


def run(*words: str) -> Result:
    """Run `halfbridge fence respond` in an environment without settings."""
    variables = ("DATABASE_URL", "PRODUCER_GROUP", "BOOTSTRAP_SERVERS", "CONFIG")
    runner = CliRunner(env={f"HALFBRIDGE_{each}": None for each in variables})
    return runner.invoke(cli, ["fence", "respond", *words])


def file_of(directory: Path, text: str) -> Path:
    path = directory / "respond.toml"
    path.write_text(text, "utf-8")
    return path


def test_one_group_comes_from_options_and_environment() -> None:
    """As every setting of a client does."""
    environ = {"HALFBRIDGE_PRODUCER_GROUP": "order-service"}
    values = {**OPTIONS, "url": "sqlite:///orders.db", "bootstrap_servers": SERVERS}
    ((config, settings),) = planned(values, environ)
    assert (config.producer_group, config.bootstrap_servers) == ("order-service", SERVERS)
    assert settings == FenceSettings(producer_group="order-service", url="sqlite:///orders.db")


def test_several_groups_share_the_files_settings(tmp_path: Path) -> None:
    """Each has its own database or that of --url; a group of the environment is none of them."""
    values = {**OPTIONS, "url": "sqlite:///shared.db", "config_file": file_of(tmp_path, TWO)}
    found = planned(values, {"HALFBRIDGE_PRODUCER_GROUP": "other"})
    assert [config.producer_group for config, _ in found] == ["order-service", "billing-service"]
    assert {config.bootstrap_servers for config, _ in found} == {"kafka:9092"}
    assert {config.kafka["security.protocol"] for config, _ in found} == {"SSL"}
    assert [settings for _, settings in found] == [
        FenceSettings(producer_group="order-service", url="sqlite:///orders.db"),
        FenceSettings(
            producer_group="billing-service",
            url="sqlite:///shared.db",
            name="billing_fence",
            schema="bills",
        ),
    ]


GROUP = ("--producer-group", "order-service")
KAFKA = ("--bootstrap-servers", SERVERS)


@pytest.mark.parametrize(
    ("words", "status", "named"),
    [
        ((*GROUP, *KAFKA), 2, "Missing option '--url' (or [[fence]] tables in --config)"),
        ((*KAFKA, "--url", "sqlite://"), 2, "producer_group"),
        ((*GROUP, "--url", "sqlite://"), 2, "bootstrap_servers"),
        ((*GROUP, *KAFKA, "--url", "no url"), 2, "from url of order-service"),
        ((*GROUP, *KAFKA, "--url", "sqlite://"), 1, "`halfbridge fence create` creates it"),
        ((*GROUP, *KAFKA, "--url", "sqlite://", "--config", "gone"), 2, "a readable TOML file"),
    ],
)
def test_wrong_options_are_one_line(words: tuple[str, ...], status: int, named: str) -> None:
    """Status 2 for what was given, 1 for what the database says; Kafka is not asked."""
    result = run(*words)
    assert (result.exit_code, result.stdout) == (status, "")
    (line,) = result.stderr.splitlines()
    assert named in line


def table(group: str = "a", url: str = "sqlite://") -> str:
    return f'[[fence]]\nproducer_group = "{group}"\nurl = "{url}"\n'


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("fence = 3", "1 to 16 tables [[fence]], each with producer_group and url"),
        ("fence = []", "0 tables"),
        ("".join(table(f"g{n}") for n in range(GROUPS_MAX + 1)), "more need another process"),
        (table() + table("b") + table(), "each group in one table"),
        (table(""), "producer_group: an empty or missing name"),
        (table(url=""), "no URL for a"),
        (table("no group"), "letters, digits"),
        (table() + 'nmae = "x"', "did you mean name?"),
        (table() + "name = 3", "name: 3 (from key name of the TOML file)"),
        (table() + "url_ = 1", "did you mean url?"),
        ('producer_group = "b"\n' + table(), "not both"),
        ("topic_prefx = ''\n" + table(), "did you mean topic_prefix?"),
        (table(url="nothing:secret:8"), "from url of a"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str, named: str) -> None:
    """It names the key; a URL, which may hold a password, is not repeated."""
    result = run(*KAFKA, "--config", str(file_of(tmp_path, text)))
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert named in line
    assert "secret" not in line


def test_options_of_one_group_do_not_go_with_tables(tmp_path: Path) -> None:
    """Which group was meant is not guessed."""
    result = run(*KAFKA, *GROUP, "--config", str(file_of(tmp_path, table())))
    assert result.exit_code == 2
    assert "not both" in result.stderr
