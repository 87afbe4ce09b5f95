"""What the paper reports: Tables 3 and 4 of "Prompting Is Programming" (PLDI 2023).

GPT-J 6B (GPT-2 XL for ReAct) on an A100. The share saved is the paper's own figure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Row:
    """A measure: with `generate()`, with LMQL, and the share that is saved (None: not a cost)."""

    standard: float
    lmql: float
    saved: float | None


@dataclass(frozen=True, slots=True)
class Published:
    """A case study. `accuracy` is None where the paper gives none.

    `chunk`: tokens a call of the baseline asks for. Table 4's counts say 30 exactly; those of
    Table 3 fit 20, which the paper does not say.
    """

    title: str
    table: int
    chunk: int
    accuracy: Row | None
    calls: Row
    queries: Row
    billable: Row
    lines: Row


PUBLISHED: Mapping[str, Published] = MappingProxyType(
    {
        "odd_one_out": Published(
            title="Odd One Out",
            table=3,
            chunk=20,
            accuracy=Row(0.33, 0.33, None),
            calls=Row(6.95, 5.95, 0.1438),
            queries=Row(52.98, 40.85, 0.2289),
            billable=Row(993.41, 849.65, 0.1447),
            lines=Row(34, 9, 0.7353),
        ),
        "date_understanding": Published(
            title="Date Understanding",
            table=3,
            chunk=20,
            accuracy=Row(0.17, 0.23, None),
            calls=Row(7.84, 6.84, 0.1275),
            queries=Row(63.37, 57.27, 0.0963),
            billable=Row(3291.87, 2843.80, 0.1361),
            lines=Row(38, 13, 0.6579),
        ),
        "react": Published(
            title="ReAct",
            table=4,
            chunk=30,
            accuracy=None,
            calls=Row(5, 1, 0.80),
            queries=Row(150, 95, 0.3667),
            billable=Row(3404, 807, 0.7629),
            lines=Row(59, 22, 0.6271),
        ),
        "arithmetic": Published(
            title="Arithmetic",
            table=4,
            chunk=30,
            accuracy=None,
            calls=Row(7, 1, 0.8571),
            queries=Row(210, 73, 0.6524),
            billable=Row(3649, 541, 0.8517),
            lines=Row(78, 18, 0.7692),
        ),
    }
)
