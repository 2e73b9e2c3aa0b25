"""The command line: one clear line for each mistake, and nothing imported that is not used."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from halfbridge import __version__
from halfbridge.checker.errors import AdminError, SlotError, SlotTakenError
from halfbridge.cli import COMMANDS, LazyGroup, cli
from halfbridge.kafka.errors import BridgeError, ConfigError

NOWHERE = "localhost:1"


def _invoke(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "halfbridge", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def _one_line(text: str) -> str:
    assert text.count("\n") == 1
    return text.strip()


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("HALFBRIDGE_"):
            monkeypatch.delenv(name)


def test_a_group_with_an_internal_name_is_refused() -> None:
    """It would be asked in the daemon's own consumer group."""
    result = _invoke("topics", "create", "--producer-group", "RMQ_SYS_TRANS")

    assert result.exit_code != 0
    assert "RMQ_SYS_TRANS: a producer group's name must not hold RMQ_SYS_" in result.output


def test_help_lists_every_command() -> None:
    """--help shows all of them, with a line each."""
    result = _invoke("--help")

    assert result.exit_code == 0
    for name, text in COMMANDS.items():
        assert name in result.output
        assert text in result.output


def test_help_imports_neither_kafka_nor_metrics() -> None:
    """The command starts fast: heavy modules wait until they are used."""
    code = (
        "import sys; from halfbridge.cli import cli;"
        "cli.main(['--help'], standalone_mode=False);"
        "sys.exit(bool({'confluent_kafka', 'prometheus_client', 'rich'} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_version() -> None:
    """--version names the program and its version."""
    result = _invoke("--version")

    assert (result.exit_code, result.output) == (0, f"halfbridge, version {__version__}\n")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["chekcer"], "did you mean 'checker'?"),
        (["checker", "rnu"], "rnu"),
        (["topics", "create", "--partitions", "0"], "--partitions"),
        (["topics", "create", "--grow"], "--grow needs --partitions"),
        (["checker", "run", "--nothing"], "--nothing"),
        (["checker", "init"], "--partition"),
        (
            ["checker", "init", "--partition", "0", "--accept-duplicates", "--skip-undelivered"],
            "choose one of",
        ),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(words: list[str], named: str) -> None:
    """The line names what is wrong and where help is."""
    result = _invoke(*words)

    assert result.exit_code == 2
    line = _one_line(result.stderr)
    assert named in line
    assert "--help" in line


@pytest.mark.parametrize(
    ("words", "environment", "named"),
    [
        (["--workers", "many"], {}, ["workers", "'many'", "--workers", "from 1 to 64"]),
        ([], {"HALFBRIDGE_CHECK_COUNT_MAX": "x"}, ["HALFBRIDGE_CHECK_COUNT_MAX", "'x'"]),
        (["--check-interval-ms", "900000"], {}, ["check_interval_ms", "check_backoff_ms_max"]),
        (["--kafka", "acks=0"], {}, ["acks"]),
        (["--policy-file", "/absent.toml"], {}, ["policy_file", "/absent.toml"]),
        (["--config", "/absent.toml"], {}, ["/absent.toml"]),
    ],
)
def test_wrong_configuration_is_one_line_and_status_2(
    words: list[str],
    environment: dict[str, str],
    named: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The line names the setting, the value and where it came from."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    result = _invoke("checker", "run", *words)

    assert result.exit_code == 2
    line = _one_line(result.stderr)
    for text in named:
        assert text in line


@pytest.mark.parametrize(
    ("words", "environment", "named"),
    [
        (["checker", "run", "--check-interval-ms", "900000"], {}, "from --check-interval-ms"),
        (["checker", "run", "--kafka", "acks=0"], {}, "from --kafka"),
        (["topics", "create", "--topic-prefix", "RMQ_SYS_"], {}, "from --topic-prefix"),
        (
            ["checker", "run"],
            {"HALFBRIDGE_CHECK_INTERVAL_MS": "900000"},
            "from HALFBRIDGE_CHECK_INTERVAL_MS",
        ),
        (["checker", "run", "--policy-file", "/absent.toml"], {}, "--policy-file"),
        (["checker", "run", "--config", "/absent.toml"], {}, "--config"),
        (
            ["relay", "run", "--url", "sqlite:///x", "--producer-group", "g"],
            {},
            "set --bootstrap-servers or HALFBRIDGE_BOOTSTRAP_SERVERS",
        ),
    ],
)
def test_the_error_of_a_flag_names_the_flag(
    words: list[str],
    environment: dict[str, str],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the value was refused for its sense, and where a flag is missing."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    result = _invoke(*words)
    assert result.exit_code == 2
    assert named in _one_line(result.stderr)


@pytest.mark.parametrize("words", [[], ["topics"], ["checker"], ["fence"]])
def test_a_group_without_a_command_prints_its_help(words: list[str]) -> None:
    """On standard output, as --help does, and that is no failure."""
    result = _invoke(*words)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == _invoke(*words, "--help").stdout
    assert "\nCommands:\n" in result.stdout


def test_every_setting_of_the_daemon_is_a_flag() -> None:
    """`checker run --help` names each flag and each environment variable."""
    from halfbridge.checker.config import CheckerConfig  # noqa: PLC0415 (only here)
    from halfbridge.serde.settings import describe  # noqa: PLC0415 (only here)

    output = "".join(_invoke("checker", "run", "--help").output.split())

    for each in describe(CheckerConfig):
        assert each.flag in output
        assert each.environment in output


def test_unreachable_broker_is_one_line_and_status_1() -> None:
    """A real process says which address did not answer, without a traceback."""
    done = _run(["topics", "check", "--bootstrap-servers", NOWHERE])

    assert done.returncode == 1
    assert NOWHERE in _one_line(done.stderr)
    assert done.stdout == ""


def test_debug_shows_the_traceback_wherever_it_stands() -> None:
    """--debug behind the command works as well as before it."""
    done = _run(["checker", "run", "--workers", "x", "--debug"])

    assert done.returncode == 2
    assert "Traceback" in done.stderr


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError(field="f", value="v", origin="o", allowed="a"), 2),
        (SlotError("no slot"), 2),
        (SlotTakenError("another one has it"), 3),
        (AdminError("no\nluck"), 1),
        (BridgeError("no luck"), 1),
        (RuntimeError("a bug"), 1),
        (click.ClickException("no luck"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_have_their_exit_status(
    error: BaseException, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Configuration 2, an operator must act 3, interrupted 130, else 1; always one line."""

    @click.command()
    def broker() -> None:
        raise error

    monkeypatch.setattr(LazyGroup, "get_command", lambda *_: broker)

    result = _invoke("broker")

    assert result.exit_code == status
    _one_line(result.stderr.lstrip())  # click ends the line of a terminal's ^C first


def _run_main(before: str, *words: str) -> subprocess.CompletedProcess[str]:
    program = (
        f"import sys, threading\nfrom halfbridge import cli\n{before}\n"
        f"sys.argv = {['halfbridge', *words]!r}\ncli.main()\n"
    )
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )


def test_a_command_is_over_when_it_has_ended() -> None:
    """A thread of a client that is not well does not hold up the end of the process."""
    done = _run_main("threading.Thread(target=threading.Event().wait).start()", "--version")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip().endswith(__version__)


@pytest.mark.parametrize(
    ("code", "status", "told"),
    [("None", 0, ""), ("7", 7, ""), ("'set SHOP_URL first'", 1, "set SHOP_URL first\n")],
)
def test_a_users_module_may_end_the_command(code: str, status: int, told: str) -> None:
    """What it says when it does so is printed, and its exit status kept."""
    done = _run_main(
        f"cli.cli.add_command(cli.click.Command('x', callback=lambda: sys.exit({code})))\n"
        "cli.COMMANDS['x'] = ''\n"
        "cli.cli.get_command = lambda ctx, name: cli.cli.commands[name]",
        "x",
    )

    assert (done.returncode, done.stderr) == (status, told)


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("halfbridge che", ["plain,checker"]),
        ("halfbridge topics cr", ["plain,create"]),
        ("halfbridge topics create --boot", ["plain,--bootstrap-servers"]),
    ],
)
def test_a_shell_completes_commands_and_flags(typed: str, completed: list[str]) -> None:
    """By the protocol of click, which the line of docs/start/install.md asks for."""
    asked = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    done = _complete("bash_complete", **asked)
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, completed, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(shell: str) -> None:
    """As docs/start/install.md has it evaluated."""
    done = _complete(f"{shell}_source")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"_HALFBRIDGE_COMPLETE={shell}_complete" in done.stdout
    page = Path(__file__).parents[3].joinpath("docs", "start", "install.md").read_text("utf-8")
    assert f"_HALFBRIDGE_COMPLETE={shell}_source halfbridge" in page


def _complete(instruction: str, **environ: str) -> subprocess.CompletedProcess[str]:
    halfbridge = Path(sys.executable).with_name("halfbridge")
    return subprocess.run(
        [halfbridge],
        env={**os.environ, **environ, "_HALFBRIDGE_COMPLETE": instruction},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
