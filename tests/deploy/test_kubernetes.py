"""The Kubernetes manifests, held to the published schemas and to what the daemon really does."""

import re
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from halfbridge import __version__
from halfbridge.bridge.config import read_toml
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.metrics import Metrics
from halfbridge.checker.process.http import make_app
from halfbridge.checker.process.supervisor import DRAIN_S
from halfbridge.checker.status import Health
from halfbridge.cli import cli
from halfbridge.cli.fence import planned
from halfbridge.serde.settings import load
from tests.deploy.promql import ROOT
from tests.tools import tool

pytestmark = pytest.mark.feature

MANIFESTS = ROOT / "deploy" / "kubernetes"
RESPOND = MANIFESTS / "respond" / "respond.yaml"
KUSTOMIZATION = MANIFESTS / "kustomization.yaml"
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
PARTITIONS_BY_DEFAULT = 4
# The oldest and the newest release that the schemas are taken from.
KUBERNETES = ("1.30", "1.37")


def manifests() -> dict[str, dict[str, Any]]:
    """Return every manifest by its kind."""
    names = yaml.safe_load(KUSTOMIZATION.read_text("utf-8"))["resources"]
    found = [yaml.safe_load((MANIFESTS / name).read_text("utf-8")) for name in names]
    return {each["kind"]: each for each in found}


def pod(kind: str) -> dict[str, Any]:
    """Return the pod's specification in a StatefulSet or Job."""
    spec: dict[str, Any] = manifests()[kind]["spec"]["template"]["spec"]
    return spec


def container(kind: str) -> dict[str, Any]:
    """Return its only container."""
    (only,) = pod(kind)["containers"]
    return dict(only)


def environ(kind: str) -> dict[str, str]:
    """Return the variables that a container gets, with a pod's name as Kubernetes fills it in."""
    data = manifests()["ConfigMap"]["data"]
    found = dict(data) if "envFrom" in container(kind) else {}
    for each in container(kind)["env"]:
        source = each.get("valueFrom", {})
        if "fieldRef" in source:
            assert source["fieldRef"]["fieldPath"] == "metadata.name"
            found[each["name"]] = f"{manifests()[kind]['metadata']['name']}-1"
        elif "configMapKeyRef" in source:
            found[each["name"]] = data[source["configMapKeyRef"]["key"]]
        else:
            found[each["name"]] = each["value"]
    return found


@pytest.mark.parametrize("version", KUBERNETES)
def test_every_manifest_keeps_to_the_schema(version: str) -> None:
    """Strictly: a field that Kubernetes does not know is an error."""
    for each in manifests().values():
        kubernetes_validate.validate(each, version, strict=True)


def test_a_field_that_does_not_exist_would_be_noticed() -> None:
    """The schemas are really looked at."""
    wrong = manifests()["StatefulSet"]
    wrong["spec"]["replica"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES[-1], strict=True)


def test_all_files_are_applied() -> None:
    """The kustomization names each manifest beside it."""
    named = set(yaml.safe_load(KUSTOMIZATION.read_text("utf-8"))["resources"])
    assert named == {each.name for each in MANIFESTS.glob("*.yaml")} - {KUSTOMIZATION.name}


def test_kubectl_builds_them() -> None:
    """What `kubectl apply -k` would send: each manifest, with our image."""
    kubectl = tool("kubectl", package="kubernetes-client")
    done = subprocess.run(
        [kubectl, "kustomize", str(MANIFESTS)], capture_output=True, text=True, check=True
    )
    built = list(yaml.safe_load_all(done.stdout))
    assert {each["kind"] for each in built} == manifests().keys()
    assert f"image: halfbridge:{__version__}" in done.stdout


def test_the_variables_are_settings(tmp_path: Path) -> None:
    """ConfigMap, Secret and environment make a configuration that the daemon takes; a slot each."""
    given = environ("StatefulSet")
    path = container("StatefulSet")["volumeMounts"][0]["mountPath"]
    assert given.pop("HALFBRIDGE_CONFIG") == f"{path}/halfbridge.toml"
    toml = tmp_path / "halfbridge.toml"
    toml.write_text(manifests()["Secret"]["stringData"]["halfbridge.toml"], "utf-8")
    config = load(CheckerConfig, flags={}, environ=given, file=read_toml(toml))
    assert config.slot == "halfbridge-checker-1"
    assert config.kafka == {"security.protocol": "PLAINTEXT"}
    known = {f"HALFBRIDGE_{name.upper()}" for name in CheckerConfig.__dataclass_fields__}
    assert given.keys() <= known


def test_the_commented_security_settings_are_right(tmp_path: Path) -> None:
    """Whoever takes the comment signs away has settings that the daemon takes."""
    text = manifests()["Secret"]["stringData"]["halfbridge.toml"]
    lines = [line for line in text.splitlines() if "PLAINTEXT" not in line]
    toml = tmp_path / "halfbridge.toml"
    toml.write_text("\n".join(line.removeprefix("# ") for line in lines), "utf-8")
    config = load(CheckerConfig, flags={}, environ={}, file=read_toml(toml))
    assert config.kafka["sasl.mechanism"] == "SCRAM-SHA-512"


@pytest.mark.parametrize("kind", ["StatefulSet", "Job"])
def test_the_commands_exist(kind: str) -> None:
    """Each container's arguments are a command with options that it has."""
    words = [word for word in container(kind)["args"] if word != "order-service"]
    group, command = words[:2]
    found = cli.get_command(None, group)
    (leaf,) = [each for name, each in found.commands.items() if name == command]
    options = {name for each in leaf.params for name in each.opts}
    assert set(words[2:]) <= options


def test_probes_ask_paths_that_are_served() -> None:
    """Liveness asks /livez, for no restart mends a stopped partition; readiness /readyz."""
    probes = container("StatefulSet")
    assert probes["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert probes["readinessProbe"]["httpGet"]["path"] == "/readyz"
    (port,) = probes["ports"]
    assert f"HALFBRIDGE_METRICS_PORT={port['containerPort']}" in DOCKERFILE
    for probe in ("livenessProbe", "readinessProbe"):
        assert probes[probe]["httpGet"]["port"] == port["name"]
    assert answer_at_start("/livez") == "200 OK"
    assert answer_at_start("/readyz") == "503 Service Unavailable"


def answer_at_start(path: str) -> str:
    """Return the status with which a daemon that has just started answers."""
    statuses: list[str] = []
    app: Any = make_app(Metrics().registry, Health)
    app({"PATH_INFO": path}, lambda status, _headers: statuses.append(status))
    (status,) = statuses
    return status


@pytest.mark.parametrize("kind", ["StatefulSet", "Job"])
def test_pods_have_no_rights(kind: str) -> None:
    """The user is the image's, not root; nothing can be written, gained or asked of Kubernetes."""
    user = re.findall(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)
    context = pod(kind)["securityContext"]
    assert [(str(context["runAsUser"]), str(context["runAsGroup"]))] == user
    assert context["runAsNonRoot"] is True
    assert container(kind)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod(kind)["automountServiceAccountToken"] is False


def test_what_selects_pods_finds_them() -> None:
    """Service and disruption budget mean the StatefulSet's pods; there is work for each pod."""
    found = manifests()
    workers = found["StatefulSet"]["spec"]
    labels = workers["template"]["metadata"]["labels"]
    assert found["Service"]["spec"]["selector"].items() <= labels.items()
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert workers["serviceName"] == found["Service"]["metadata"]["name"]
    assert workers["replicas"] <= PARTITIONS_BY_DEFAULT
    assert pod("StatefulSet")["terminationGracePeriodSeconds"] > DRAIN_S
    job = found["Job"]["spec"]["template"]["metadata"]["labels"]
    assert not found["Service"]["spec"]["selector"].items() <= job.items()


def test_topics_can_be_made_before_the_daemon_runs() -> None:
    """What docs/how-to/kubernetes.md applies first is all that the Job needs, and no worker."""
    selector = "app.kubernetes.io/component notin (checker)"
    assert selector in (ROOT / "docs" / "how-to" / "kubernetes.md").read_text("utf-8")
    of_checker = {
        kind
        for kind, each in manifests().items()
        if each["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "checker"
    }
    assert of_checker == {"StatefulSet", "Service", "PodDisruptionBudget"}


# --- the responder, which is applied alone ------------------------------------------------------


def responder() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the Secret and the Deployment of `halfbridge fence respond`."""
    secret, deployment = yaml.safe_load_all(RESPOND.read_text("utf-8"))
    return secret, deployment


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_responders_manifests_keep_to_the_schema(version: str) -> None:
    """Strictly, as all others do."""
    for each in responder():
        kubernetes_validate.validate(each, version, strict=True)


def test_the_responders_command_takes_its_secret(tmp_path: Path) -> None:
    """Arguments, mount and file fit each other and the command; a pod has no rights."""
    secret, deployment = responder()
    spec = deployment["spec"]["template"]["spec"]
    (made,) = spec["containers"]
    (mount,), (volume,) = made["volumeMounts"], spec["volumes"]
    assert (mount["name"], secret["metadata"]["name"]) == (
        volume["name"],
        volume["secret"]["secretName"],
    )
    (file,) = secret["stringData"]
    assert f"--config={mount['mountPath']}/{file}" in made["args"]
    toml = tmp_path / file
    toml.write_text(secret["stringData"][file], "utf-8")
    ((config, settings),) = planned({"url": None, "config_file": toml}, {})
    assert (config.producer_group, settings.name) == ("order-service", "halfbridge_fence")
    with pytest.raises(SystemExit) as ended:
        cli.main([*made["args"], "--help"], prog_name="halfbridge")
    assert ended.value.code == 0
    assert made["image"] == f"halfbridge:{__version__}"
    assert made["securityContext"] == container("StatefulSet")["securityContext"]
    assert spec["securityContext"] == pod("StatefulSet")["securityContext"]
    assert spec["automountServiceAccountToken"] is False


def test_the_responders_pods_are_found_and_probed() -> None:
    """By labels that no other pod has, and at the port that the command opens."""
    _, deployment = responder()
    spec = deployment["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels
    assert not manifests()["Service"]["spec"]["selector"].items() <= labels.items()
    (made,) = spec["template"]["spec"]["containers"]
    (port,) = made["ports"]
    assert f"--metrics-port={port['containerPort']}" in made["args"]
    asked = {name: made[name]["httpGet"] for name in ("livenessProbe", "readinessProbe")}
    assert asked == {
        "livenessProbe": {"path": "/livez", "port": port["name"]},
        "readinessProbe": {"path": "/readyz", "port": port["name"]},
    }
