"""Tests that need what compiles C++."""

import shutil

import pytest

from native.compiler import COMPILERS

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)), reason="there is no C++ compiler here"
)
