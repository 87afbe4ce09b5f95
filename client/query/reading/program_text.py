"""The module of functions and classes that a text program defines.

It does not contain them: `dataclasses` and `typing` look up a class's module, to resolve prefixes
of quoted types (`"ClassVar[int]"`).
"""

import dataclasses
import typing
from dataclasses import KW_ONLY, InitVar
from typing import ClassVar

__all__ = ["KW_ONLY", "ClassVar", "InitVar", "dataclasses", "typing"]
