"""Two kinds of plots as SVG: bars side by side, and lines over logarithmic axes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

_COLOURS = ("#1b6ca8", "#e07b39", "#5a9367", "#8e5ea2", "#b8a04a", "#6b7280", "#c0392b", "#2a9d8f")
_WIDTH = 720
_PANEL_HEIGHT = 220
_LEFT = 120
_ROW = 22
_NAME_HEIGHT = 13


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars on a scale of their own: a value for each name."""

    title: str
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Line:
    """Points (x, y), both above 0, in the order of x; `dashed` for what bounds the others."""

    name: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


def bars(title: str, panels: Sequence[Panel]) -> str:
    """Each panel below the one before, each name in its own colour."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.values))
    parts = [_text(8, 22, title, 16)]
    top = 44
    for panel in panels:
        parts.append(_text(8, top, panel.title, 13))
        scale = (_WIDTH - _LEFT - 80) / max(panel.values.values())
        for row, (name, value) in enumerate(panel.values.items()):
            y = top + 8 + row * _ROW
            width = value * scale
            colour = _COLOURS[names.index(name) % len(_COLOURS)]
            parts.append(_text(_LEFT - 6, y + 14, name, 12, "end"))
            parts.append(
                f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="17" fill="{colour}"/>'
            )
            parts.append(_text(_LEFT + width + 6, y + 14, f"{value:.0f}", 12))
        top += 30 + _ROW * len(panel.values)
    return _document(top, parts)


def lines(title: str, x_label: str, y_label: str, series: Sequence[Line]) -> str:
    """All in one panel, names at the right end of their lines."""
    xs, ys = zip(*(point for line in series for point in line.points), strict=True)
    right = _WIDTH - 150
    bottom = 44 + 1.6 * _PANEL_HEIGHT

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            60 + (right - 60) * _share(x, min(xs), max(xs)),
            bottom - (bottom - 44) * _share(y, min(ys), max(ys)),
        )

    parts = [_text(8, 22, title, 16), _text(8, 40, y_label, 12)]
    parts.append(_text(right, bottom + 34, x_label, 12, "end"))
    for x in _ticks(min(xs), max(xs), 2):
        at, _ = place(x, min(ys))
        parts.append(_rule(at, 44, at, bottom))
        parts.append(_text(at, bottom + 16, f"{x:g}", 11, "middle"))
    for y in _ticks(min(ys), max(ys), 10):
        _, at = place(min(xs), y)
        parts.append(_rule(60, at, right, at))
        parts.append(_text(54, at + 4, f"{y:g}", 11, "end"))
    ends = [place(*line.points[-1])[1] for line in series]
    for number, (line, name_y) in enumerate(zip(series, _apart(ends), strict=True)):
        colour = _COLOURS[number % len(_COLOURS)]
        places = [place(x, y) for x, y in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
        )
        parts.append(_text(places[-1][0] + 6, name_y + 4, line.name, 11))
    return _document(bottom + 44, parts)


def _apart(ys: Sequence[float]) -> list[float]:
    """Places of names that would lie upon each other: below the one before."""
    found = list(ys)
    last_y = -math.inf
    for number in sorted(range(len(ys)), key=ys.__getitem__):
        found[number] = last_y = max(ys[number], last_y + _NAME_HEIGHT)
    return found


def _share(value: float, low: float, high: float) -> float:
    return math.log(value / low) / math.log(high / low) if high > low else 0.5


def _ticks(low: float, high: float, base: int) -> Iterator[float]:
    exponent = math.ceil(math.log(low, base) - 1e-9)
    while base**exponent <= high * (1 + 1e-9):
        yield float(base) ** exponent
        exponent += 1


def _text(x: float, y: float, text: str, size: int, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f} L{x2:.1f} {y2:.1f}" stroke="#ddd"/>'


def _document(height: float, parts: Sequence[str]) -> str:
    style = 'font-family="sans-serif" fill="#222"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height:.0f}" {style}>'
    )
    return (
        "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>"])
        + "\n"
    )
