"""The grammar of a model's answers, in Lark: free text, and calls as the model writes them.

    AnswerFormat + tools -> rules; marks that are special tokens stand in them by their ids

It begins where the answer's body does, behind a thought. Whatever it allows `AnswerReader` reads,
and nothing else reads like a call:

    free text   has no mark of a call, spelled out, and none of the special tokens
    wrappers    their white space may be left out or be other white space; some members are optional
    arguments   a JSON object, or parameters in the order of the schema: see `parameter_grammar.py`

Terminals are greedy and never go back, so text up to a mark is one terminal with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from router.text.answer_format import AnswerFormat, CallForm, spellings
from router.text.grammar_rules import ANY, GrammarRules, pattern
from router.text.parameter_grammar import ParameterGrammar

_NAME = r"[\w.-]+"


def marks_of(answer_format: AnswerFormat, special_tokens: Mapping[str, int]) -> dict[str, int]:
    """The special tokens in the texts of a format, by name; those that end answers are none."""
    text = "\n".join(answer_format.markers)
    return {
        name: token_id
        for name, token_id in special_tokens.items()
        if name in text and name not in answer_format.ends
    }


def without_unmarked(answer_format: AnswerFormat, marks: Mapping[str, int]) -> AnswerFormat:
    """Beside bare calls without the other ones whose mark is no special token.

    A free text up to such a mark would go on through every bare call.
    """
    if answer_format.calls is None or not answer_format.calls.is_bare:
        return answer_format
    others = tuple(form for form in answer_format.other_calls if form.trigger in marks)
    return replace(answer_format, other_calls=others)


def answer_grammar(
    answer_format: AnswerFormat,
    marks: Mapping[str, int],
    parameters_by_tool: Mapping[str, Mapping[str, Any]],
    *,
    allows_text: bool,
    may_repeat: bool,
    form: str | None = None,
) -> str:
    """The grammar; the whitespace of JSON is chosen by its compiler.

    marks:              of `marks_of`
    parameters_by_tool: the JSON schemas of the tools that may be called
    allows_text:        the answer may be text, before its calls or without any
    may_repeat:         it may have several calls
    form:               the JSON schema of an answer that does not call; None: free text
    """
    return _AnswerGrammar(answer_format, marks, parameters_by_tool, may_repeat).text(
        allows_text=allows_text, form=form
    )


class _AnswerGrammar:
    def __init__(
        self,
        answer_format: AnswerFormat,
        marks: Mapping[str, int],
        parameters_by_tool: Mapping[str, Mapping[str, Any]],
        may_repeat: bool,
    ) -> None:
        self._format = answer_format
        forms = (answer_format.calls, *answer_format.other_calls)
        self._forms = [each for each in forms if each is not None]
        self._rules = GrammarRules(marks)
        self._parameters_by_tool = parameters_by_tool
        self._may_repeat = may_repeat

    def text(self, *, allows_text: bool, form: str | None) -> str:
        if form is not None and allows_text:
            opening = self._rules.exact(self._format.content_opening)
            closing = self._rules.exact(self._format.content_closing)
            answer = f"{opening} {self._rules.rule(f'%json {form}')} {closing}"
            alternatives = [answer, *map(self._whole, self._forms)]
        elif not allows_text:
            alternatives = [self._whole(each) for each in self._forms]
        elif self._format.content_opening:
            alternatives = [*map(self._whole, self._forms), self._marked_text()]
        else:
            alternatives = [self._free_text(), *map(self._behind_text, self._forms)]
        body = " | ".join(f"({each})" for each in alternatives)
        preamble = self._preamble() if allows_text and form is None else ""
        return self._rules.text(f"{preamble} ({body})" if preamble else body)

    # What stands before the first call.

    def _preamble(self) -> str:
        thought = self._format.thought
        if thought is None or not thought.preamble:
            return ""
        return f"({self._rules.exact(thought.preamble)} {self._text_up_to(thought.closing)})?"

    def _whole(self, form: CallForm) -> str:
        """Calls from the beginning of the answer on."""
        return f"{self._rules.loose(form.first, form.id_len)} {self._calls(form)}"

    def _behind_text(self, form: CallForm) -> str:
        """Calls behind a text that may be empty."""
        if form.is_bare:
            begun = [self._bare(form, name) for name in self._parameters_by_tool]
            return self._rules.rule(" | ".join(begun))
        rest = form.first.lstrip()[len(form.trigger) :]
        behind = self._rules.loose(rest, form.id_len, is_behind_mark=True)
        return f"{self._text_up_to(form.trigger)} {behind} {self._calls(form)}"

    def _bare(self, form: CallForm, name: str) -> str:
        """A call that begins like text: up to its arguments one terminal, at which text ends."""
        inside = self._middle(form)
        begun = pattern(name) + self._rules.loose_pattern(inside)
        heads = [self._rules.loose_pattern(each) for each in spellings(form.first.strip())]
        begin = self._rules.terminal(f"/\\s*({'|'.join(heads)}){begun}/")
        return f"{begin} {self._call(form, name, inside)} {self._behind_call(form)}"

    @property
    def _marks_in_text(self) -> list[str]:
        marks = [each.trigger for each in self._forms if not each.is_bare]
        return [*marks, *filter(None, [self._format.content_closing])]

    def _text_up_to(self, mark: str) -> str:
        """Free text and the mark at its end."""
        if self._rules.begins_special(mark):
            return f"{self._free_text()}? {self._rules.exact(mark)}"
        marks = "|".join(map(pattern, dict.fromkeys([*self._marks_in_text, mark])))
        only = f"/(?s:.*){pattern(mark)}/ & ~/(?s:.*)({marks})(?s:.+)/"
        return self._rules.terminal(only + self._no_opener())

    def _free_text(self) -> str:
        """Text in which nothing reads like a call, a thought or the end of the text."""
        no = "".join(f" & ~/(?s:.*){pattern(mark)}(?s:.*)/" for mark in self._marks_in_text)
        for form in self._forms:
            if form.is_bare:
                heads = [self._rules.loose_pattern(each) for each in spellings(form.first.strip())]
                begun = self._rules.loose_pattern(self._middle(form))
                no += f" & ~/\\s*({'|'.join(heads)}){_NAME}{begun}(?s:.*)/"
        return self._rules.terminal(f"/{ANY}*/{no}{self._no_opener()}")

    def _no_opener(self) -> str:
        """Text that begins like a thought would be read as one."""
        thought = self._format.thought
        if thought is None or not thought.opener:
            return ""
        return f" & ~/\\s*{pattern(thought.opener)}(?s:.*)/"

    def _marked_text(self) -> str:
        """Text in marks of its own; calls may follow where it has an end."""
        closing = self._format.content_closing
        opening = self._rules.exact(self._format.content_opening)
        if not closing:
            return f"{opening} {self._free_text()}?"
        calls = " | ".join(f"({self._whole(each)})" for each in self._forms)
        return f"{opening} {self._text_up_to(closing)} ({calls})?"

    # The calls themselves.

    def _calls(self, form: CallForm) -> str:
        """The first call from its name on, and the others."""
        calls = [
            f"{self._label(form, name)} {self._rules.loose(self._middle(form), form.id_len)}"
            f" {self._call(form, name, self._middle(form))}"
            for name in self._parameters_by_tool
        ]
        call = self._rules.rule("\n    | ".join(calls))
        return f"{call} {self._behind_call(form, call)}"

    def _behind_call(self, form: CallForm, call: str | None = None) -> str:
        """What ends a call, perhaps `call` and its end again, and what ends them all."""
        last = form.last.rstrip()
        if form.between is None or not self._may_repeat or call is None:
            return self._rules.loose(last, form.id_len)
        common_len = self._rules.common_len(form.between, last)
        common = self._rules.loose(last[:common_len], form.id_len)
        more = self._rules.loose(form.between[common_len:], form.id_len)
        end = self._rules.loose(last[common_len:], form.id_len)
        return f"{common} ({more} {call} {common})* {end}"

    def _label(self, form: CallForm, name: str) -> str:
        if form.name_in_id:
            return f"{self._rules.exact(f'functions.{name}:')} {self._rules.number()}"
        return self._rules.exact(name)

    def _middle(self, form: CallForm) -> str:
        """What follows a name whatever the arguments are."""
        each = form.parameters
        if each is None:
            return form.middle
        return each.first[: self._rules.common_len(each.first, each.none)]

    def _call(self, form: CallForm, name: str, middle: str) -> str:
        """The arguments, behind `middle`."""
        schema = self._parameters_by_tool[name]
        if form.parameters is None:
            return self._rules.json(schema)
        return ParameterGrammar(self._rules, form.parameters, schema).arguments(len(middle))


def not_enforced(answer_format: AnswerFormat, schema: Mapping[str, Any]) -> Sequence[str]:
    """JSON Pointers of what calls of this format cannot be held to, though JSON objects can."""
    form = answer_format.calls
    if form is None or form.parameters is None:
        return ()
    return ParameterGrammar(GrammarRules({}), form.parameters, schema).not_enforced()
