"""Figure 12 as an SVG: what a baseline costs over the size of its chunks, beside the program.

One row of panels for each measure, one panel for each study; colours for light and dark pages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

PANEL_WIDTH, PANEL_HEIGHT = 210, 120
LEFT, TOP, GAP_X, GAP_Y = 56, 54, 44, 46

_STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #1f2328; }
  .title { font-weight: 600; }
  .tick { font-size: 10px; fill: #59636e; }
  .axis { stroke: #d1d9e0; }
  .generate { stroke: #cf5c00; fill: none; stroke-width: 2; }
  .dot { fill: #cf5c00; }
  .query { stroke: #0969da; stroke-width: 2; stroke-dasharray: 6 3; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; }
    .tick { fill: #9198a1; }
    .axis { stroke: #3d444d; }
    .generate { stroke: #ffa657; }
    .dot { fill: #ffa657; }
    .query { stroke: #4493f8; }
  }
"""


@dataclass(frozen=True, slots=True)
class Panel:
    """A measure of a study: over chunk sizes for the baseline, and of the program."""

    title: str
    by_chunk: Mapping[int, float]
    program: float


def svg(rows: Sequence[tuple[str, Sequence[Panel]]]) -> str:
    """The picture; each row has a name and as many panels as the others."""
    num_columns = max(len(panels) for _, panels in rows)
    width = LEFT + num_columns * (PANEL_WIDTH + GAP_X)
    height = TOP + len(rows) * (PANEL_HEIGHT + GAP_Y)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="Costs over chunk sizes">',
        f"<style>{_STYLE}</style>",
        *_legend(),
    ]
    for number, (name, panels) in enumerate(rows):
        y = TOP + number * (PANEL_HEIGHT + GAP_Y)
        middle = y + PANEL_HEIGHT / 2
        parts.append(
            f'<text class="title" text-anchor="middle" '
            f'transform="translate(14 {middle:.0f}) rotate(-90)">{escape(name)}</text>'
        )
        for column, panel in enumerate(panels):
            parts += _panel(panel, LEFT + column * (PANEL_WIDTH + GAP_X), y)
    return "\n".join([*parts, "</svg>", ""])


def _legend() -> list[str]:
    return [
        f'<line class="generate" x1="{LEFT}" y1="14" x2="{LEFT + 26}" y2="14"/>',
        f'<text x="{LEFT + 32}" y="18">generate() in chunks of so many tokens</text>',
        f'<line class="query" x1="{LEFT + 290}" y1="14" x2="{LEFT + 316}" y2="14"/>',
        f'<text x="{LEFT + 322}" y="18">query program</text>',
    ]


def _panel(panel: Panel, x: float, y: float) -> list[str]:
    """One panel whose plot has its upper left corner at (x, y)."""
    chunks = sorted(panel.by_chunk)
    top = _round_up(max([*panel.by_chunk.values(), panel.program]))
    bottom = y + PANEL_HEIGHT

    def place(chunk: int, value: float) -> tuple[float, float]:
        share = (chunk - chunks[0]) / max(1, chunks[-1] - chunks[0])
        return x + share * PANEL_WIDTH, bottom - value / top * PANEL_HEIGHT

    parts = [f'<text class="title" x="{x}" y="{y - 8}">{escape(panel.title)}</text>']
    for value in (0.0, top / 2, top):
        _, at = place(chunks[0], value)
        parts.append(
            f'<line class="axis" x1="{x}" y1="{at:.1f}" x2="{x + PANEL_WIDTH}" y2="{at:.1f}"/>'
        )
        parts.append(
            f'<text class="tick" x="{x - 6}" y="{at + 3:.1f}" text-anchor="end">{value:g}</text>'
        )
    for chunk in chunks:
        at_x, _ = place(chunk, 0)
        place_of = f'x="{at_x:.1f}" y="{bottom + 14}"'
        parts.append(f'<text class="tick" {place_of} text-anchor="middle">{chunk}</text>')
    points = [place(chunk, panel.by_chunk[chunk]) for chunk in chunks]
    path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
    parts.append(f'<polyline class="generate" points="{path}"/>')
    parts += [f'<circle class="dot" cx="{px:.1f}" cy="{py:.1f}" r="3"/>' for px, py in points]
    _, at = place(chunks[0], panel.program)
    parts.append(
        f'<line class="query" x1="{x}" y1="{at:.1f}" x2="{x + PANEL_WIDTH}" y2="{at:.1f}"/>'
    )
    return parts


def _round_up(value: float) -> float:
    """The next of 1, 2, 4, 5, 8, 10 times a power of ten."""
    power = 1.0
    while value > 10 * power:
        power *= 10
    while value <= power and power > 1e-6:
        power /= 10
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if value <= step * power)
