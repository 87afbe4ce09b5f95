"""A judged JSON text as masks would write it: its keys in the schema's order.

Masks write one spelling of each value: keys in the schema's order, numbers without needless points
and exponents, characters as themselves. A text from elsewhere may have another. It is an instance
if its value is legal in the spelling of masks.
"""

import json
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import chain
from math import inf

from constraints.engine import GrammarLanguage, GrammarMatcher
from constraints.schema.reading import Json
from constraints.schema.validation import loads, without_exponent
from constraints.spec import ConstraintSpec, Whitespace

_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+)(\s*)')
_NUMBER = re.compile("[-0-9]")
# That fill the decimals of a number up.
_MAX_ZEROS = 16
_MAX_SHOWN_KEYS = 12
_MAX_SHOWN_LEN = 60


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a JSON text.

    position:  in characters
    space:     what is behind it
    opened_at: of a key, the position of its object
    """

    text: str
    position: int
    space: str
    opened_at: int | None = None

    def spellings(self) -> Iterator[str]:
        """As it stands, and then as masks might write it."""
        yield self.text
        if self.text[0] == '"':
            yield json.dumps(json.loads(self.text), ensure_ascii=False)
        elif _NUMBER.match(self.text):
            plain = without_exponent(Decimal(loads(self.text)))
            if plain:
                yield plain
            if "." in plain:
                yield from (plain + "0" * num_zeros for num_zeros in range(1, _MAX_ZEROS + 1))


@dataclass(frozen=True, slots=True)
class _Members:
    """Members of an object that are left to be written, in the order in which they are tried.

    Each is a key, with a colon and a value as steps.
    """

    members: tuple[tuple[Token, tuple["_Step", ...]], ...]
    commas: tuple[Token, ...]


_Step = Token | _Members
_Steps = tuple[_Step, "_Steps"] | None


@dataclass(frozen=True, slots=True)
class Respelt:
    """A text in the spelling of masks, or the beginning of one.

    tokens:       as they were written, each with its spelling
    next_token:   of a beginning, what cannot follow; None: the end, or any of the keys left
    is_whole:     whether it is legal to its end
    """

    tokens: tuple[tuple[Token, str], ...]
    next_token: Token | None
    is_whole: bool

    @property
    def text(self) -> str:
        return "".join(spelling for _, spelling in self.tokens)

    @property
    def next_position(self) -> int:
        """The place in the judged text where the next token, or what ends a value, stands."""
        assert self.next_token is not None
        if not self.tokens or self.next_token.text not in ("}", "]", ","):
            return self.next_token.position
        last, _ = self.tokens[-1]
        return last.position + len(last.text)

    @property
    def has_other_numbers(self) -> bool:
        others = [token for token, spelling in self.tokens if spelling.rstrip() != token.text]
        return any(_NUMBER.match(token.text) for token in others)

    def difference(self) -> tuple[int, str] | None:
        """The first place in the judged text where masks write something else, and what.

        None: only white space differs.
        """
        judged = sorted((token for token, _ in self.tokens), key=lambda token: token.position)
        for token, (written, spelling) in zip(judged, self.tokens, strict=True):
            if token is not written:
                siblings = [each for each, _ in self.tokens if each.opened_at == token.opened_at]
                names = [f"`{json.loads(each.text)}`" for each in siblings[:_MAX_SHOWN_KEYS]]
                names += ["..."] if len(siblings) > _MAX_SHOWN_KEYS else []
                return token.position, f"the keys in the order {', '.join(names)}"
            if spelling.rstrip() != token.text:
                return token.position, f"{_shown(spelling)} for {_shown(token.text)}"
        return None


@dataclass(frozen=True, slots=True)
class _Path:
    """A text begun: its last token, the path before it, and the steps that are left."""

    matcher: GrammarMatcher
    steps: _Steps
    token: tuple[Token, str] | None = None
    before: "_Path | None" = None

    def respelt(self) -> Respelt:
        tokens = []
        path: _Path | None = self
        while path is not None and path.token is not None:
            tokens.append(path.token)
            path = path.before
        step = self.steps and self.steps[0]
        next_token = step if isinstance(step, Token) else None
        is_whole = self.steps is None and self.matcher.is_complete
        return Respelt(tuple(reversed(tokens)), next_token, is_whole)


class Respelling:
    """Respells texts under a schema. `language`: over single bytes."""

    def __init__(self, language: GrammarLanguage, spec: ConstraintSpec) -> None:
        self._language = language
        # White space that was asked for is a part of the constraint.
        self._keeps_space = spec.whitespace is not Whitespace.FLEXIBLE
        self._orders = list(_orders(loads(spec.text)))
        names = dict.fromkeys(chain.from_iterable(self._orders))
        self._everywhere = {name: index for index, name in enumerate(names)}
        # By the names of an object.
        self._best: dict[frozenset[str], dict[str, int]] = {}

    def respelt(self, text: str, max_dead_ends: int) -> Respelt | None:
        """The text as masks write it, or else the beginning of what was tried first.

        None: it is no JSON, or a key stands twice. `max_dead_ends`: after so many orders of keys
        that lead nowhere no further one is tried.

        Raises EngineFailed.
        """
        try:
            loads(text)
            steps = self._steps(deque(_tokens(text)))
        except (ValueError, RecursionError):
            return None
        if self._keeps_space and text[0].isspace():
            return None
        dead_ends: list[_Path] = []
        paths: list[Iterator[_Path]] = [iter((_Path(self._language.matcher(), _linked(steps)),))]
        while paths and len(dead_ends) < max_dead_ends:
            path = next(paths[-1], None)
            if path is None:
                paths.pop()
                continue
            if path.steps is None and path.matcher.is_complete:
                return path.respelt()
            ahead = self._ahead(path)
            following = next(ahead, None)
            if following is None:
                dead_ends.append(path)
            else:
                paths.append(chain((following,), ahead))
        return dead_ends[0].respelt()

    def _ahead(self, path: _Path) -> Iterator[_Path]:
        """The ways to take the next step of a path."""
        if path.steps is None:
            return
        step, rest = path.steps
        if isinstance(step, Token):
            yield from self._behind(path, step, rest)
            return
        for index, (key, value) in enumerate(step.members):
            left = step.members[:index] + step.members[index + 1 :]
            more = (step.commas[0], _Members(left, step.commas[1:])) if left else ()
            yield from self._behind(path, key, _linked((*value, *more), rest))

    def _behind(self, path: _Path, token: Token, steps: _Steps) -> Iterator[_Path]:
        for spelling in token.spellings():
            written = spelling + token.space if self._keeps_space else spelling
            encoded = written.encode(errors="surrogatepass")
            if path.matcher.num_legal(encoded) == len(encoded):
                # Other keys may stand here, and what may follow can depend on a number's spelling.
                is_number = _NUMBER.match(spelling)
                has_others = is_number or token.opened_at is not None
                matcher = path.matcher.fork() if has_others else path.matcher
                matcher.follow(encoded)
                yield _Path(matcher, steps, (token, written), path)
                if not is_number:
                    return

    def _steps(self, tokens: deque[Token]) -> list[_Step]:
        """The steps of the value that comes next. Raises RecursionError, ValueError."""
        opening = tokens.popleft()
        steps: list[_Step] = [opening]
        if opening.text == "[":
            while tokens[0].text != "]":
                steps += [tokens.popleft()] if tokens[0].text == "," else self._steps(tokens)
            steps.append(tokens.popleft())
        elif opening.text == "{":
            members: dict[Token, tuple[_Step, ...]] = {}
            commas = []
            while tokens[0].text != "}":
                if tokens[0].text == ",":
                    commas.append(tokens.popleft())
                key = replace(tokens.popleft(), opened_at=opening.position)
                members[key] = (tokens.popleft(), *self._steps(tokens))
            if members:
                keys = self._in_likely_order(list(members))
                steps.append(_Members(tuple((key, members[key]) for key in keys), tuple(commas)))
            steps.append(tokens.popleft())
        return steps

    def _in_likely_order(self, keys: list[Token]) -> list[Token]:
        """By the part of the schema that has the most of the keys, and then by all of it."""
        names = {key: json.loads(key.text) for key in keys}
        known = frozenset(names.values())
        if len(known) < len(keys):
            raise ValueError("a key stands twice in one object")
        best = self._best.get(known)
        if best is None:
            best = max(self._orders, key=lambda order: len(known & order.keys()), default={})
            self._best[known] = best

        def rank(key: Token) -> tuple[float, float]:
            return best.get(names[key], inf), self._everywhere.get(names[key], inf)

        return sorted(keys, key=rank)


def _orders(schema: Json) -> Iterator[dict[str, int]]:
    """The names that each part of a schema declares, with their places."""
    if isinstance(schema, dict):
        lists = [schema.get(key) for key in ("propertyOrdering", "properties", "required")]
        names = chain.from_iterable(each for each in lists if isinstance(each, list | dict))
        declared = dict.fromkeys(name for name in names if isinstance(name, str))
        if declared:
            yield {name: index for index, name in enumerate(declared)}
        schema = list(schema.values())
    for part in schema if isinstance(schema, list) else ():
        yield from _orders(part)


def _tokens(text: str) -> Iterator[Token]:
    for found in _TOKEN.finditer(text):
        yield Token(found[1], found.start(), found[2])


def _linked(steps: Sequence[_Step], rest: _Steps = None) -> _Steps:
    for step in reversed(steps):
        rest = (step, rest)
    return rest


def _shown(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_LEN else text[:_MAX_SHOWN_LEN] + "..."
