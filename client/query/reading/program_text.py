"""The module that functions and classes of a program in a text name as theirs.

It holds nothing of theirs: `dataclasses` and `typing` look a class's module up, and find in it
what a type in quotation marks may begin with (`"ClassVar[int]"`).
"""

import dataclasses
import typing
from dataclasses import KW_ONLY, InitVar
from typing import ClassVar

__all__ = ["KW_ONLY", "ClassVar", "InitVar", "dataclasses", "typing"]
