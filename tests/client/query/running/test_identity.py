"""A decorated function is still known for what it is; a call of it that cannot be, where it is."""

import inspect
from typing import get_type_hints

import pytest

from client.query import F, ProgramFailed, query, run_sync, sample
from tests.client.query.running.scripted_model import ScriptedModel

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


class Person:
    @query(model=THREE)
    def greeted(self, name: str) -> None:
        """Hello {name}: [X]"""


def test_a_query_has_the_names_and_the_signature_of_its_function() -> None:
    for each in (asked, asked.using(decoder=sample())):
        assert (each.__name__, each.__qualname__, each.__module__) == ("asked", "asked", __name__)
        assert each.__doc__ == asked.__wrapped__.__doc__ != type(asked).__doc__
        assert str(inspect.signature(each)) == "(question: str, *, times: int = 2) -> str"
    assert get_type_hints(asked) == {"question": str, "times": int, "return": str}
    assert inspect.getsource(said).startswith("@query(model=THREE)\ndef said(")


def test_a_method_has_no_self_where_its_object_has_it() -> None:
    assert Person().greeted.__qualname__ == "Person.greeted"
    assert str(inspect.signature(Person.greeted)) == "(self, name: str) -> None"
    assert str(inspect.signature(Person().greeted)) == "(name: str) -> None"
    assert Person().greeted("Ann").prompt == "Hello Ann: 3"


def test_a_template_takes_its_names_as_keywords() -> None:
    assert str(inspect.signature(F("Say {a}, {b}: [X]"))) == "(*, a, b)"


def test_wrong_arguments_are_told_with_where_the_query_is_defined() -> None:
    with pytest.raises(ProgramFailed) as caught:
        said()  # type: ignore[call-arg]
    line = inspect.getsourcelines(said)[1] + 1

    assert str(caught.value).split("\n") == [
        f"{__file__}:{line}:1: TypeError: said() missing 1 required positional argument: 'word'",
        "    def said(word: str) -> str:  # type: ignore[empty-body]",
        "    ^^^^^^^^",
    ]
    with pytest.raises(ProgramFailed, match=r"test_identity\.py:\d+:5: TypeError: greeted\(\)"):
        Person().greeted()  # type: ignore[call-arg]
    with pytest.raises(ProgramFailed, match=r"<query>:1:2: TypeError: said\(\) missing"):
        run_sync('"[X: said]"', {"said": said}, model=THREE)


def test_a_template_without_its_values_is_told_which_it_lacks() -> None:
    ask = F("Say a {a} and {b!r}: [X]", model=THREE)
    with pytest.raises(ProgramFailed) as caught:
        ask()

    assert str(caught.value).split("\n") == [
        "<template>:1:11: values are missing; a call gives them by their names: (a=..., b=...)",
        '    """Say a {a} and {b!r}: [X]"""',
        "              ^",
    ]
    with pytest.raises(ProgramFailed, match=r"^<template>:1:19: .* by their names: \(b=\.\.\.\)"):
        ask.run_sync(a=1)
    with pytest.raises(ProgramFailed, match=r"^<template>:1:1: TypeError: .* argument 'c'"):
        ask(a=1, b=2, c=3)
    with pytest.raises(ProgramFailed, match=r"^<template>:1:11: values are missing"):
        F("{{a}} {a}[X]", model=THREE)()
    with pytest.raises(ProgramFailed, match=r"^<template>:1:13: values are missing"):
        F("a {b.a} {a}[X]", model=THREE)(b=1)
    with pytest.raises(ProgramFailed, match=r"^<template>:1:28: values are missing"):
        F("a [X]", "len(X) < a", model=THREE)()
    assert ask.run_sync("x", "y").prompt == "Say a x and 'y': 3"
