"""Fixtures of the fault tests: a stage on the session's Kafka, or on a broker of its own."""

import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.shape import Layout
from halfbridge.checker.admin.topics import create_topics
from halfbridge.checker.config import CheckerConfig
from halfbridge.testkit.broker import EmbeddedBroker
from halfbridge.testkit.children import Children, Interrupts
from tests.faults import report
from tests.faults.scene import PATIENT, Scene
from tests.faults.stage import Stage
from tests.kit.cluster import ProxiedCluster

_PASSED: pytest.StashKey[bool] = pytest.StashKey()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note whether the test itself passed, for the report."""
    made = yield
    if made.when == "call":
        item.stash[_PASSED] = made.passed
    return made


@contextmanager
def _staged(
    request: pytest.FixtureRequest, servers: str, directory: Path | None = None, **more: Any
) -> Iterator[Stage]:
    """Yield a stage; afterwards its figures go to the report, if one is asked for."""
    directory = directory or request.getfixturevalue("tmp_path")
    prefix = request.getfixturevalue("topic_prefix")
    began = time.monotonic()
    with Children(directory, interrupts=Interrupts(), keep_directory=True) as children:
        stage = Stage(servers, prefix, directory, children, **more)
        yield stage
    path = os.environ.get("HALFBRIDGE_FAULTS_REPORT")
    if path and stage.load and _PASSED in request.node.stash:
        report.append(
            Path(path),
            request.node.name,
            stage,
            passed=request.node.stash[_PASSED],
            seconds=time.monotonic() - began,
        )
    stage.close()


@pytest.fixture
def stage(request: pytest.FixtureRequest, kafka_bootstrap_servers: str) -> Iterator[Stage]:
    """Yield a stage without topics; its processes have ended and its topics are gone afterwards."""
    with _staged(request, kafka_bootstrap_servers) as made:
        yield made


@pytest.fixture
def make_stage(request: pytest.FixtureRequest) -> Iterator[Callable[..., Stage]]:
    """Yield what starts a broker and makes a stage on it; both end after the test.

    Of several stages each needs a directory of its own.
    """
    with ExitStack() as stack:

        def made(broker: EmbeddedBroker, directory: Path | None = None) -> Stage:
            servers = stack.enter_context(broker).bootstrap_servers
            return stack.enter_context(_staged(request, servers, directory))

        yield made


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    """Yield a broker of the test's own, which it may stop, restart and kill."""
    from halfbridge.testkit.broker import EmbeddedBroker  # noqa: PLC0415 (needs Java)

    with EmbeddedBroker() as started:
        yield started


@pytest.fixture
def own_stage(request: pytest.FixtureRequest, broker: EmbeddedBroker) -> Iterator[Stage]:
    with _staged(request, broker.bootstrap_servers) as made:
        yield made


@pytest.fixture
def make_scene(
    request: pytest.FixtureRequest,
) -> Callable[[ProxiedCluster], AbstractContextManager[Scene]]:
    """Return what makes a scene on a cluster that is not started yet."""

    @contextmanager
    def made(cluster: ProxiedCluster) -> Iterator[Scene]:
        with cluster as started:
            nodes, servers = started.node_ids, started.bootstrap_servers
            more = {"direct": servers, "replicas": len(nodes)}
            with _staged(request, started.proxied_servers, **more) as stage:
                yield Scene(started, stage)
                # Also after a failed test, processes must end in order.
                started.proxy.heal()
                for node in nodes:
                    started.node(node).resume()

    return made


@pytest.fixture
def three(
    make_scene: Callable[[ProxiedCluster], AbstractContextManager[Scene]], tmp_path: Path
) -> Iterator[Scene]:
    """Yield a scene on three brokers of its own, with the proxy in front of them.

    Their logs stay when the test fails: they tell who broke a promise, and nothing else does.
    """
    from tests.kit.cluster import ProxiedCluster  # noqa: PLC0415 (needs Java)

    cluster = ProxiedCluster(3, properties=PATIENT, directory=tmp_path / "brokers")
    with make_scene(cluster) as scene:
        yield scene


@pytest.fixture
def one(make_scene: Callable[[ProxiedCluster], AbstractContextManager[Scene]]) -> Iterator[Scene]:
    """Yield a scene on one broker of its own, with the proxy in front of it."""
    from tests.kit.cluster import ProxiedCluster  # noqa: PLC0415 (needs Java)

    with make_scene(ProxiedCluster(1)) as scene:
        yield scene


@pytest.fixture
def make_config(topic_prefix: str) -> Callable[..., CheckerConfig]:
    """Return what makes topics on a cluster behind a proxy: a daemon's settings, not its process.

    Clients with these settings pass the proxy. Producer groups are given by name.
    """

    def made(cluster: ProxiedCluster, *producer_groups: str) -> CheckerConfig:
        config = CheckerConfig(bootstrap_servers=cluster.proxied_servers, topic_prefix=topic_prefix)
        layout = Layout(partitions=1, replication_factor=1, producer_groups=producer_groups)
        create_topics(Cluster(cluster.bootstrap_servers), config.names, layout)
        return config

    return made
