"""The programs that judge the files of `deploy/`: Debian's Prometheus and systemd, PyPI's Helm."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.serving import ROOT

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "tandem"
KUBERNETES = "1.33"


def program(name: str, package: str) -> str:
    """The path of a program of the system, or of this environment; fails with what to install."""
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        pytest.fail(f"{name} is not installed: apt-get install {package}", pytrace=False)
    return found


def run(*argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """How a program ended, and what it said."""
    return subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)


def helm(*args: str) -> subprocess.CompletedProcess[str]:
    """Helm, which talks to no cluster for what we ask."""
    return run(program("helm", "helm"), *args)
