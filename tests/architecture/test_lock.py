"""requirements.lock: what an installation needs, in versions that fit, with digests."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "requirements.lock").read_text()
_PINNED = re.compile(
    r"^([a-z0-9.-]+)==([^ ]+)(.*(?:\n    --hash=sha256:[0-9a-f]{64}.*)*)", re.MULTILINE
)


def pinned() -> dict[str, list[str]]:
    """The versions of each package; some have one for each of several Pythons."""
    found: dict[str, list[str]] = {}
    for name, version, _ in _PINNED.findall(LOCK):
        found.setdefault(name, []).append(version)
    return found


def needed() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *extras["otlp"], *extras["vision"]]


@pytest.mark.parametrize("needed", needed())
def test_each_dependency_is_pinned_to_a_version_that_fits(needed: str) -> None:
    requirement = Requirement(needed)
    versions = pinned()[canonicalize_name(requirement.name)]
    assert all(requirement.specifier.contains(version) for version in versions), versions


def test_each_package_has_digests() -> None:
    pins = _PINNED.findall(LOCK)
    assert len(pins) > 60
    assert [name for name, _, rest in pins if "--hash=sha256:" not in rest] == []
    assert LOCK.count("==") >= len(pins)
    # No other place than the index is named.
    assert "://" not in LOCK
