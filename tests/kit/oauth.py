"""Tokens that nobody signed, for brokers whose SASL/OAUTHBEARER takes such ones.

`function` is what `oauth_cb` names; processes of their own import it as well.
"""

import json
from base64 import urlsafe_b64encode
from pathlib import Path

from halfbridge.kafka.threads import SystemClock
from halfbridge.testkit.broker import EmbeddedBroker
from tests.faults.listener import Listener

LIFE_S = 10
FUNCTION = "tests.kit.oauth:function"
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanisms": "OAUTHBEARER",
    "oauth_cb": FUNCTION,
}
_JAAS = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    ' unsecuredLoginStringClaim_sub="broker";'
)


class Giver:
    """What `function` does in this process.

    Attributes:
        works: False while each call raises.
        given: How many tokens it gave.
        refused: How many calls raised.
    """

    works = True
    given = 0
    refused = 0


GIVER = Giver()


def broker_of(way: Listener, directory: Path) -> EmbeddedBroker:
    """Return a broker, not started, that demands tokens at this listener.

    It ends a connection whose token has expired, unless the client has sent a new one.
    """
    sasl = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "oauthbearer.sasl.jaas.config": _JAAS,
        "oauthbearer.connections.max.reauth.ms": "3600000",  # a token's end ends it earlier
    }
    return way.broker(directory, sasl)


def now_s() -> float:
    """Return the wall clock's time, by which brokers judge tokens."""
    return SystemClock.time_ms() / 1000


def token(*, life_s: float) -> str:
    """Return a token of the principal `halfbridge` that is good for so long."""
    now = int(now_s())
    claims = {"sub": "halfbridge", "iat": now, "exp": now + life_s}
    parts = ({"alg": "none", "typ": "JWT"}, claims)
    texts = (urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts)
    return ".".join(text.rstrip("=") for text in texts) + "."


def function(_config: str) -> tuple[str, float]:
    """Return a token of ten seconds; a second less for the client, which counts parts of them."""
    if not GIVER.works:
        GIVER.refused += 1
        raise ConnectionError("no token today")
    GIVER.given += 1
    return token(life_s=LIFE_S), now_s() + LIFE_S - 1
