"""Asking what a process serves over HTTP."""

import urllib.error
import urllib.request

from tests.kit.waiting import CALL_S


def answer_of(url: str, *, within_s: float = CALL_S) -> tuple[int, str]:
    """Return status and body, of an error too; (0, "") while nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=within_s) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:  # URLError is one; so is a connection that ends in the middle
        return 0, ""
