"""Finds terminals that match no text, such as A: /a/ & /b/.

The engine would allow texts that can never be completed. So it is asked for each terminal that may
be empty: where patterns are intersected or negated (&, ~), or a set excludes categories of
characters, and no example text is obvious.
"""

import re
from collections.abc import Mapping, Sequence
from time import thread_time

from constraints.errors import ConstraintError, Contradiction
from constraints.grammars import engine_messages
from constraints.grammars.definition_graph import check_depth
from constraints.grammars.engine import HEADER, GrammarLanguage
from constraints.grammars.lark_reader import Word, definitions, lines, plain_name
from constraints.grammars.limits import Limits
from constraints.guiding.alphabet import byte_vocabulary

# The most terminals that are tried, and CPU seconds; one takes about a millisecond.
_MAX_TRIED = 64
_MAX_S = 0.2
_MAX_PLAIN_LEN = 16
# In a pattern: any text, and an escaped sign.
_FREE = re.compile(r"\(\?s:\.[*+]\)")
_ESCAPED = re.compile(r"\\(\W)")
_CUTS = re.compile(r"\[\^(?:[^\]\\]|\\.)*\\[sSdDwWpPxuU]")


def empty_terminals(text: str, found: Sequence[Word], written: Mapping[int, str]) -> list[Word]:
    """Names of terminals, and patterns in rules, that `start` reaches and that match no text.

    found: the words of the grammar
    written: by place, the words of `text` that are replaced for the engine
    """
    suspects = [word for word in _reached(found) if _may_be_empty(word, found)]
    if not suspects:
        return []
    shared = "".join(
        _rewritten(text, line, written) + "\n"
        for line in lines(found)
        if line[0].kind == "terminal" or line[0].text == "%import"
    )
    until = thread_time() + _MAX_S
    return [
        word
        for word in suspects[:_MAX_TRIED]
        if thread_time() < until
        and _is_empty(f"start: {_rewritten(text, [word], written)}\n{shared}")
    ]


def _reached(found: Sequence[Word]) -> list[Word]:
    """The names of reached terminals, and the patterns within rules."""
    bodies = {plain_name(each.name.text): each for each in definitions(found)}
    mentions = {
        name: [plain_name(word.text) for word in each.body] for name, each in bodies.items()
    }
    reached = check_depth(["start"], mentions)
    words: list[Word] = []
    for name, each in bodies.items():
        if name in reached and each.name.kind == "terminal":
            words.append(each.name)
        elif name in reached:
            words.extend(word for word in each.body if word.kind == "regexp")
    return words


def _may_be_empty(word: Word, found: Sequence[Word]) -> bool:
    if word.kind == "regexp":
        return _CUTS.search(word.text) is not None
    body = next(each.body for each in definitions(found) if each.name is word)
    is_restricted = any(
        each.text in ("&", "~") or (each.kind == "regexp" and _CUTS.search(each.text))
        for each in body
    )
    return is_restricted and not _has_plain_text(body)


def _has_plain_text(body: Sequence[Word]) -> bool:
    """Whether the empty text, or the plain characters of a pattern, match the whole terminal.

    True only where that is certain. Short texts are matched quickly by any pattern.
    """
    shape = "".join("p" if word.kind == "regexp" else word.text for word in body)
    if re.fullmatch(r"~?p(?:&~?p)*", shape) is None:
        return False
    try:
        patterns = [_compiled(word.text) for word in body if word.kind == "regexp"]
    except (re.error, RecursionError, OverflowError, FutureWarning):
        return False
    are_wanted = [sign != "~p" for sign in shape.split("&")]
    texts = ["", *(_ESCAPED.sub(r"\1", _FREE.sub("", each.pattern)) for each in patterns)]
    return any(
        all(
            (pattern.fullmatch(text) is not None) == is_wanted
            for pattern, is_wanted in zip(patterns, are_wanted, strict=True)
        )
        for text in texts
        if len(text) <= _MAX_PLAIN_LEN
    )


def _compiled(literal: str) -> re.Pattern[str]:
    pattern, _, flags = literal[1:].rpartition("/")
    return re.compile(f"(?{flags}){pattern}" if flags else pattern)


def _rewritten(text: str, words: Sequence[Word], written: Mapping[int, str]) -> str:
    pieces = []
    at = words[0].start
    for word in words:
        pieces += [text[at : word.start], written.get(word.start, text[word.start : word.end])]
        at = word.end
    return "".join(pieces)


def _is_empty(grammar: str) -> bool:
    try:
        GrammarLanguage(byte_vocabulary(), HEADER + grammar, Limits(), engine_messages.explain)
    except Contradiction:
        return True
    except ConstraintError:
        return False  # the engine reports it for the whole grammar
    return False
