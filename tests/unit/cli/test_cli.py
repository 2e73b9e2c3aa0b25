"""The command line: one clear line for each mistake, and nothing imported that is not used."""

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from time import monotonic
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from halfbridge import __version__
from halfbridge.checker.admin import cluster
from halfbridge.checker.admin.doctor import gather
from halfbridge.checker.admin.words import shown_time
from halfbridge.checker.errors import AdminError, SlotError, SlotTakenError
from halfbridge.cli import COMMANDS, LazyGroup, cli
from halfbridge.cli.options import load_settings, moment_ms, settings_options, span_ms
from halfbridge.cli.table import CELL_CHARS_MAX, table
from halfbridge.kafka.errors import BridgeError, ConfigError
from halfbridge.serde.settings import setting
from halfbridge.testkit.ports import HOST
from tests.kit.sockets import Server

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


@pytest.mark.process
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
    words: list[str], environment: dict[str, str], named: list[str], monkeypatch: pytest.MonkeyPatch
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
    words: list[str], environment: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch
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


@pytest.mark.process
def test_unreachable_broker_is_one_line_and_status_1() -> None:
    """A real process says which address did not answer, without a traceback."""
    done = _run(["topics", "check", "--bootstrap-servers", NOWHERE])

    assert done.returncode == 1
    assert NOWHERE in _one_line(done.stderr)
    assert done.stdout == ""


@pytest.mark.process
def test_debug_shows_the_traceback_at_any_place_of_the_option() -> None:
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


@pytest.mark.process
def test_a_command_is_over_when_it_has_ended() -> None:
    """A thread of a client that is not well does not hold up the end of the process."""
    done = _run_main("threading.Thread(target=threading.Event().wait).start()", "--version")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip().endswith(__version__)


@pytest.mark.process
@pytest.mark.parametrize(
    ("code", "status", "reported"),
    [("None", 0, ""), ("7", 7, ""), ("'set SHOP_URL first'", 1, "set SHOP_URL first\n")],
)
def test_a_users_module_may_end_the_command(code: str, status: int, reported: str) -> None:
    """What it says when it does so is printed, and its exit status kept."""
    done = _run_main(
        f"cli.cli.add_command(cli.click.Command('x', callback=lambda: sys.exit({code})))\n"
        "cli.COMMANDS['x'] = ''\n"
        "cli.cli.get_command = lambda ctx, name: cli.cli.commands[name]",
        "x",
    )

    assert (done.returncode, done.stderr) == (status, reported)


@pytest.mark.process
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


@pytest.mark.process
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


# --- options made of a settings dataclass --------------------------------------------------


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


# --- tables for people ---------------------------------------------------------------------


def test_columns_are_as_wide_as_their_contents() -> None:
    """The last column is not padded."""
    assert list(table(("A", "LONG", "C"), [(1, "x", "end"), ("three", "", "")])) == [
        "A      LONG  C",
        "1      x     end",
        "three",
    ]


def test_a_cell_stays_in_its_line_and_is_cut() -> None:
    """A stranger's text makes no line and no column of its own; the last column is shown whole."""
    long = "x" * 100
    _, line = table(("A", "B"), [("\x1b[31m\n" + long, long)])
    first, _, last = line.partition("  ")
    assert first.startswith("\\x1b[31m\\nx")
    assert len(first) == CELL_CHARS_MAX
    assert last == long


def test_without_rows_there_are_headings() -> None:
    """One line."""
    assert list(table(("A", "B"), [])) == ["A  B"]


# --- times on the command line, and as people read them ------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("250ms", 250), ("90s", 90_000), ("15m", 900_000), ("2h", 7_200_000), ("7d", 604_800_000)],
)
def test_spans_have_a_unit(text: str, wanted: int) -> None:
    """A number and one unit."""
    assert span_ms(text) == wanted


@pytest.mark.parametrize("text", ["", "7", "7 d", "-7d", "1h30m", "1e3s", "٣s", "9" * 20 + "s"])
def test_what_is_no_span_is_refused(text: str) -> None:
    """The error shows what is allowed."""
    with pytest.raises(click.BadParameter, match="allowed: 90s, 15m, 2h, 7d"):
        span_ms(text)


def test_moments_are_spans_before_now_or_times() -> None:
    """A time without a zone is UTC."""
    now_ms = datetime.now(timezone.utc).timestamp() * 1000
    assert abs(moment_ms("2h") - (now_ms - 7_200_000)) < 60_000
    assert moment_ms("2023-11-14T22:13:20Z") == 1_700_000_000_000
    assert moment_ms("2023-11-14T23:13:20+01:00") == 1_700_000_000_000
    assert moment_ms("2023-11-14 22:13:20") == 1_700_000_000_000
    with pytest.raises(click.BadParameter, match="UTC without a zone"):
        moment_ms("yesterday")


def test_times_are_shown_in_utc() -> None:
    """Whatever number a stranger wrote."""
    assert shown_time(1_700_000_000_123) == "2023-11-14 22:13:20Z"
    assert [shown_time(each) for each in (0, -1, 1 << 62)] == ["-", "-", "-"]


# --- commands whose standard streams are closed, or on a full disk -------------------------

_HALFBRIDGE = f"{shlex.quote(sys.executable)} -m halfbridge"

# The client connects to a port that nobody serves; the limit is for a loaded machine.
_RUN_S_MAX = 120.0


def run(words: str, redirections: str) -> subprocess.CompletedProcess[str]:
    """Run a command under a shell, with the redirections."""
    return subprocess.run(
        ["bash", "-c", f"exec {_HALFBRIDGE} {words} {redirections}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=_RUN_S_MAX,
    )


@pytest.mark.more
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_runs_with_its_streams_closed(name: str) -> None:
    """All three closed, or output alone: the exit status is the usual one, and no traceback."""
    assert run(f"{name} --help", "<&- >&- 2>&-").returncode == 0
    done = run(f"{name} --help", ">&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.more
def test_a_refusal_keeps_its_status_and_its_line() -> None:
    """The error is printed without standard output; the status is right without standard error."""
    done = run("no-such-command", ">&-")
    assert done.returncode == 2
    assert done.stderr.startswith("halfbridge: no such command")
    for redirections in ("2>&-", "2>/dev/full", ">&- 2>&-"):
        assert run("no-such-command", redirections).returncode == 2


@pytest.mark.more
def test_a_command_that_meets_kafka_runs_with_standard_output_closed() -> None:
    """No socket of the Kafka client takes the closed stream's number."""
    done = run("doctor --bootstrap-servers 127.0.0.1:1", ">&-")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.more
@pytest.mark.parametrize("words", ["--help", "--version", "tx list --help"])
def test_a_full_disk_is_named(words: str) -> None:
    """Output that cannot be written is an error of one line."""
    done = run(words, ">/dev/full")
    assert done.returncode == 1
    assert done.stderr == ("halfbridge: cannot write to standard output: No space left on device\n")


# --- operators' commands where no broker answers: each says so soon, with the address ------

ID = "0199f0c0a5c87a0b8f3e2d1c0b9a8801"
WHY = ("--reason", "test", "--yes")
NEED_A_BROKER = {
    "tx list": (),
    "tx find": ("--key", "order-42"),
    "tx show": (ID,),
    "tx explain": (ID,),
    "tx commit": (ID, "--messages", "1", *WHY),
    "tx rollback": (ID, *WHY),
    "groups list": (),
    "groups show": ("order-service",),
    "dead list": (),
    "dead show": (ID,),
    "dead resume": ("--all", *WHY),
    "dead redeliver": ("--all", *WHY),
    "dead export": (),
    "dead purge": WHY,
    "topics check": (),
    "topics create": (),
    "topics create orders": ("--type", "transaction"),
    "transactions show": (),
    "transactions reject": ("--reason", "test"),
    "transactions accept": ("--reason", "test"),
    "audit-log list": (),
    "checker init": ("--partition", "0"),
}

# What a command may take beside the wait for a first answer. Each other wait is 8 s or more.
BESIDE_S = 6.0
WAIT_S = 0.3


def _read(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


@pytest.fixture(params=["closed", "silent"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """A port that refuses connections, and one that accepts them and answers nothing."""
    if request.param == "silent":
        with closing(Server(_read)) as server:
            yield f"{HOST}:{server.port}"
        return
    with socket.socket() as bound:  # bound and not listening: nobody else gets the port
        bound.bind((HOST, 0))
        yield f"{HOST}:{bound.getsockname()[1]}"


@pytest.mark.process
@pytest.mark.parametrize("command", NEED_A_BROKER)
def test_a_command_says_that_no_broker_answers(
    command: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line with the address and what to do, after one wait for a first answer."""
    monkeypatch.setattr(cluster, "FIRST_ANSWER_S", WAIT_S)
    words = [*command.split(), *NEED_A_BROKER[command], "--bootstrap-servers", address]
    began = monotonic()

    done = CliRunner().invoke(cli, words)

    assert monotonic() - began < WAIT_S + BESIDE_S
    assert done.exit_code == 1, done.output
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"halfbridge: no broker answers at {address} within 0.3 s")
    assert line.endswith("check that the brokers run, and --bootstrap-servers and --kafka")
    assert ("Connection refused" in line) is _refuses(address)


def _refuses(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as probe:
        return bool(probe.connect_ex((host, int(port))))


@pytest.mark.process
def test_doctor_says_that_no_broker_answers(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the finding `unreachable`, and asks nothing else."""
    monkeypatch.setattr(gather, "FIRST_ANSWER_S", WAIT_S)
    began = monotonic()

    done = CliRunner().invoke(cli, ["doctor", "--bootstrap-servers", address])

    assert monotonic() - began < WAIT_S + BESIDE_S
    assert f"unreachable: no Kafka broker answers at {address}" in done.stdout
    assert ("Connection refused" in done.stdout) is _refuses(address)


def test_the_wait_for_a_first_answer_is_short() -> None:
    """With the start of the interpreter it is less than 5 s."""
    assert cluster.FIRST_ANSWER_S <= 3.0
