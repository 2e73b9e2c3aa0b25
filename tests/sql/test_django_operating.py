"""`manage.py` and the admin of a Django project, in processes of their own, on a real broker."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from halfbridge.testkit.children import Child, Children, Interrupts
from tests.integration.installation import GROUP, Installation
from tests.kit.waiting import until
from tests.sql.databases import Database

pytestmark = [
    pytest.mark.broker,
    pytest.mark.parametrize("database", ["sqlite"], indirect=True),
]
ROOT = Path(__file__).resolve().parents[2]
PROCESS_S = 120.0  # on a busy machine
PAGE = "/admin/halfbridge/messagetransaction/"
# A process of the service that dies once the half message is stored.
DYING = """
import os
import django; django.setup()
from halfbridge import Message
from halfbridge.django import message_transaction
from tests.sql.django_shop.models import Order

with message_transaction() as tx:
    Order.objects.create(item="shirt")
    tx.send(Message(os.environ["SHOP_TOPIC"], value=b"shirt"))
    print(tx.id, flush=True)
    os._exit(9)
"""
# Prints the pages that some users get, and the models in dumpdata, as JSON.
PAGES = f"""
import io, json
import django; django.setup()
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.test import Client
from halfbridge.django import admin

def page(user, path={PAGE!r}):
    client = Client()
    if user is not None:
        client.force_login(user)
    answer = client.get(path)
    return [answer.status_code, answer.content.decode()]

call_command("migrate", run_syncdb=True, verbosity=0)
anna = User.objects.create_superuser("anna")
ben = User.objects.create_user("ben", is_staff=True)
ben.user_permissions.add(Permission.objects.get(codename="view_messagetransaction"))
dumped = io.StringIO()
call_command("dumpdata", "halfbridge", "--all", stdout=dumped)
with admin._READING:
    busy = page(anna)
admin.PAGE_S_MAX, before = 0.05, admin.PAGE_S_MAX
late = page(anna)
admin.PAGE_S_MAX = before
print(json.dumps({{
    "index": page(anna, "/admin/"),
    "anna": page(anna),
    "busy": busy,
    "late": late,
    "ben": page(ben),
    "carl": page(User.objects.create_user("carl", is_staff=True)),
    "nobody": page(None),
    "add": page(anna, {PAGE!r} + "add/"),
    "dumped": [each["model"] for each in json.loads(dumped.getvalue())],
}}))
"""


class Project:
    """The project's processes, on one database and one installation."""

    def __init__(
        self, database: Database, servers: str, prefix: str, kafka: dict[str, str]
    ) -> None:
        given = {
            "bootstrap_servers": servers,
            "topic_prefix": prefix,
            "producer_group": GROUP,
            "kafka": kafka,
        }
        self.environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DJANGO_SETTINGS_MODULE": "tests.sql.django_shop.settings_admin",
            "SHOP_URL": database.url,
            "SHOP_HALFBRIDGE": json.dumps({"default": given}),
        }

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments to its end."""
        return subprocess.run(
            [sys.executable, *words],
            env=self.environ,
            check=False,
            capture_output=True,
            text=True,
            timeout=PROCESS_S,
        )

    def pages(self) -> dict[str, Any]:
        """Return what PAGES prints."""
        done = self.run("-c", PAGES)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `manage.py halfbridge <words>`."""
        return self.run("-m", "django", "halfbridge", *words)


# A value with a comma, which no list of name=value pairs can hold.
KAFKA = {"client.id": "shop,1"}


@pytest.fixture
def project(database: Database, installation: Installation) -> Project:
    """The project on an installation that has its topics."""
    installation.make()
    return Project(database, installation.servers, installation.names.prefix, KAFKA)


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    """Processes that end with the test."""
    with Children(tmp_path, interrupts=Interrupts(), keep_directory=True) as made:
        yield made


@pytest.mark.feature
def test_the_admin_shows_what_is_undecided_and_dead(
    installation: Installation, project: Project
) -> None:
    """Users with the permission see this group's transactions, as `manage.py halfbridge` does."""
    installation.start(topic_gone_ms=3_000)
    topic, absent = installation.topic("orders"), installation.real("absent")
    undecided = installation.half(topic)
    strange = installation.half(topic, "<b>bold</b>")
    other = installation.half(topic, producer_group="another-service")
    refused = installation.half(absent)
    installation.commit(refused)

    def dead() -> list[str]:
        done = project.command("dead", "list", "--json")
        return [each["id"] for each in json.loads(done.stdout)["transactions"]]

    until("the transaction is dead", lambda: dead() == [refused.transaction_id])
    listed = json.loads(project.command("tx", "list", "--group", GROUP, "--json").stdout)
    assert {each["id"] for each in listed["transactions"]} == {
        undecided.transaction_id,
        strange.transaction_id,
    }
    shown = project.pages()
    status, page = shown["anna"]
    assert status == 200
    assert undecided.transaction_id in page
    assert "2 undecided" in page
    assert "&lt;b&gt;bold&lt;/b&gt;" in page
    assert "<b>bold" not in page
    assert refused.transaction_id in page
    assert "1 with dead letters" in page
    assert "UNDELIVERABLE" in page
    assert "redeliver" in page
    assert other.transaction_id not in page
    assert "messagelist" not in page
    assert (shown["index"][0], PAGE in shown["index"][1]) == (200, True)
    assert (shown["ben"][0], undecided.transaction_id in shown["ben"][1]) == (200, True)
    assert (shown["carl"][0], shown["nobody"][0], shown["add"][0]) == (403, 302, 404)
    assert set(shown["dumped"]) == {"halfbridge.fencerow"}


def test_what_cannot_be_read_is_a_line_of_the_page(database: Database) -> None:
    """The page or the command reports no broker, a busy page, a time-out and a wrong setting."""
    away = Project(database, "127.0.0.1:1", "away-", {})
    shown = away.pages()
    status, page = shown["anna"]
    assert status == 200
    assert "127.0.0.1:1" in page
    assert page.count('<li class="error">manage.py halfbridge') == 2
    assert shown["busy"][1].count("another request reads the topics now: reload the page") == 1
    assert shown["late"][1].count("not done in 0.05 s; run it in a terminal") == 2
    done = away.command("tx", "list")
    assert (done.returncode, done.stdout) == (1, "")
    assert "halfbridge: " in done.stderr
    wrong = Project(database, "127.0.0.1:1", "away-", {"bootstrap.servers": "x"})
    done = wrong.command("tx", "list")
    assert (done.returncode, "use bootstrap_servers" in done.stderr) == (1, True)
    assert away.command("tx", "lost").returncode == 2
    assert "lost" in away.command("tx", "lost").stderr


def life(project: Project, transaction_id: str) -> Any:
    """Return the output of `tx show --json`."""
    return json.loads(project.command("tx", "show", transaction_id, "--json").stdout)


def test_checks_are_answered_without_the_service(
    installation: Installation, project: Project, children: Children
) -> None:
    """`manage.py halfbridge_respond` answers from the fence, and ends at SIGTERM."""
    topic = installation.topic("orders")
    project.environ["SHOP_TOPIC"] = topic
    assert project.run("-m", "django", "migrate", "--run-syncdb").returncode == 0
    died = project.run("-c", DYING)
    assert died.returncode == 9, died.stderr
    installation.start(transaction_timeout_ms=500, check_interval_ms=500)
    command = [sys.executable, "-m", "django", "halfbridge_respond"]
    responder: Child = children.start("responder", command, environ=project.environ)
    until(
        "the transaction is rolled back",
        lambda: life(project, died.stdout.strip())["state"] == "ROLLED_BACK",
        explain=responder.last_words,
    )
    responder.process.terminate()
    assert responder.process.wait(PROCESS_S) == 0, responder.last_words()
