"""docker-compose.yml as a file: pinned, on loopback only, and one `up` suffices."""

import re
import subprocess
from typing import Any

import pytest
import yaml

from halfbridge import __version__
from halfbridge.testkit.containers import IMAGE
from halfbridge.testkit.properties import as_environment, for_tests, internal_topics
from tests.deploy.promql import ROOT
from tests.tools import compose

pytestmark = pytest.mark.feature

COMPOSE = ROOT / "docker-compose.yml"
PROFILES = ("connect", "redpanda", "observability", "demo")
# Of no use there: nobody shares, nothing is compacted, one broker needs no defaults of replicas.
NOT_IN_COMPOSE = ("share.", "log.cleaner.", "default.replication", "min.insync")


def services() -> dict[str, dict[str, Any]]:
    """Return the services, variables replaced by their defaults."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", COMPOSE.read_text("utf-8"))
    found: dict[str, dict[str, Any]] = yaml.safe_load(text)["services"]
    return found


def test_every_image_is_pinned() -> None:
    """A tag with a version; ours is the version of the package, Kafka's the one that is tested."""
    for name, service in services().items():
        _, _, tag = service["image"].rpartition(":")
        assert re.match(r"v?\d+\.\d+\.\d+(\.Final)?$", tag), name
    assert services()["checker"]["image"] == f"halfbridge:{__version__}"
    assert services()["kafka"]["image"] == IMAGE


def test_no_port_is_open_to_others() -> None:
    """Each is bound to the loopback address, and no two services want the same one."""
    ports = [port for service in services().values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports), ports
    outside = [port.split(":")[1] for port in ports]
    assert len(set(outside)) == len(outside)


def test_one_up_suffices() -> None:
    """Who waits for a healthy service waits for one that says so; the checker, for its topics."""
    found = services()
    for service in found.values():
        needs = service.get("depends_on", {})
        for other, what in needs.items() if isinstance(needs, dict) else ():
            if what["condition"] == "service_healthy":
                assert found[other]["healthcheck"]["test"], other
            # A service that is on no profile, or on the same one, is there when it is waited for.
            assert set(found[other].get("profiles", ())) <= set(service.get("profiles", ()))
    for prefix in ("", "redpanda-"):
        needed = found[f"{prefix}checker"]["depends_on"][f"{prefix}topics"]
        assert needed["condition"] == "service_completed_successfully"


def test_the_broker_is_set_up_as_the_tests_are() -> None:
    """What the testkit gives its brokers, this one has too."""
    wanted = {
        name: value
        for name, value in {**internal_topics(1), **for_tests(1)}.items()
        if not name.startswith(NOT_IN_COMPOSE)
    }
    given = services()["kafka"]["environment"]
    assert as_environment(wanted).items() <= given.items()


def test_what_is_mounted_exists() -> None:
    """Files of this repository that containers read are there, and read only."""
    mounts = [
        mount
        for service in services().values()
        for mount in service.get("volumes", ())
        if mount.startswith(".")
    ]
    assert mounts
    for mount in mounts:
        source, _, mode = mount.split(":")
        assert (ROOT / source).is_dir(), source
        assert mode == "ro"


def test_compose_reads_it() -> None:
    """docker-compose 1.29 and compose v2, whichever is here, with all profiles."""
    profiles = [word for name in PROFILES for word in ("--profile", name)]
    for command in compose():
        done = subprocess.run(
            [*command, "--file", str(COMPOSE), *profiles, "config", "--services"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert set(done.stdout.split()) == services().keys()
