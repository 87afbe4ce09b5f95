"""Rewrites prompts: fixed text to `say`, tags to `role`, holes to awaited `hole` calls.

"Q: {x} [@f Y: int]" where c    ->    context.say(f"Q: {x} ", 0)
                                      Y = await context.hole(Hole("Y", int, f, lambda: c))
"""

import ast
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass

from client.query.errors import BadProgram
from client.query.reading.clauses import Distribution, PromptText
from client.query.reading.nodes import (
    CALLS,
    CONTEXT,
    Nodes,
    expression,
    load,
    names_used,
    plain_call,
    tuple_of,
)
from client.query.reading.template import FixedText, HoleTag, Recall, RoleTag, TemplatePart
from client.query.reading.text import Fragment, SourceSpan, Text
from client.query.reading.where_clauses import Conjunct, WhereClauses

_CONVERSIONS = {"s": ord("s"), "r": ord("r"), "a": ord("a")}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt and its parts. `span`: the whole statement."""

    parts: tuple[TemplatePart, ...]
    span: SourceSpan
    where: SourceSpan | None = None
    distribution: Distribution | None = None

    @property
    def holes(self) -> tuple[HoleTag, ...]:
        return tuple(part for part in self.parts if isinstance(part, HoleTag))


def prompt_of(prompt: PromptText, parts: tuple[TemplatePart, ...]) -> Prompt:
    return Prompt(parts, prompt.span, prompt.where, prompt.distribution)


class PromptRewriter:
    """Generates the statements of a program's prompts.

    prompts:       all prompts
    program_where: the program's own conditions, with their names in the body
    supports:      the program's distributions, by hole
    rebound:       holes whose variables the program's own code assigns, too
    """

    def __init__(
        self,
        nodes: Nodes,
        clauses: WhereClauses,
        prompts: Sequence[Prompt],
        program_where: Sequence[tuple[str, Conjunct]],
        supports: Mapping[str, Distribution],
        rebound: AbstractSet[str],
    ) -> None:
        self._nodes = nodes
        self._text: Text = nodes.text
        self._clauses = clauses
        self._program_where = program_where
        self._supports = supports
        self._rebound = rebound
        self._conjuncts = {prompt.span: self._behind(prompt) for prompt in prompts}
        self._python_names: dict[str, ast.Name] = {}

    @property
    def python_names(self) -> Sequence[ast.Name]:
        """Python names in the braces and tags rewritten so far, at their first places."""
        return tuple(self._python_names.values())

    def statements(self, prompt: Prompt) -> list[ast.stmt]:
        """The statements of a prompt, part by part. Raises BadProgram."""
        made: list[ast.stmt] = []
        said: list[FixedText | Recall] = []
        for part in prompt.parts:
            if isinstance(part, FixedText | Recall):
                said.append(part)
                continue
            made.extend(self._say(said))
            said.clear()
            if isinstance(part, RoleTag):
                made.append(self._role(part))
            else:
                made.append(self._hole(part, prompt))
        made.extend(self._say(said))
        return made or [self._nodes.at(ast.Pass(), prompt.span)]

    def _behind(self, prompt: Prompt) -> list[Conjunct]:
        """The conditions behind a prompt's `where`."""
        self._check_clauses(prompt)
        if prompt.where is None:
            return []
        what = "in the prompt's condition"
        parsed = expression(self._text, self._text.slice(prompt.where), what)
        own = {hole.name for hole in prompt.holes}
        return self._clauses.conjuncts(parsed, self._rebound - own)

    def _check_clauses(self, prompt: Prompt) -> None:
        if prompt.where is not None and not prompt.holes:
            raise self._bad("a `where` behind a prompt without holes", prompt.where)
        if prompt.distribution is not None:
            holes = [hole.name for hole in prompt.holes]
            prompt.distribution.check(self._text, holes, "its prompt")

    # Fixed text

    def _say(self, said: Sequence[FixedText | Recall]) -> list[ast.stmt]:
        if not said:
            return []
        span = SourceSpan(said[0].span.start, said[-1].span.end)
        call = plain_call(CONTEXT, "say", [self._joined(said), self._place(span)])
        return [self._nodes.at(ast.Expr(call), span)]

    def _joined(self, parts: Sequence[FixedText | Recall]) -> ast.expr:
        if all(isinstance(part, FixedText) for part in parts):
            text = "".join(part.text for part in parts if isinstance(part, FixedText))
            return ast.Constant(text)
        values: list[ast.expr] = []
        for part in parts:
            if isinstance(part, FixedText):
                values.append(self._nodes.at(ast.Constant(part.text), part.span))
            else:
                values.extend(self._recalled(part))
        return ast.JoinedStr(values)

    def _recalled(self, recall: Recall) -> list[ast.expr]:
        conversion = _CONVERSIONS.get(recall.conversion or "", -1)
        if recall.shows_code and recall.spec is None and recall.conversion is None:
            conversion = _CONVERSIONS["r"]
        spec = None
        if recall.spec is not None:
            joined = self._joined(recall.spec)
            spec = joined if isinstance(joined, ast.JoinedStr) else ast.JoinedStr([joined])
        code = plain_call(CALLS, "recalled", [self._code(recall.code, "in braces")])
        value = self._nodes.at(ast.FormattedValue(code, conversion, spec), recall.span)
        if not recall.shows_code:
            return [value]
        return [self._nodes.at(ast.Constant(recall.shows_code), recall.span), value]

    def _code(self, fragment: Fragment, what: str) -> ast.expr:
        """Parse code in a prompt, and record its names."""
        code = self._read(fragment, what)
        for name, node in names_used(code).items():
            self._python_names.setdefault(name, node)
        return code

    def _read(self, fragment: Fragment, what: str) -> ast.expr:
        """Parse code in a prompt: with the string's escapes resolved or, if invalid, as written.

        So `{"\\n".join(x)}` works in raw and other strings.
        """
        try:
            return expression(self._text, fragment, what)
        except BadProgram:
            start = fragment.offsets[0]
            end = fragment.offsets[-1]
            as_it_stands = self._text.slice(SourceSpan(start, end))
            if as_it_stands.code == fragment.code:
                raise
            with suppress(BadProgram):  # the first error is the relevant one
                return expression(self._text, as_it_stands, what)
            raise

    def _role(self, tag: RoleTag) -> ast.stmt:
        call = plain_call(CONTEXT, "role", [ast.Constant(tag.name), self._place(tag.span)])
        return self._nodes.at(ast.Expr(call), tag.span)

    # Holes

    def _hole(self, tag: HoleTag, prompt: Prompt) -> ast.stmt:
        here = {hole.name for hole in prompt.holes}
        behind = self._conjuncts[prompt.span]
        conditions = [
            *(self._own(part, here) for part in behind if part.concerns(tag.name, here)),
            *(load(name) for name, part in self._program_where if part.concerns(tag.name, ())),
        ]
        hole = plain_call(
            CALLS,
            "hole",
            [
                ast.Constant(tag.name),
                self._nodes.number(tag.span),
                self._kind(tag),
                tuple_of([self._decorator(code) for code in tag.decorators]),
                tuple_of(conditions),
                self._support(tag, prompt),
            ],
        )
        asked = ast.Await(plain_call(CONTEXT, "hole", [hole]))
        return self._nodes.at(ast.Assign([ast.Name(tag.name, ast.Store())], asked), tag.span)

    def _own(self, part: Conjunct, here: AbstractSet[str]) -> ast.expr:
        """A condition behind a prompt with the holes `here`."""
        if part.holes <= here:
            return part.function
        holes = tuple_of([ast.Constant(name) for name in sorted(here)])
        behind = plain_call(CALLS, "prompt_condition", [part.function, holes])
        return self._nodes.at(behind, self._nodes.span(part.function))

    def _kind(self, tag: HoleTag) -> ast.expr:
        if tag.kind is None:
            return ast.Constant(None)
        kind = self._code(tag.kind, f"the type of {tag.name}")
        span = self._nodes.span(kind)
        if not isinstance(kind, ast.Call):
            return self._nodes.call("kind", span, kind)
        given = [self._nodes.number(span), kind.func, *kind.args]
        return self._nodes.at(plain_call(CALLS, "called_kind", given, kind.keywords), span)

    def _decorator(self, code: Fragment) -> ast.expr:
        function = self._code(code, "behind '@'")
        return self._nodes.call("decorator", self._nodes.span(function), function)

    def _support(self, tag: HoleTag, prompt: Prompt) -> ast.expr:
        distribution = self._distribution(tag, prompt)
        return ast.Constant(None) if distribution is None else self.support(distribution)

    def _distribution(self, tag: HoleTag, prompt: Prompt) -> Distribution | None:
        own = prompt.distribution
        if own is not None and own.name == tag.name:
            return own
        return self._supports.get(tag.name)

    def support(self, distribution: Distribution) -> ast.expr:
        """The values of a distribution."""
        name = ast.Constant(distribution.name)
        values = self._values(distribution)
        return self._nodes.call("support", distribution.values, name, values)

    def _values(self, distribution: Distribution) -> ast.expr:
        what = f"the values of {distribution.name}"
        return expression(self._text, self._text.slice(distribution.values), what)

    def _place(self, span: SourceSpan) -> ast.expr:
        return plain_call(CALLS, "place", [self._nodes.number(span)])

    def _bad(self, message: str, span: SourceSpan) -> BadProgram:
        return self._text.bad(message, span.start, span.end)
