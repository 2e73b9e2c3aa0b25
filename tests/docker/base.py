"""Prints a Docker image to build halfbridge's own on: python:3.12-slim, else one made here.

    python -m tests.docker.base

Where no registry can be reached, a Debian of this machine's release with its Python is put
together by debootstrap. It needs root and `apt-get install debootstrap`.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.docker.image import PULL_S_MAX, say, succeeds

OFFICIAL = "python:3.12-slim"
LOCAL = "halfbridge-test-base"
PACKAGES = ("ca-certificates", "python3", "python3-venv")
# A company's own certificate authority, where packages come through its proxy.
CERTIFICATES = Path("etc", "ssl", "certs", "ca-certificates.crt")
_DEBIAN_SITES = re.compile(r"^URIs:\s*(\S+)|^deb\s+(?:\[[^]]*\]\s*)?(\S+)", re.MULTILINE)


def main(arguments: list[str]) -> int:
    """Print the name of an image that is there when this returns 0."""
    if arguments:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    name = f"{LOCAL}:{codename()}"
    for each in (OFFICIAL, name):
        if succeeds("docker", "image", "inspect", each):
            return say(each)
    if succeeds("docker", "pull", "--quiet", OFFICIAL, timeout_s=PULL_S_MAX):
        return say(OFFICIAL)
    if shutil.which("debootstrap") is None:
        sys.stderr.write(f"{OFFICIAL} cannot be pulled: apt-get install debootstrap\n")
        return 1
    sys.stderr.write(f"{OFFICIAL} cannot be pulled: building {name}\n")
    build(name)
    return say(name)


def codename() -> str:
    """Return this machine's Debian release, for example bookworm."""
    text = Path("/etc/os-release").read_text("utf-8")
    found = re.search(r"^VERSION_CODENAME=(\w+)$", text, re.MULTILINE)
    return found[1] if found else sys.exit("not a Debian: /etc/os-release names no release")


def site() -> str:
    """Return where this machine's apt takes its packages from."""
    folder = Path("/etc/apt")
    for path in (folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))):
        if path.exists() and (found := _DEBIAN_SITES.search(path.read_text("utf-8"))):
            return found[1] or found[2]
    sys.exit("no package site in /etc/apt")


def build(name: str) -> None:
    """Make the image."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory, "root")
        what = ["--variant=minbase", f"--include={','.join(PACKAGES)}", codename()]
        command = ["debootstrap", *what, str(root), site()]
        subprocess.run(command, check=True, stdout=sys.stderr)
        for cache in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man"):
            shutil.rmtree(root / cache, ignore_errors=True)
        shutil.copy(Path("/", CERTIFICATES), root / CERTIFICATES)
        pack = ["tar", "--create", "--numeric-owner", f"--directory={root}", "."]
        settings = ["--change", f"ENV PIP_CERT=/{CERTIFICATES}"]
        with subprocess.Popen(pack, stdout=subprocess.PIPE) as packed:
            unpack = ["docker", "import", *settings, "-", name]
            subprocess.run(unpack, check=True, stdin=packed.stdout, stdout=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
