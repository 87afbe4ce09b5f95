"""A sampling parameter is written in at most eight files, which CONTRIBUTING.md lists."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
TIERS = ("proto", "router", "model_server", "client", "constraints", "fleet", "processes")


def files_with(word: str) -> set[str]:
    """Hand-written product files that have the word."""
    listed = subprocess.run(
        ["git", "ls-files", *TIERS], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    return {
        name
        for name in listed
        if name.endswith((".py", ".proto"))
        and "_pb2" not in name
        and re.search(rf"\b{word}\b", (ROOT / name).read_text())
    }


def test_the_files_of_a_sampling_parameter_are_eight_and_listed() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    section = guide.split("## A new sampling parameter")[1].split("\n## ")[0]
    listed = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    assert len(listed) <= 8
    assert files_with("min_p") == set(listed)
