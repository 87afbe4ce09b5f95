"""A plot is well-formed, and its marks are where the numbers are."""

from itertools import pairwise
from xml.etree import ElementTree

from bench.chart import Line, Panel, bars, lines

SVG = "{http://www.w3.org/2000/svg}"


def test_a_bar_is_as_long_as_its_value() -> None:
    drawn = ElementTree.fromstring(bars("A < B", [Panel("one", {"a": 10.0, "b": 40.0})]))
    _, short, long = (float(bar.get("width", "").rstrip("%")) for bar in drawn.iter(f"{SVG}rect"))
    assert long == 4 * short
    assert "A < B" in [text.text for text in drawn.iter(f"{SVG}text")]


def test_lines_are_straight_where_values_double() -> None:
    series = [Line("all", [(1, 5.0), (2, 10.0), (4, 20.0)]), Line("floor", [(1, 5.0)], dashed=True)]
    drawn = ElementTree.fromstring(lines("steps", "batch", "ms", series))
    line, floor = drawn.iter(f"{SVG}polyline")
    points = [tuple(map(float, pair.split(","))) for pair in line.get("points", "").split()]
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert abs(points[1][0] - (points[0][0] + points[2][0]) / 2) < 0.11
    assert abs(points[1][1] - (points[0][1] + points[2][1]) / 2) < 0.11
    assert floor.get("stroke-dasharray") is not None


def test_names_of_lines_that_end_at_one_place_stand_below_each_other() -> None:
    series = [Line(name, [(1, 5.0), (2, y)]) for name, y in (("a", 10.0), ("b", 10.0), ("c", 9.9))]
    drawn = ElementTree.fromstring(lines("steps", "batch", "ms", series))
    ys = [
        float(text.get("y", ""))
        for text in drawn.iter(f"{SVG}text")
        if text.text in {"a", "b", "c"}
    ]
    assert [later - one for one, later in pairwise(sorted(ys))] == [13.0, 13.0]
