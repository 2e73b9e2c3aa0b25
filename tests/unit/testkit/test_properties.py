"""server.properties of one node and of three."""

from __future__ import annotations

from pathlib import Path

from halfbridge.testkit.properties import (
    NodeAddress,
    as_environment,
    internal_topics,
    node_properties,
    render,
)

ONE = NodeAddress(1, 1001, 2001)
TWO = NodeAddress(2, 1002, 2002)


def test_every_node_knows_all_voters() -> None:
    """The quorum is the same text everywhere; the listeners are the node's own."""
    made = node_properties(TWO, [ONE, TWO], data_directory=Path("/d"), overrides={})
    assert made["controller.quorum.voters"] == "1@127.0.0.1:2001,2@127.0.0.1:2002"
    assert made["listeners"] == "PLAINTEXT://127.0.0.1:1002,CONTROLLER://127.0.0.1:2002"
    assert made["advertised.listeners"] == "PLAINTEXT://127.0.0.1:1002"
    assert (made["node.id"], made["log.dirs"]) == ("2", "/d")


def test_a_proxied_node_has_a_listener_that_names_the_proxy() -> None:
    """Clients that come by the proxy are sent back to it; brokers talk to each other directly."""
    proxied = NodeAddress(1, 1001, 2001, client_port=3001, proxy_port=4001)
    made = node_properties(proxied, [proxied], data_directory=Path("/d"), overrides={})
    assert made["listeners"].endswith(",CLIENT://127.0.0.1:3001")
    advertised = "PLAINTEXT://127.0.0.1:1001,CLIENT://127.0.0.1:4001"
    assert made["advertised.listeners"] == advertised
    assert made["listener.security.protocol.map"].endswith(",CLIENT:PLAINTEXT")
    assert proxied.bootstrap == "127.0.0.1:1001"
    assert proxied.proxied == "127.0.0.1:4001"


def test_overrides_win() -> None:
    """What the test asks for replaces our own choice."""
    overrides = {"auto.create.topics.enable": "true"}
    made = node_properties(ONE, [ONE], data_directory=Path("/d"), overrides=overrides)
    assert made["auto.create.topics.enable"] == "true"


def test_three_nodes_hold_three_replicas_with_two_in_sync() -> None:
    """One node more than needed may die; a single node has one replica of everything."""
    three, one = internal_topics(3), internal_topics(1)
    for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
        assert three[f"{topic}.replication.factor"] == "3"
        assert one[f"{topic}.replication.factor"] == "1"
    assert (three["transaction.state.log.min.isr"], one["transaction.state.log.min.isr"]) == (
        "2",
        "1",
    )


def test_rendering_escapes_what_java_would_eat() -> None:
    """A backslash or a line end in a value arrives as it was given."""
    assert render({"a": "x\\y", "b": "1\n2"}) == "a=x\\\\y\nb=1\\n2\n"


def test_environment_of_the_image() -> None:
    """Dots, underscores and hyphens come back as they were: the image's own rule, reversed."""
    assert as_environment({"a.b_c-d": "v"}) == {"KAFKA_A_B__C___D": "v"}
