"""What a user's type checker knows of an installed halfbridge."""

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """\
from halfbridge import Message, TransactionProducer
from halfbridge.sql import Fence
from halfbridge.testkit.memory import Step

def place(producer: TransactionProducer, fence: Fence) -> None:
    reveal_type(producer)
    reveal_type(fence)
    reveal_type(Step.AFTER_HALF_ACK)
    with fence.transaction(producer) as (tx, connection):
        reveal_type(Message("orders", key=b"1", value=b"2"))
        reveal_type(tx.send)
"""
WRONG = """\
from halfbridge import Message, Resolution, TransactionProducer

Message("orders", key="a text", value=b"2")
TransactionProducer(bootstrap_server="b:1", checker=lambda _: Resolution.COMMIT)
TransactionProducer(linger_ms="5", checker=lambda _: Resolution.COMMIT)
"""


def check(python: Path, directory: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run mypy --strict on a program whose packages are those of `python`."""
    (directory / "program.py").write_text(program, "utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python)]
    return subprocess.run(
        [*command, "--cache-dir", str(directory / "cache"), "program.py"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )


def test_mypy_sees_the_types_of_the_wheel(tmp_path: Path) -> None:
    """In a new environment with nothing but the wheel: no Any for the public classes."""
    wheels = tmp_path / "dist"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    subprocess.run(
        [*pip, "--no-deps", "--no-build-isolation", "--no-index", "-w", str(wheels), str(ROOT)],
        check=True,
    )
    (wheel,) = wheels.glob("halfbridge-*.whl")
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    (site,) = environment.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    done = check(environment / "bin" / "python", tmp_path, PROGRAM)
    assert done.returncode == 0, done.stdout + done.stderr
    for known in ("producer.TransactionProducer", "fence.Fence", "Message", "Step", "SendReceipt"):
        assert known in done.stdout
    revealed = [line for line in done.stdout.splitlines() if "Revealed type" in line]
    assert not [line for line in revealed if '"Any"' in line or "-> Any" in line]
    done = check(environment / "bin" / "python", tmp_path, WRONG)
    assert 'Argument "key" to "Message" has incompatible type "str"' in done.stdout
    assert 'Unexpected keyword argument "bootstrap_server"' in done.stdout
    assert (
        'Argument "linger_ms" to "TransactionProducer" has incompatible type "str"' in done.stdout
    )
