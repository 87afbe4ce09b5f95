"""The page: the paper's Tables 3 and 4 beside ours, and what a server sees."""

from collections.abc import Mapping
from dataclasses import dataclass

from bench.paper.published import PUBLISHED, Published, Row
from bench.paper.study import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """A case study: the program, the baseline by chunk size, lines of code of both."""

    study: str
    program: Measured
    by_chunk: Mapping[int, Measured]
    program_lines: int
    baseline_lines: int

    @property
    def published(self) -> Published:
        return PUBLISHED[self.study]

    @property
    def baseline(self) -> Measured:
        """With the chunk size of the paper's table."""
        return self.by_chunk[self.published.chunk]


_HEAD = (
    "| mean of a case | paper: generate() | LMQL | saved "
    "| here: generate() | program | saved | at or above the paper (points) |\n"
    "|---|---|---|---|---|---|---|---|"
)
_SEEN_HEAD = (
    "| | requests | tokens billed as sent | tokens computed | seconds, all cases |\n"
    "|---|---|---|---|---|"
)


def page(results: list[StudyResult], heading: str, notes: str) -> str:
    """All of it, in Markdown."""
    parts = ["# The paper's evaluation, again", heading]
    for table in (3, 4):
        parts.append(f"## Table {table}")
        rows = [_study(result) for result in results if result.published.table == table]
        parts.append("\n".join([_HEAD, *rows]))
    parts.append("## What a server sees")
    parts.append("\n".join([_SEEN_HEAD, *(_seen(result) for result in results)]))
    parts += ["## Over chunk sizes, as Figure 12", "![Costs over chunk sizes](paper-chunks.svg)"]
    parts.append(notes)
    return "\n\n".join(parts) + "\n"


def saved(baseline: float, program: float) -> float:
    """The share of the baseline's cost that the program does not have."""
    return 1 - program / baseline


def _study(result: StudyResult) -> str:
    there, before, now = result.published, result.baseline, result.program
    ran, full, ours = before.counted, before.in_full, now.counted
    return "\n".join(
        [
            f"| **{there.title}** | | | | | | | |",
            _accuracy(there.accuracy, before.accuracy, now.accuracy),
            _cost("generate() calls", there.calls, full.num_calls, ours.num_calls),
            _cost("model queries", there.queries, full.num_queries, ours.num_queries),
            _as_it_ran(ran.num_queries, ours.num_queries),
            _cost("billable tokens", there.billable, full.billable_tokens, ours.billable_tokens),
            _as_it_ran(ran.billable_tokens, ours.billable_tokens),
            _cost("lines of code", there.lines, result.baseline_lines, result.program_lines),
        ]
    )


def _accuracy(there: Row | None, baseline: float, program: float) -> str:
    first = f"{there.standard:.0%} | {there.lmql:.0%}" if there else "- | -"
    return f"| accuracy | {first} | | {baseline:.1%} | {program:.1%} | | |"


def _cost(name: str, there: Row, baseline: float, program: float) -> str:
    assert there.saved is not None
    share = saved(baseline, program)
    margin = 100 * (share - there.saved)
    verdict = f"yes (+{margin:.2f})" if margin >= 0 else f"**no** ({margin:.2f})"
    return (
        f"| {name} | {there.standard:g} | {there.lmql:g} | {there.saved:.1%} "
        f"| {_short(baseline)} | {_short(program)} | {share:.1%} | {verdict} |"
    )


def _as_it_ran(baseline: float, program: float) -> str:
    """The row below one in whole chunks; the paper has none like it."""
    share = saved(baseline, program)
    return f"| ... as it ran | | | | {_short(baseline)} | {_short(program)} | {share:.1%} | |"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 or value == int(value) else f"{value:.2f}"


def _seen(result: StudyResult) -> str:
    rows = []
    for name, run in (("generate()", result.baseline), ("program", result.program)):
        rows.append(
            f"| {result.published.title}, {name} | {run.sent.num_requests:.2f} "
            f"| {run.sent.billable_tokens:.0f} | {run.computed_tokens:.0f} | {run.wall_s:.1f} |"
        )
    return "\n".join(rows)
