"""Queries as Python functions, methods, templates and text, and queries within queries."""

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import get_type_hints

import pytest

from client.query import (
    BadProgram,
    F,
    ProgramFailed,
    Result,
    State,
    Unsatisfiable,
    generate,
    query,
    read_file,
    run,
    run_file,
    run_sync,
    sample,
    score,
)
from client.query.reading.reader import read
from client.sampling import Sampling
from tests.client.query.running.models import ScriptedModel, in_turn

SEEN = ScriptedModel(lambda prompt: [f"<{prompt}>"])


@query(model=SEEN)
async def shout(word: str) -> str:  # type: ignore[empty-body]
    """
    "{word}:[LOUD]"
    return LOUD.upper()
    """


@query(model=SEEN)
def whole(word, times=2):  # type: ignore[no-untyped-def]
    for _ in range(times):
        "{word}:[X]"


async def test_a_synchronous_call_within_an_event_loop_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match="async def"):
        whole("hi")


@pytest.mark.parametrize("name", ["shout", "whole", "template"])
async def test_a_query_is_watched_with_its_arguments(name: str) -> None:
    model = ScriptedModel(in_turn("hi"))
    watched = {
        "shout": shout.using(model=model).watch("a"),
        "whole": whole.using(model=model).watch("a", times=1),
        "template": F("{word}:[X]", model=model).watch(word="a"),
    }

    *states, result = [part async for part in watched[name]]

    assert isinstance(result, Result)
    assert result.prompt == "a:hi"
    assert {type(state) for state in states} == {State}


async def test_another_decoder_or_model_makes_another_query() -> None:
    model = ScriptedModel(lambda prompt: ["yes"])

    results = await shout.using(model=model, decoder=sample(2, seed=4)).run_all("hi")

    assert [result.value for result in results] == ["YES", "YES"]
    assert [call.sampling for call in model.generate_calls] == [
        Sampling(temperature=1.0, seed=4),
        Sampling(temperature=1.0, seed=5),
    ]
    assert await shout("hi") == "<HI:>"


async def test_a_query_within_a_query_asks_its_callers_model(tmp_path: Path) -> None:
    model = ScriptedModel(lambda prompt: ["no"])
    trace = tmp_path / "calls.jsonl"

    @query
    async def inner(word: str) -> str:  # type: ignore[empty-body]
        """
        "{word}?[Y]"
        return Y
        """

    @query(model=model, trace=trace)
    async def outer(word: str) -> object:
        """
        import asyncio
        first, second = await asyncio.gather(inner(word), inner("b"))
        "{first}{second} [X: inner(word)]"
        return [first, second, X]
        """

    result = await outer.run("a")

    assert result.value == ["no", "no", "no"]
    assert result.prompt == "nono no"
    assert sorted(model.prompts) == ["a?", "b?", "nono a?"]
    assert len(result.requests) == len(trace.read_text().splitlines()) == 3


def test_a_template_takes_its_names_as_keywords_and_gives_its_hole() -> None:
    ask = F("Say {a}, {b}: [X]", "len(X) < 20", model=ScriptedModel(in_turn("word")))

    assert ask(a="x", b="y") == "word"


def test_a_decorator_is_called_on_the_value_and_may_ask_for_the_text() -> None:
    def both(value: int, text: str) -> tuple[int, str]:
        return value, text

    result = run_sync(
        '"[@both X: int] [@len Y]"', {"both": both}, model=ScriptedModel(in_turn("12", "abc"))
    )

    assert result.variables == {"X": (12, "12"), "Y": 3}
    assert result.prompt == "12 abc"


async def test_what_a_nested_query_raises_points_into_that() -> None:
    @query
    async def inner() -> str:  # type: ignore[empty-body]
        """
        "Hm"
        return 1 / 0
        """

    with pytest.raises(ProgramFailed) as caught:
        await run('"[X: inner]"', {"inner": inner}, model=ScriptedModel(in_turn()))

    assert caught.value.source == inner.program.source


async def test_a_program_may_catch_its_own_errors_but_not_those_of_its_conditions() -> None:
    text = 'try:\n    "[X]" where X in [] and len(X) > n\nexcept Exception:\n    "caught"'

    with pytest.raises(Unsatisfiable):
        await run(text, {"n": 1}, model=ScriptedModel(in_turn("a")))


async def test_a_value_that_the_program_changes_is_whole_again_when_it_is_replayed() -> None:
    text = """
"X:[@list X]"
X.append("!")
" Y:[Y]" where Y in ["a", "b"] and fits(Y, Z)
" Z:[Z]" where Z in ["c"]
return X, Y
"""
    wishes = {"X": ["x"], "Y": ["a", "b"], "Z": ["c"]}
    model = ScriptedModel(lambda prompt: wishes[prompt[prompt.rindex(":") - 1]])

    result = await run(text, {"fits": lambda y, z: y == "b"}, model=model)

    assert result.value == (["x", "!"], "b")
    assert [request.hole for request in result.requests] == ["X", "Y", "Y", "Z"]


async def test_a_file_is_run_and_named_in_errors(tmp_path: Path) -> None:
    path = tmp_path / "one.query"
    path.write_text('"Say [X]"')

    assert (await run_file(path, model=ScriptedModel(in_turn("hi")))).prompt == "Say hi"

    path.write_text('"Say [X" where')
    with pytest.raises(BadProgram, match=r"one\.query:1"):
        read_file(path)

    path.write_bytes('"Größe [X]"'.encode("latin-1"))
    with pytest.raises(BadProgram, match=r"one\.query is no UTF-8: .* position 3"):
        read_file(path)


def test_a_template_takes_lmqls_word_for_its_condition() -> None:
    model = ScriptedModel(lambda prompt: ["no", "a"])

    assert F("Say [X]", constraints="len(X) < 2", model=model)() == "a"
    with pytest.raises(TypeError, match="mean the same"):
        F("Say [X]", "len(X) < 2", constraints="len(X) < 2")


async def test_one_call_takes_what_decoders_take() -> None:
    model = ScriptedModel(lambda prompt: ["yes"])

    await generate("a", model=model, temperature=0.5, typical_p=0.9)

    assert model.generate_calls[0].sampling == Sampling(temperature=0.5, typical_p=0.9)


async def test_the_values_of_a_score_are_no_single_text() -> None:
    with pytest.raises(ValueError, match="a list of texts"):
        await score("a", "yes", model=ScriptedModel(lambda prompt: ["yes"]))


@pytest.mark.parametrize("then", ["pass", '"too late[Y]"'])
async def test_a_program_cannot_stop_waiting_for_a_hole(then: str) -> None:
    text = (
        "import asyncio\n"
        "try:\n"
        "    async with asyncio.timeout(0):\n"
        '        "[X]"\n'
        "except TimeoutError:\n"
        f"    {then}"
    )

    with pytest.raises(BadProgram, match=r"<query>:4:10: .* stopped waiting for \[X\]"):
        await run(text, model=ScriptedModel(lambda prompt: ["yes"]))


async def test_what_a_programs_python_asks_by_itself_is_booked_with_it(tmp_path: Path) -> None:
    text = 'said = await generate("a")\nbest = (await score("b", ["x", "yy"])).best()\n"{best}[X]"'
    model, trace = ScriptedModel(lambda prompt: ["yes"]), tmp_path / "calls.jsonl"

    result = await run(text, {"generate": generate, "score": score}, model=model, trace=trace)

    assert result.prompt == "xyes"
    assert [(row.kind, row.hole) for row in result.requests] == [
        ("generate", ""),
        ("score", ""),
        ("generate", "X"),
    ]
    assert len(trace.read_text().splitlines()) == 3


async def test_a_decoder_may_be_given_by_its_name() -> None:
    model = ScriptedModel(lambda prompt: ["yes"])

    await shout.using(model=model, decoder="sample").run("hi")

    assert model.generate_calls[0].sampling.temperature == 1.0
    with pytest.raises(ValueError, match="there is no decoder `samples`"):
        await shout.using(decoder="samples").run("hi")
    with pytest.raises(TypeError, match="decoder must be"):
        shout.using(decoder=sample)  # type: ignore[arg-type]


def test_a_program_in_a_docstring_with_code_behind_it_is_refused() -> None:
    def both():  # type: ignore[no-untyped-def]
        """
        "Say [X]" where len(X) < 3
        """
        return 3

    def quoted():  # type: ignore[no-untyped-def]
        """
        "Say this", said [X]
        """
        return 3

    with pytest.raises(BadProgram, match="a program in a docstring, and code behind it"):
        query(both)
    assert query(quoted).program.hole_names == {"X"}


def test_an_option_that_runs_do_not_have_is_told_with_those_they_have() -> None:
    told = "there is no option 'colour'; there are model, url, decoder, trace"
    with pytest.raises(TypeError, match=told):
        shout.using(colour="red")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=told):
        query(colour="red")  # type: ignore[call-overload]


MODEL = ScriptedModel(lambda prompt: [str(len(prompt))])


class Asker:
    greeting = F("Say {a}: [X]", model=MODEL)

    def __init__(self, word: str, num_traces: int = 1) -> None:
        self.word = word
        self.num_traces = num_traces

    @query(model=MODEL)
    def samples(self, sign: str) -> None:
        """
        sample(n=self.num_traces)
            "{self.word}{sign}[X]"
        """


def test_clauses_speak_of_the_object() -> None:
    results = Asker("a", 3).samples.run_all_sync("!")

    assert [result.prompt for result in results] == ["a!2"] * 3


@pytest.mark.parametrize("kind", ["asker.samples('?')", "call('?')"])
def test_a_method_fills_a_hole(kind: str) -> None:
    asker = Asker("abc")

    result = run_sync(f'"He: [X: {kind}]!"', {"asker": asker, "call": asker.samples}, model=MODEL)

    assert result.prompt == "He: abc?8!"


def test_a_template_in_a_class_is_no_method() -> None:
    assert Asker("a").greeting(a="no") == "8"


THREE = ScriptedModel(lambda prompt: ["3"])


@query(model=THREE)
async def asked(question: str, *, times: int = 2) -> str:  # type: ignore[empty-body]
    """
    "{question}[X]"
    return X
    """


@query(model=THREE)
def said(word: str) -> str:  # type: ignore[empty-body]
    "Say {word}: [X]"


def test_a_query_has_the_names_and_the_signature_of_its_function() -> None:
    for each in (asked, asked.using(decoder=sample())):
        assert (each.__name__, each.__qualname__, each.__module__) == ("asked", "asked", __name__)
        assert each.__doc__ == asked.__wrapped__.__doc__ != type(asked).__doc__
        assert str(inspect.signature(each)) == "(question: str, *, times: int = 2) -> str"
    assert get_type_hints(asked) == {"question": str, "times": int, "return": str}
    assert inspect.getsource(said).startswith("@query(model=THREE)\ndef said(")


def test_wrong_arguments_are_told_without_the_context() -> None:
    with pytest.raises(ProgramFailed, match=r"^TypeError: said\(\) missing .* argument: 'word'$"):
        said()  # type: ignore[call-arg]
    with pytest.raises(ProgramFailed, match=r"<query>:1:2: TypeError: said\(\) missing"):
        run_sync('"[X: said]"', {"said": said}, model=THREE)


def test_a_template_without_its_values_is_told_which_it_lacks() -> None:
    ask = F("Say a {a} and {b!r}: [X]", model=THREE)
    with pytest.raises(ProgramFailed, match=r"<template>\(\) missing a required argument: 'a'"):
        ask()
    with pytest.raises(ProgramFailed, match=r"<template>\(\) missing a required argument: 'b'"):
        ask.run_sync(a=1)
    with pytest.raises(ProgramFailed, match=r"TypeError: .* argument 'c'"):
        ask(a=1, b=2, c=3)
    with pytest.raises(ProgramFailed, match="missing a required argument: 'a'"):
        F("a [X]", "len(X) < a", model=THREE)()
    assert ask.run_sync("x", "y").prompt == "Say a x and 'y': 3"


# Queries, as far as programs know them.
INNER = {
    "step": F("(think of {about}: [T])"),
    "answer": SimpleNamespace(program=read('"(think: [T])"\nreturn "42"', name="answer")),
    "told": SimpleNamespace(program=read('"[T]"\nreturn T', name="told")),
}


async def nested(text: str, *wishes: str, **names: object) -> Result[object]:
    """The result of a program with nested queries, in a model that has all of these wishes."""
    return await run(text, {**INNER, **names}, model=ScriptedModel(lambda prompt: wishes))


@pytest.mark.parametrize(
    ("text", "prompt", "values"),
    [
        # Without return the inner text stays, with it the value takes its place.
        ("\"Q [X: step('me')] end\"", "Q (think of me: cow) end", ("(think of me: cow)",)),
        ('"Q [X: answer] then [Y]"', "Q 42 then cow", ("42", "cow")),
        # A check on the value asks the inner hole again, and so does a hole to come.
        ('"[X: told]" where ok(X)', "dog", ("dog",)),
        ('"[X: told] [Y]" where differ(X, Y) and Y in ["cow"]', "dog cow", ("dog", "cow")),
        (
            '"[X: told]" where X and (X != Y and Y != Z and Z != "cow")\n" [Y]"\n" [Z]"',
            "cow dog pig",
            ("cow", "dog", "pig"),
        ),
    ],
)
async def test_a_nested_query_fills_a_hole(text: str, prompt: str, values: tuple[str, ...]) -> None:
    result = await nested(text, "cow", "dog", "pig", ok="dog".__eq__, differ=str.__ne__)

    assert result.prompt == prompt
    assert tuple(result.variables.values()) == values


async def test_an_earlier_inner_hole_is_asked_again_where_the_last_one_cannot_help() -> None:
    inner = read('"[T]" where T in ["cow", "dog"]\n"[U]" where U in ["only"]\nreturn T')
    names = {"inner": SimpleNamespace(program=inner), "ok": "dog".__eq__}

    assert (await nested('"[X: inner]" where ok(X)', "cow", "dog", "only", **names))["X"] == "dog"
