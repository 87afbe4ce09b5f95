"""Tests that need a kernel that knows slices."""

import os
import sys

import pytest


def _knows_slices() -> bool:
    if sys.platform != "linux":
        return False
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int("".join(filter(str.isdigit, minor)))) >= (6, 12)


needs_slices = pytest.mark.skipif(not _knows_slices(), reason="Linux knows slices since 6.12")
