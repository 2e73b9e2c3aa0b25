"""halfbridge.django in processes that fork, without a database and without Kafka."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A parent makes a producer and a fence before it forks, as with --preload of gunicorn.
FORKING = """
import os
from django.test.utils import override_settings
from tests.sql.django_shop import ready
from halfbridge.django.process import member

given = {"default": {"bootstrap_servers": "127.0.0.1:1", "producer_group": "shop"}}
with override_settings(HALFBRIDGE=given):
    parent = member(None)
    before = parent.producer, parent.made_fence().engine
    child = os.fork()
    if not child:
        mine = member(None)
        after = mine.producer, mine.made_fence().engine
        kept = parent.producer is before[0]
        os._exit(0 if kept and after[0] is not before[0] and after[1] is not before[1] else 3)
    _, status = os.waitpid(child, 0)
    assert member(None) is parent
raise SystemExit(os.waitstatus_to_exitcode(status))
"""


def test_a_child_has_a_producer_and_connections_of_its_own() -> None:
    """A child makes new ones, and the parent keeps its own."""
    ran = subprocess.run(
        [sys.executable, "-c", FORKING], cwd=ROOT, check=False, timeout=60, capture_output=True
    )
    assert ran.returncode == 0, ran.stderr.decode()


def test_only_the_app_imports_django() -> None:
    """A service without Django imports halfbridge and halfbridge.sql; Django may be missing."""
    code = (
        "import sys; sys.modules['django'] = None\n"
        "import halfbridge, halfbridge.sql, halfbridge.sql.fence, halfbridge.sql.inbox\n"
        "import halfbridge.django"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
