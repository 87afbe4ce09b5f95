"""Certificates made for a test by the openssl command."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM files of a self-signed certificate for localhost and 127.0.0.1."""

    cert: Path
    key: Path
    encrypted_key: Path


def make_certificate(folder: Path) -> Certificate:
    """A new one, in a new folder; skips the test where there is no openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command")
    folder.mkdir()
    made = Certificate(folder / "cert.pem", folder / "key.pem", folder / "encrypted.pem")
    _openssl(
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-keyout",
        str(made.key),
        "-out",
        str(made.cert),
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=DNS:localhost,IP:127.0.0.1",
    )
    _openssl(
        "pkcs8",
        "-topk8",
        "-in",
        str(made.key),
        "-out",
        str(made.encrypted_key),
        "-passout",
        "pass:open sesame",
    )
    return made


def _openssl(*words: str) -> None:
    subprocess.run(("openssl", *words), check=True, capture_output=True, timeout=30)
