"""Certificates that are good, or expired, made by openssl when a test asks for them."""

import shutil
import subprocess
from pathlib import Path

from halfbridge.testkit.ports import HOST
from halfbridge.testkit.pytest_plugin import leave_out

_KEY = ("-newkey", "rsa:2048", "-nodes")
_DAYS = 30
_YESTERDAY = -1


class Authority:
    """Signs certificates of brokers on this machine; clients trust it.

    Args:
        directory: Keys and certificates are made there.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir()
        (directory / "names").write_text(f"subjectAltName=IP:{HOST}\n")
        self._openssl(
            "req", "-x509", *_KEY, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=a"
        )
        self._openssl("req", *_KEY, "-keyout", "key.pem", "-out", "request", "-subj", f"/CN={HOST}")

    @property
    def certificate(self) -> Path:
        """Return what clients must trust."""
        return self._directory / "ca.pem"

    @property
    def store(self) -> Path:
        """Return the broker's key and certificate, once one was signed."""
        return self._directory / "store.pem"

    def sign(self, *, expired: bool = False) -> Path:
        """Put a new certificate, or one that ended yesterday, into the broker's store."""
        days = str(_YESTERDAY if expired else _DAYS)
        self._openssl(
            *("x509", "-req", "-in", "request", "-out", "signed.pem", "-days", days),
            *("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names"),
        )
        parts = ("key.pem", "signed.pem", "ca.pem")
        texts = [(self._directory / part).read_text("utf-8") for part in parts]
        self.store.write_text("".join(texts), "utf-8")
        return self.store

    def _openssl(self, *words: str) -> None:
        program = shutil.which("openssl")
        if program is None:
            leave_out("needs openssl, to make certificates")
        subprocess.run([program, *words], check=True, capture_output=True, cwd=self._directory)
