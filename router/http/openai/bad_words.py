"""`bad_words`: strings that stand in no answer, joined to the grammar asked for beside them.

What the client wrote in two fields becomes one expression, and messages tell of it in its words.
"""

from dataclasses import replace
from typing import Any

import orjson

from constraints.errors import ConstraintError
from constraints.spec import Kind
from constraints.where.cursor import MAX_TEXT_LEN
from constraints.where.parser import parse
from constraints.where.terms import Contains, Expression, Matches, Not, all_of
from constraints.where.writing import text
from router.request.errors import ConstraintRefused, InvalidRequest, cut, quoted
from router.request.grammar import RawGrammar

# Half of what an expression may have, so that one beside them has room.
# Words times choices that are looked at to tell no more words than need be.
_MAX_COUNTED = 200_000
_MAX_WORDS = 500
# Of more than these only the first are named in a message.
_MAX_NAMED = 20

# The field, and what stands there.
NamedGrammar = tuple[str, RawGrammar]


def without(words: list[str], shaped: NamedGrammar | None = None) -> NamedGrammar:
    """Texts in which none of these words stands: any, or those of a grammar.

    Raises InvalidRequest beside a grammar in which that cannot be said, ConstraintRefused where no
    choice is left.
    """
    if not all(words):
        raise InvalidRequest("`bad_words` must be strings, none empty", "bad_words")
    absent: dict[str, Expression] = {word: Not(Contains(word)) for word in words}
    if len(absent) > _MAX_WORDS:
        raise InvalidRequest(
            f"`bad_words` must be at most {_MAX_WORDS} different strings. Given: {len(absent)}",
            "bad_words",
        )
    terms = list(absent.values())
    told = {text(term): f"`bad_words` {quoted(word)}" for word, term in absent.items()}
    if shaped is None:
        return "bad_words", RawGrammar(Kind.WHERE, _joined(terms, "bad_words"), spellings=told)
    name, grammar = shaped
    match grammar.kind, grammar.value:
        case Kind.REGEX, str(pattern) if pattern:
            matches = Matches(pattern)
            value = _joined([matches, *terms], name)
            told[text(matches)] = f"`{name}` {quoted(pattern)}"
        case Kind.WHERE, str(written):
            try:
                expression = parse(written)
            except ConstraintError:
                return shaped  # which is refused in its own words
            value = _joined([expression, *terms], name)
        case Kind.CHOICE, list(choices):
            return name, replace(grammar, value=_kept(choices, list(absent), name))
        case Kind.JSON_SCHEMA | Kind.LARK | Kind.GBNF, _:
            rule = "are kept beside `regex`, `choice` and `where`, not beside JSON and grammars"
            raise InvalidRequest(f"`bad_words` {rule}, as `{name}` asks for", "bad_words")
        case _:
            return shaped
    return name, replace(grammar, kind=Kind.WHERE, value=value, spellings=told)


def _joined(terms: list[Expression], name: str) -> str:
    """All of it as one `where`. Raises InvalidRequest where that is too long."""
    written = text(all_of(terms))
    length = len(written.encode("utf-8", "surrogatepass"))
    if length > MAX_TEXT_LEN:
        beside = "" if name == "bad_words" else f" and `{name}`"
        rule = f"must have at most {MAX_TEXT_LEN} bytes together, with 16 for each word"
        raise InvalidRequest(f"`bad_words`{beside} {rule}. Given: {length}", "bad_words")
    return written


def _kept(choices: list[Any], words: list[str], name: str) -> list[Any]:
    """The choices without any of these words. Raises ConstraintRefused where none is left."""
    kept = [
        choice
        for choice in choices
        if not (isinstance(choice, str) and any(word in choice for word in words))
    ]
    if choices and not kept:
        raise _contradiction(choices, words, name)
    return kept


def _contradiction(choices: list[str], words: list[str], name: str) -> ConstraintRefused:
    """The refusal that a pattern of the same texts gets, where nothing has to be compiled."""
    shown = f"`{name}` {cut(orjson.dumps(choices).decode())}"
    parts = [shown, *(f"`bad_words` {quoted(word)}" for word in _needed(choices, words))]
    *others, last = parts
    told = f"nothing satisfies both {', '.join(others)} and {last}"
    if len(parts) > _MAX_NAMED:
        listed = ", ".join(parts[:_MAX_NAMED])
        told = f"nothing satisfies all of {listed} and {len(parts) - _MAX_NAMED} others"
    return ConstraintRefused(f"`{name}`: {told}", "contradiction", {"parts": parts}, name)


def _needed(choices: list[str], words: list[str]) -> list[str]:
    """Words of which each choice has one; none can be left out, where few enough are looked at."""
    found: list[str] = []
    for choice in choices:
        if not any(word in choice for word in found):
            found.append(next(word for word in words if word in choice))
    if len(choices) * len(found) > _MAX_COUNTED:
        return found
    counts = [sum(word in choice for word in found) for choice in choices]
    needed = []
    for word in found:
        places = [place for place, choice in enumerate(choices) if word in choice]
        if any(counts[place] == 1 for place in places):
            needed.append(word)
        else:
            for place in places:
                counts[place] -= 1
    return needed
