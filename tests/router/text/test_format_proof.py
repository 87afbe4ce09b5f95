"""What does not read answers back is found out at the start."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from datetime import datetime
from typing import Any

import pytest

from router.text.answer_format import AnswerFormat, Parameters, ThoughtForm
from router.text.chat_template import CompiledTemplate
from router.text.format_proof import Verdict, prove
from router.text.format_reading import Reading, read_format
from router.text.template_traits import find_traits
from tests.router.text.answers import FORMATS, as_template, dropping

MUTATED = [
    "hermes, thinking", "llama json", "mistral list with ids", "name in a fence", "numbered",
    "parameters in tags", "keys in tags", "strings told apart", "python lines", "channels",
    "bare keys",
]  # fmt: skip

# Not marks of answers, or what the reader does not look for.
UNTOUCHED = {"marker", "code", "ends", "other_calls", "preamble"}
# Where the colon alone is found, what stands behind it is a literal with its own quotes.
EQUIVALENT = {("bare keys", ".calls.parameters.string.opening: lost at 0")}


def reading_of(source: str) -> Reading:
    template = CompiledTemplate(source, 2.0, datetime.now)
    special = {"bos_token": "<s>", "eos_token": "</s>"}

    def render(messages: Any, tools: Any) -> str:
        shown = {"messages": messages, "tools": tools, "add_generation_prompt": False}
        return template.render({**special, **shown})

    return read_format(template, special, find_traits(render, template.words))


def holds(verdict: Verdict) -> bool:
    return verdict.calls.is_proven and verdict.thought.is_on == verdict.thought.is_proven


def mutants(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The value with a character lost or added in one of its texts.

    White space aside, of which a reader takes more or less.
    """
    if isinstance(value, str) and value.strip():
        first = value.index(value.strip())
        last = len(value.rstrip()) - 1
        yield f"{path}: lost at {first}", value[:first] + value[first + 1 :]
        yield f"{path}: added at {last}", value[:last] + "~" + value[last:]
    elif isinstance(value, Parameters) and value.string.opening == value.other.opening:
        # Both are written alike: a mark that is wrong in one alone is never looked for.
        for name, string in mutants(value.string, f"{path}.string"):
            other = replace(value.other, opening=string.opening, closing=string.closing)
            yield name, replace(value, string=string, other=other)
        yield from _mutants_of_fields(value, path, {"string", "other"})
    elif is_dataclass(value) and not isinstance(value, type):
        yield from _mutants_of_fields(value, path, UNTOUCHED)


def _mutants_of_fields(value: Any, path: str, untouched: set[str]) -> Iterator[tuple[str, Any]]:
    for field in fields(value):
        if field.name not in untouched:
            for name, changed in mutants(getattr(value, field.name), f"{path}.{field.name}"):
                yield name, replace(value, **{field.name: changed})


@pytest.mark.parametrize("name", MUTATED)
def test_a_wrong_character_in_a_format_is_found(name: str) -> None:
    reading = reading_of(as_template(FORMATS[name]))
    assert holds(prove(reading))

    alive = []
    for mutation, changed in mutants(reading.answer_format):
        assert isinstance(changed, AnswerFormat)
        verdict = prove(replace(reading, answer_format=changed))
        is_alive = holds(verdict) and (verdict.thought.is_on or changed.thought is None)
        if is_alive and (name, mutation) not in EQUIVALENT:
            alive.append(mutation)

    assert alive == []


@pytest.mark.parametrize("closing", ["</think", "/think>", "</think>~", "~</think>", "</thought>"])
def test_a_thought_that_history_drops_is_proven_by_where_history_cuts_it(closing: str) -> None:
    reading = reading_of(dropping())
    assert prove(reading).thought.is_proven

    thought = ThoughtForm("<think>", closing)
    wrong = replace(reading, answer_format=replace(reading.answer_format, thought=thought))

    assert not prove(wrong).thought.is_proven


def test_a_thought_that_history_drops_is_proven_by_what_the_prompt_opens() -> None:
    reading = reading_of(dropping())
    thought = ThoughtForm("<thought>", "</think>")
    wrong = replace(reading, answer_format=replace(reading.answer_format, thought=thought))

    verdict = prove(wrong)

    assert (verdict.thought.is_on, verdict.thought.is_proven) == (True, False)
    assert verdict.thought.reason.endswith("writes nowhere what opens them")


def test_a_part_is_off_by_the_name_of_what_failed() -> None:
    reading = reading_of(as_template(FORMATS["parameters in tags"]))
    form = reading.answer_format
    assert form.calls is not None
    wrong = replace(form, calls=replace(form.calls, last="</other>"))

    verdict = prove(replace(reading, answer_format=wrong))

    assert verdict.answer_format.calls is None
    assert verdict.calls.reason.startswith("a call: ")
    assert verdict.thought.is_proven


def test_arguments_that_are_read_otherwise_are_found() -> None:
    source = as_template(FORMATS["hermes"]).replace(
        "c.function.arguments | tojson", "c.function.arguments | tojson | replace('7', '8')"
    )
    assert prove(reading_of(source)).calls.reason.startswith("two arguments: ")
