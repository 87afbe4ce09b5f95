"""The table of docs/query-conditions.md says what the planner does."""

import re
from pathlib import Path

import pytest

from client.query.conditions.plan import HolePlan, StopMode
from client.query.conditions.planner import plan
from tests.client.query.conditions.clauses import term

PAGE = Path(__file__).parents[4] / "docs" / "query-conditions.md"


def rows() -> list[tuple[str, str, str]]:
    table = PAGE.read_text().partition("| condition at the hole `X` |")[2].partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.split(" |")] for line in table.splitlines()[2:]]
    return [(row[0].removeprefix("| ").strip("`"), row[1], row[2]) for row in cells]


def asked(plan: HolePlan) -> str:
    """The request in the words of the page."""
    if plan.constraint is None:
        bound = f"at most {plan.max_tokens} tokens" if plan.max_tokens else ""
        stops = " or ".join(f"ends at `{phrase}`" for phrase in plan.stop)
        return ", ".join(part for part in (stops, bound) if part)
    if isinstance(plan.constraint.value, list):
        return "one of " + ", ".join(f"`{text}`" for text in plan.constraint.value)
    return f"`{plan.constraint.value}`"


def checked(plan: HolePlan, clause: str) -> str:
    moments = (("at the end of X", plan.checks), ("at Z", plan.deferred))
    told = [
        f"{moment}: " + ("the whole" if " or " in clause else f"`{check.text}`")
        for moment, checks in moments
        for check in checks
    ]
    return ", ".join(told)


@pytest.mark.parametrize(("clause", "request_told", "checks_told"), rows())
def test_row(clause: str, request_told: str, checks_told: str) -> None:
    made = plan((term(clause, "XYZ", n=5),), "X", None, {"Y": "cat or dog"}, StopMode.CUT)

    assert (asked(made), checked(made, clause)) == (request_told, checks_told)


def test_the_table_is_read() -> None:
    assert len(rows()) == 19
    assert not [row for row in rows() if re.search(r"^\W*$", row[0])]
