"""Lines of the interactive client."""

import json
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.calls import Constraint, GenerateCall
from client.cli.chat import call_of, read_line
from client.errors import BadInput
from client.sampling import Sampling


@pytest.mark.parametrize(
    ("text", "prompt", "parameters"),
    [
        ("Once upon a time", "Once upon a time", {}),
        (
            "Once temperature=0.7 max_tokens=50",
            "Once",
            {"temperature": 0.7, "max_tokens": 50},
        ),
        (r'Once stop="\n"', "Once", {"stop": ["\n"]}),
        ('Once stop=["a b", "c"] seed=1', "Once", {"stop": ["a b", "c"], "seed": 1}),
        (
            'Once where="len(words(X)) < 5"',
            "Once",
            {"where": "len(words(X)) < 5"},
        ),
        ('Once stop="["', "Once", {"stop": ["["]}),
        ('Once choice=["a b","c"]', "Once", {"choice": ["a b", "c"]}),
        ('Once json={"type":"integer"}', "Once", {"json": {"type": "integer"}}),
        ('Once json=\'{"type": "integer"}\'', "Once", {"json": {"type": "integer"}}),
        ("if x=1 then top_k=3", "if x=1 then", {"top_k": 3}),
        ("the end is x = 5", "the end is x = 5", {}),
        ("2x=5", "2x=5", {}),
        (r'"two\nlines x=3" seed=1', "two\nlines x=3", {"seed": 1}),
        ("'it''s'", "'it''s'", {}),
        ('"said" he', '"said" he', {}),
        ("temperature=0.5", None, {"temperature": 0.5}),
        ("temperature= top_k=3", None, {"temperature": None, "top_k": 3}),
        ("  Once   seed=1  ", "Once", {"seed": 1}),
        ("seed=1 Once", "seed=1 Once", {}),
        ('""', "", {}),
    ],
)
def test_a_line_is_a_prompt_and_parameters_at_its_end(
    text: str, prompt: str | None, parameters: dict[str, object]
) -> None:
    line = read_line(text)
    assert (line.prompt, dict(line.parameters)) == (prompt, parameters)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Once temperature=hot", "temperature must be a number. Given: hot"),
        ("Once temperature=nan", "temperature must be a number. Given: nan"),
        ("Once max_tokens=1.5", "max_tokens must be a whole number. Given: 1.5"),
        ("Once stop=[1]", "stop must be a string, or a JSON list of strings. Given: [1]"),
        ("Once stop=[\"a b\", 'c']", "JSON list of strings. Given: [\"a b\", 'c']"),
        ("Once choice=yes", "choice must be a JSON list of strings. Given: yes"),
        ("Once json=[", "json must be a JSON schema. Given: ["),
        (
            "Once temprature=1",
            "temprature=1: no parameter has this name; did you mean temperature?",
        ),
        ("Once x=1", "x=1: no parameter has this name; there are max_tokens,"),
        (r'Once stop="\x"', "truncated"),
    ],
)
def test_a_wrong_parameter_names_key_value_and_rule(text: str, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        read_line(text)
    assert said in str(caught.value)


def test_a_value_that_is_nested_too_deeply_is_shown_shortened() -> None:
    with pytest.raises(BadInput) as caught:
        read_line(f"Once json={'[' * 100_000}{']' * 100_000}")
    assert str(caught.value) == f"json must be a JSON schema. Given: {'[' * 60}..."


def test_parameters_become_a_request() -> None:
    line = read_line('Once temperature=0.7 seed=3 max_tokens=5 stop="x" where="len(X) < 5"')
    assert line.prompt is not None
    assert call_of(line.prompt, line.parameters) == GenerateCall(
        prompt="Once",
        sampling=Sampling(temperature=0.7, seed=3),
        max_tokens=5,
        stop=("x",),
        constraint=Constraint("where", "len(X) < 5"),
    )


def test_two_constraints_exclude_each_other() -> None:
    with pytest.raises(BadInput, match="where and regex exclude each other"):
        call_of("Once", {"where": "len(X) < 5", "regex": "a"})


def test_a_parameter_that_was_taken_back_is_not_sent() -> None:
    assert call_of("Once", {"temperature": None}) == GenerateCall(prompt="Once")


@given(
    prompt=st.text(alphabet='ab ."', min_size=1).map(lambda text: f"x{text}x"),
    num=st.integers(-5, 5),
    stop=st.text(alphabet="a=\" '\n\\é", min_size=1),
)
def test_what_is_written_is_what_is_read(prompt: str, num: int, stop: str) -> None:
    line = read_line(f"{prompt} max_tokens={num} stop={json.dumps(stop)}")
    assert (line.prompt, dict(line.parameters)) == (prompt, {"max_tokens": num, "stop": [stop]})


@given(st.text(alphabet="ab=\"'[{ \\\x00", max_size=12))
def test_any_line_is_read_or_refused(text: str) -> None:
    try:
        line = read_line(text)
    except BadInput:
        return
    assert line.prompt is not None or line.parameters


def test_a_comparison_at_the_end_is_no_parameter() -> None:
    line = read_line("is it true that a==b max_tokens=3")

    assert line.prompt == "is it true that a==b"
    assert line.parameters == {"max_tokens": 3}


# Each value is read as far as it goes, without a second try.
PARAMETERS = re.compile(
    r"""(?:[a-z]+=(?!=)(?>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\S*)(?:\s+|\Z))+"""
)


@given(
    st.lists(
        st.sampled_from(["stop=a", "stop='a b'", 'stop="', "stop=='", "0", "'", '"', "=", "\x1c"]),
        max_size=12,
    ),
    st.sampled_from([" ", "", "  "]),
)
def test_parameters_are_the_longest_end_that_is_nothing_else(words: list[str], space: str) -> None:
    text = f"x {space.join(words)}".strip()
    starts = (word.start() for word in re.finditer(r"\S+", text))
    ends = [start for start in starts if PARAMETERS.fullmatch(text[start:])]

    line = read_line(text)

    if ends:
        assert line.prompt == text[: ends[0]].rstrip()
        assert line.parameters == read_line(text[ends[0] :]).parameters
    else:
        assert (line.prompt, dict(line.parameters)) == (text, {})


@pytest.mark.parametrize("text", ["a=1 " * 1000 + "end", "seed=1 " * 4000, "word " * 40_000])
def test_a_long_line_is_read_at_once(text: str) -> None:
    begun_s = time.process_time()
    read_line(text)
    assert time.process_time() - begun_s < 1.5
