"""Asking and answering over HTTP."""

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler

from tests.kit.waiting import CALL_S


def answer_of(url: str, *, within_s: float = CALL_S, method: str = "GET") -> tuple[int, str]:
    """Return status and body, of an error too; (0, "") while nobody answers."""
    request = urllib.request.Request(url, method=method)
    try:
        with urllib.request.urlopen(request, timeout=within_s) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except (OSError, HTTPException):  # URLError is an OSError; the other one is half an answer
        return 0, ""


def answer_json(request: BaseHTTPRequestHandler, status: int, body: object) -> None:
    """Answer a request with JSON."""
    data = json.dumps(body).encode()
    request.send_response(status)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    request.wfile.write(data)
