"""What is wrong with a program is said at its place, with what was expected there."""

import inspect

import pytest

from client.query.errors import BadProgram
from client.query.reading.reader import read

# A program, what is said, and the text that the caret is under.
HOLES = [
    ('"Hi [X"', "'[' opens a hole that is never closed; write '[['", "["),
    ('"Hi [1X]"', "'1X' is no name for a hole; write '[[' and ']]'", "[1X]"),
    ('"[for]"', "'for' is a word of Python's", "[for]"),
    ('"[]"', "a hole without a name", "[]"),
    ('"[X: ]"', "behind 'X:' comes a type", ":"),
    ('"[X: 1 +]"', "the type of X: invalid syntax", "]"),
    ('"[@ X]"', "behind '@' comes the name of a function", "@"),
    ('"[print(X)]"', "'print(X)' is no name for a hole", "[print(X)]"),
    ('"[argmax X]"', "`argmax` is a decoder, which stands in front", "[argmax X]"),
    ('"[sample(n=2) X]"', "`sample` is a decoder, which stands in front", "[sample(n=2) X]"),
    ('"[__tandem]"', "the name '__tandem' is taken", "[__tandem]"),
]
PROMPTS = [
    ('"{x"', "'{' opens a value that is recalled and never closes; write '{{'", "{"),
    ('"{}"', "an expression is missing between '{' and '}'", "{}"),
    ('"a } b"', "a single '}'; write '}}'", "}"),
    ('"[X] {X +}"', "in braces: invalid syntax", "}"),
    ('"{x!q}"', "behind '!' comes r, s or a", "!q"),
    ('"a {"name": 1} [X]"', 'the string ends here, at ": write \\" for the sign', None),
    ("\u201c[X]\u201d", "strings have \" or ' around them", "\u201c"),
    ('def f():\n   x = 1\n   "Q: [X]"', "a prompt in a function", '"Q: [X]"'),
    ('"{:boss}"', "'{:boss}' is no role; known are {:system}", "{:boss}"),
    (r'"\x4"', "is not complete, or no character", "\\"),
    (r'"\N{NO SUCH}"', "is not complete, or no character", "\\"),
    ('"[X]\n', "a string that is not closed on its line", '"'),
    ('"""[X]\n', "a string in three quotes that is never closed", '"'),
    ('def f():\n   "[X]" where len(X) < 3', "a prompt in a function", '"[X]" where len(X) < 3'),
    ('def f():\n   "Q: [X]"\n   return X', "a prompt in a function", '"Q: [X]"'),
    ('x = 1\n"Q: [X]" + x\n"b"', "a prompt is strings alone", '"Q: [X]" + x'),
    ('"a [X]" if y else "b [X]"', "a prompt is strings alone", '"a [X]" if y else "b [X]"'),
    ('"a [X] %s".format(y)', "a prompt is strings alone", '"a [X] %s".format(y)'),
    ('"a [X]", "b"', "a prompt is strings alone", '"a [X]", "b"'),
]
CLAUSES = [
    (
        'argmax\n  "[X]" // it\n  "b"',
        "a prompt is strings alone",
        '"[X]" // it',
    ),
    ('"[X]"\nwhere len(X) < n // of them', "a comment begins with #, // divides", None),
    ('argmax(n=1):\n  "[X]"', "the decoder's line has no ':' at its end", ":"),
    ('"[X]"\nwhere len(X) < 3\n"[Y]"', "behind the program's clauses comes no further", '"[Y]"'),
    ('"[X]"\nwhere len(X) < 3\nprint(X)', "behind the program's clauses comes no", "print"),
    ('beem(n=3)\n  "[X]"', "`beem` is no decoder (argmax, sample, beam)", "beem"),
    ('argmx "[X]"', "did you mean `argmax`?", "argmx"),
    ('argmax\n  "[X]"\nwere len(X) < 3', "did you mean `where`?", "were"),
    ('print "[X]"', "`print` is no decoder", "print"),
    ('argmax\n  "[X]"\nwhere', "behind `where` comes a condition", "where"),
    ('argmax\n  "[X]"\nfrom\nwhere X', "behind `from` comes a model", "from"),
    ('from "m"\nfrom "n"\nargmax "x"', "a second `from` of the program", "from"),
    ('argmax "x" from "m"\n"more"', "behind the program's clauses comes no further", '"more"'),
    ('argmax\n  "x"\nsample\n  "y"', "a second decoder clause, `sample`", "sample"),
    ('"a"\nargmax\n  "x"', "a prompt in front of the decoder clause", '"'),
    ('argmax(n=)\n  "x"', "in the decoder clause: invalid syntax", ")"),
    ("argmax(n=1, n=2)\n 'x'", "keyword argument repeated", "n"),
    ("for i in x:\n    '[X]'\n    where X", "stands no further right than its first", "where"),
    ('"[X]" distribution', "behind `distribution` comes the name of a hole", "distribution"),
    ('"[X]" distribution X', "behind `distribution X` comes `over` and its values", "X"),
    ('"[X]" distribution X over', "behind `over` comes a list of the values of X", "over"),
    ('argmax\n "[TH]"\ndistribute T over y', "no hole of the program; did you mean TH?", "T"),
    ('"[Y]"\n"[X]" distribution Y in z', "Y, which is no hole of its prompt", "Y"),
]
CONDITIONS = [
    ('"[X]" where len(X) <', "in the prompt's condition: invalid syntax", ""),
    ('"[X]" where len(X) < 3 && len(X) > 1', "invalid syntax; write `and` for &&", None),
    ('"[X]" where len(X) < 3 AND X != "IN"', "; write `and` for AND", None),
    ('"[X]" where X IN ["a"]', "; write `in` for IN", None),
    ('"[X]" where X == "a" || X == "b"', "invalid syntax; write `or` for ||", None),
    ('"[X]" where !(X == "a")', "the character '!' means nothing here; write `not`", "!"),
    ('"[X]" where len(X) < 3, len(X) > 1', "joined by `and`, not by a comma", None),
    ('"[X]" where X == "a" or "b"', "says nothing that could be true or false", '"b"'),
    ('"[X]" where X where X', "a second `where` of a prompt", "where"),
    ('"hi" where 3 < 4', "a `where` behind a prompt without holes", "3 < 4"),
    ('"[X]" where await f(X)', "`await` cannot stand in a condition", "await f(X)"),
    ('"[X]" where (y := X)', "`:=` cannot stand in a condition", "y := X"),
    ('"[X]" where X in ["[X]"]', "a condition asks for no holes, only prompts do", '"[X]"'),
    ('"[X]" where stops_at(XX, "a")', "`stops_at` is asked of a hole;", 'stops_at(XX, "a")'),
    ('"[X]" where regex(X, p=3)', "`regex` takes plain arguments alone", "regex(X, p=3)"),
    ('argmax\n "[X]"\nwhere\n  X in [1,\n 2] 3', "in the `where` clause: invalid syntax", None),
]
PYTHON = [
    ("x = = 3", "invalid syntax", "="),
    ('if True\n  "a"', "expected ':'", ""),
    ("(1, 2", "'(' is never closed", "("),
    ("x = [1, 2)", "')' cannot close '['", ")"),
    ("x = 1)", "')' closes nothing", ")"),
    ("x = $", "the character '$' means nothing here", "$"),
    ('"a" \\ b', "a backslash with something behind it", "\\"),
    ("from math import *", "write the names that you import", "*"),
    ("def f():\n  from math import *", "write the names that you import", "*"),
    ("yield 3", "`yield` cannot stand in a program", "yield 3"),
    ("break", "'break' outside loop", "b"),
    ('"a"\n  "b"', "unexpected indent", None),
    (" x = 1\nelse:\n  y", "stands further left than the program begins", None),
    ("x = '\0'", "the character '\\x00' cannot stand in a program", "\0"),
    ("nonlocal q", "no binding for nonlocal 'q' found", None),
    ("__tandem_x = 3", "the name __tandem_x is taken", "__tandem_x"),
    ('"{1 + __tandem_x}"', "the name __tandem_x is taken", "__tandem_x"),
    ('"[X]" where X in __tandem_x', "the name __tandem_x is taken", "__tandem_x"),
]


@pytest.mark.parametrize(
    ("text", "message", "marked"), [*HOLES, *PROMPTS, *CLAUSES, *CONDITIONS, *PYTHON]
)
def test_what_is_wrong_is_said_at_its_place(text: str, message: str, marked: str | None) -> None:
    with pytest.raises(BadProgram) as caught:
        read(text)
    error = caught.value
    assert message in error.message
    assert error.place is not None
    assert error.source is not None
    line = text.split("\n")[error.place.line - 1]
    if marked is not None and error.place.end_line == error.place.line:
        assert line[error.place.column - 1 : error.place.end_column - 1] == marked


def test_an_error_shows_its_line_with_a_caret() -> None:
    with pytest.raises(BadProgram) as caught:
        read('x = "ß"\nif x: "größe {x} [1]"', name="a.query", first_line=10)
    shown = [
        "a.query:11:18: '1' is no name for a hole; write '[[' and ']]' for the signs themselves",
        '    if x: "größe {x} [1]"',
        "                     ^^^",
    ]
    assert str(caught.value).split("\n") == shown


def test_a_place_is_found_behind_escapes_and_joined_strings() -> None:
    with pytest.raises(BadProgram) as caught:
        read("\"a\\n\\u00e9\" 'b\\t [1]'")
    place = caught.value.place
    assert place is not None
    assert (place.column, place.end_column) == (18, 21)


def test_a_hole_cannot_have_the_name_of_a_parameter() -> None:
    with pytest.raises(BadProgram, match="the hole X has the name of a parameter"):
        read("[X]".join('""'), parameters=inspect.signature(lambda X: X))


@pytest.mark.parametrize("deep", ["(" * 300 + ")" * 300, "1" + "+1" * 5000, "-" * 100_000 + "1"])
def test_code_nested_too_deeply_is_refused(deep: str) -> None:
    with pytest.raises(BadProgram):
        read(f'"{{{deep}}}"')
