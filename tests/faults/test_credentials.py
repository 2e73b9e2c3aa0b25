"""The broker's certificate and the clients' tokens expire in mid run, and are renewed late."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from halfbridge.testkit.children import Child
from tests.faults.certificates import Authority
from tests.faults.listener import listener
from tests.faults.scene import HEALED_S
from tests.faults.stage import Daemon, Stage, seed_of_run
from tests.faults.tokens import TokenServer
from tests.kit.oauth import LIFE_S, LOGIN, broker_of
from tests.kit.waiting import until

MakeStage = Callable[..., Stage]

pytestmark = [pytest.mark.broker, pytest.mark.long]

_REFUSED = "certificate verify failed"  # the client says no more than that
# Twice the session (6 s): no member has a session from before.
_OUT_S = 12.0
_RENEWED = 12  # tokens for five processes, some with several clients: most have a second one
_TEN_MINUTES_S = 600.0


class _Load:
    """A daemon with two workers and two clients that come by another listener."""

    def __init__(self, stage: Stage, servers: str, kafka: dict[str, str]) -> None:
        flags = [word for item in kafka.items() for word in ("--kafka", "=".join(item))]
        flags += ["--bootstrap-servers", servers]
        seed = seed_of_run()
        self.stage = stage.make()
        self.daemon: Daemon = stage.daemon("--workers", "2", *flags)
        self._clients: list[Child] = stage.usual_clients(
            *flags, seed=seed, pipelined=150, blocking=60
        )
        # Addresses and paths of one machine are no part of what is published.
        stage.load[0] = f"checker run --workers 2 over {kafka['security.protocol']}"

    def stands_still(self) -> None:
        """See that nobody is let in, and that the daemon stays."""
        self.stage.await_standstill(_OUT_S)
        assert self.daemon.is_alive, self.daemon.log()

    def goes_on(self) -> None:
        """See that deliveries go on within the bound."""
        self.stage.recover(300, within_s=HEALED_S)

    def end_judged(self) -> None:
        """Let everything be decided, and have it judged."""
        self.stage.end_judged(self._clients)
        assert len(self.daemon.await_workers(2)) == 2
        assert self.stage.stop(self.daemon) == 0


def test_case_51_a_certificate_expires(tmp_path: Path, make_stage: MakeStage) -> None:
    """The broker comes back with an expired certificate: nobody connects, and the daemon says why.

    With a new one everything resumes.
    """
    authority = Authority(tmp_path / "certificates")
    way = listener(protocol="SSL")
    store = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(authority.sign())}
    broker = way.broker(tmp_path / "cluster", store)
    stage = make_stage(broker)
    trusted = str(authority.certificate)
    load = _Load(stage, way.servers, {"security.protocol": "SSL", "ssl.ca.location": trusted})
    stage.await_more(200)
    authority.sign(expired=True)
    broker.restart()
    stage.injected["certificate of the broker expired"] += 1
    load.stands_still()
    until("the daemon says why", lambda: _REFUSED in load.daemon.log(), within_s=HEALED_S)
    authority.sign()
    broker.restart()
    load.goes_on()
    load.end_judged()


def test_case_51_tokens_expire(tmp_path: Path, make_stage: MakeStage) -> None:
    """Tokens last for 10 s and are renewed under load; then nobody gives any for a while.

    The broker ends the connections of those whose token is over; with new ones they come back.
    """
    way = listener(protocol="SASL_PLAINTEXT")
    stage = make_stage(broker_of(way, tmp_path / "cluster"))
    with TokenServer(life_s=LIFE_S) as tokens:
        load = _Load(
            stage,
            way.servers,
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanisms": "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.token.endpoint.url": tokens.url,
                "sasl.oauthbearer.client.id": "halfbridge",
                "sasl.oauthbearer.client.secret": "secret",
            },
        )
        stage.await_more(200)
        first = tokens.given
        until("tokens are renewed", lambda: tokens.given >= first + _RENEWED)
        stage.await_more(200)
        tokens.works = False
        until("tokens are refused", lambda: tokens.refused)
        time.sleep(LIFE_S)  # until the last one has expired
        stage.injected["no new tokens until all have expired"] += 1
        load.stands_still()
        tokens.works = True
        load.goes_on()
        stage.injected["token renewed"] += tokens.given
        load.end_judged()


def test_tokens_of_a_function_for_ten_minutes(tmp_path: Path, make_stage: MakeStage) -> None:
    """Each process has sixty tokens of ten seconds by `oauth_cb`; nothing is lost or held up."""
    way = listener(protocol="SASL_PLAINTEXT")
    stage = make_stage(broker_of(way, tmp_path / "cluster"))
    load = _Load(stage, way.servers, LOGIN)
    stage.await_more(200)
    until_s = time.monotonic() + _TEN_MINUTES_S
    while time.monotonic() < until_s:
        stage.await_more(200, within_s=HEALED_S)
    load.end_judged()
