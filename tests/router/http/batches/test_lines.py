"""Lines of an input file: what they are, and what is said of those that are wrong."""

import json
from typing import Any

import pytest

from router.http.batches.lines import MAX_LINE_LEN, Line, LineCheck
from tests.router.http.batches.harness import COMPLETIONS, lines, request_line


def read(content: bytes, size: int = 1 << 20) -> tuple[list[Line], list[dict[str, Any]]]:
    check = LineCheck(COMPLETIONS)
    found: list[Line] = []
    for start in range(0, len(content), size):
        found += check.read(content[start : start + size])
    found += check.read(b"\n")
    return found, check.errors


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_lines_are_the_same_in_whatever_pieces_they_come(size: int) -> None:
    content = lines([*map(request_line, range(5))]) + b"\n  \r\n"
    last = json.dumps(request_line(5)).encode()

    found, errors = read(content + last, size)
    assert errors == []
    assert [line.custom_id for line in found] == [f"line-{n}" for n in range(6)]
    assert [line.number for line in found] == [1, 2, 3, 4, 5, 8]
    assert json.loads(found[5].body) == request_line(5)["body"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "unexpected end"),
        (b"[]", "object of custom_id"),
        (lines([{**request_line(0), "method": "GET"}]), "object of custom_id"),
        (lines([{**request_line(0), "custom_id": 7}]), "object of custom_id"),
        (lines([{**request_line(0), "body": "x"}]), "object of custom_id"),
        (lines([request_line(0, "/v1/embeddings")]), "endpoint, /v1/completions"),
        (lines([request_line(0, stream=True)]), "`stream`"),
        (lines([request_line(0, background=True)]), "`background`"),
        (lines([{**request_line(0), "custom_id": ""}]), "Given: ''"),
        (lines([{**request_line(0), "custom_id": "x" * 513}]), "512 characters"),
        (lines([request_line(1)]), "must be there once"),
        (lines([request_line(0, prompt="x" * MAX_LINE_LEN)]), f"at most {MAX_LINE_LEN} bytes"),
    ],
)
def test_a_line_that_is_wrong_is_named_with_its_rule(line: bytes, said: str) -> None:
    _, (error,) = read(lines([request_line(1)]) + line.rstrip() + b"\n" + lines([request_line(2)]))
    assert (error["code"], error["line"], error["param"]) == ("invalid_line", 2, None)
    assert said in error["message"]


def test_a_file_without_line_breaks_is_not_kept_in_memory_and_few_errors_are_told() -> None:
    found, errors = read(b"x" * (40 << 20))
    assert found == []
    assert len(errors) == 20
