"""String literals mean what Python says they mean, and each character knows where it stands."""

import ast
import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.query.errors import BadProgram
from client.query.place import Source
from client.query.reading.strings import literal_of
from client.query.reading.text import SourceSpan, Text
from client.query.reading.tokens import Token, tokens_of

PIECES = [
    *"ab'\"\\ {}[]é\U0001f600",
    *(
        "\\n",
        "\\\n",
        "\\'",
        '\\"',
        "\\\\",
        "\\x41",
        "\\u00e9",
        "\\U0001F600",
        "\\101",
        "\\7",
        "\\q",
    ),
    *("\\N{BULLET}", "\\x4", "\\u12", "\\N{NO}", "\\U99999999", "\n"),
]
QUOTES = ["'", '"', "'''", '"""']
PREFIXES = ["", "r", "R", "u", "U"]


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=8), st.sampled_from(QUOTES), st.data())
def test_a_literal_has_pythons_value(pieces: list[str], quotes: str, data: st.DataObject) -> None:
    prefix = data.draw(st.sampled_from(PREFIXES))
    literal = f"{prefix}{quotes}{''.join(pieces)}{quotes}"
    text = Text(Source(literal, "<test>"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = ast.literal_eval(literal)
    except SyntaxError:
        with pytest.raises(BadProgram):
            literal_of(text, one_string(text))
        return
    assert literal_of(text, one_string(text)).code == expected


def one_string(text: Text) -> tuple[Token, ...]:
    """The tokens of a text that is one literal, or several. Raises BadProgram for any other."""
    tokens = tuple(tokens_of(text, SourceSpan(0, len(text.text))))
    if not all(re.match(r"[rRuU]?['\"]", token.text) for token in tokens):
        raise BadProgram("more than literals")
    return tokens


@pytest.mark.parametrize("prefix", ["", "r"])
def test_an_escaped_backslash_does_not_continue_a_line(prefix: str) -> None:
    text = Text(Source(f"{prefix}'\\\na\\\\\nb'", "<test>"))
    with pytest.raises(BadProgram):
        literal_of(text, one_string(text))


def test_adjacent_literals_are_one_value_with_places() -> None:
    text = Text(Source("'a\\tb' \"c\"", "<test>"))
    value = literal_of(text, tuple(tokens_of(text, SourceSpan(0, len(text.text)))))
    assert value.code == "a\tbc"
    assert list(value.offsets) == [1, 2, 4, 8, 10]


@settings(deadline=None)
@given(st.text(alphabet="aß\U0001f600\n", max_size=12), st.data())
def test_lines_bytes_and_offsets_are_one(content: str, data: st.DataObject) -> None:
    text = Text(Source(content, "<test>"))
    offset = data.draw(st.integers(0, len(content)))
    assert text.offset_of_bytes(*text.byte_position(offset)) == offset
    assert text.offset(text.line_of(offset), text.column_of(offset)) == offset
