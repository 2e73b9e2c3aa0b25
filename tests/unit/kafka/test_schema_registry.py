"""Schemas of a registry; the registry is a server of the test's."""

import pytest

from halfbridge.kafka.schema_registry import VERSIONS_MAX, SchemaRegistry
from tests.kit.schema_registry import registry_of

pytestmark = pytest.mark.process


def test_versions_of_a_subject_come_oldest_first() -> None:
    """The newest of them where there are many; none of a subject that is not there."""
    ids = list(range(100, 100 + VERSIONS_MAX + 2))
    schemas = {number: {"schema": "{}"} for number in ids}
    with registry_of(schemas, {"orders-value": ids}) as server:
        registry = SchemaRegistry(server.url())
        assert [each["id"] for each in registry.versions("orders-value")] == ids[2:]
        assert registry.versions("nothing-value") == []
