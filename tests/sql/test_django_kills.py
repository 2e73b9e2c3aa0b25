"""Django services that die at each step of a block, on a real Kafka: messages match rows."""

import pytest

from tests.faults.stage import Stage, seed_of_run
from tests.sql.databases import Database
from tests.sql.fence_kills_scene import FenceScene
from tests.sql.fence_plan import Kind
from tests.sql.test_fence_kills import BLOCKS_BEFORE_DEATH, durable

pytestmark = [pytest.mark.broker, pytest.mark.long]
__all__ = ["durable"]


@pytest.mark.parametrize("durable", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("kind", [Kind.AROUND, Kind.TAKEN])
def test_a_block_of_django_at_each_step(stage: Stage, durable: Database, kind: Kind) -> None:
    """After a kill at each step, work, marks and messages of a block are all committed, or none."""
    flags = ("--only", kind.name)
    scene = FenceScene(stage, durable, seed=seed_of_run(), flags=flags, service="django_service.py")
    scene.kill_at_each_step(BLOCKS_BEFORE_DEATH)
