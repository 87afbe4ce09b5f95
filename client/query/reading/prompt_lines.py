"""Finds the prompts among the statements of a line, with their own clauses.

    if x: "a [X]" where len(X) < 3; "b"
          `-------- a prompt -----'  `-- another

Clauses of programs are handled elsewhere, but `from` ends a line of prompts.
"""

from collections.abc import Sequence

from client.query.errors import BadProgram
from client.query.reading.clause_keywords import OPERATOR_WORDS, begins_distribution, begins_where
from client.query.reading.layout import Distribution, PromptText
from client.query.reading.strings import is_prompt_literal, literal_of
from client.query.reading.text import SourceSpan, Text
from client.query.reading.tokens import NAME, OP, STRING, Token

_BLOCKS = frozenset(
    "if elif else for while try except finally with async def class match case".split()
)
# Tokens that a condition cannot end with, or that no statement begins with: the condition
# continues.
_OPEN_ENDS = frozenset("and or not in is if else lambda where distribution distribute over".split())
_OPEN_SIGNS = frozenset("< > <= >= == != + - * / // % @ & | ^ ~ << >> ** , .".split())
_GOES_ON = frozenset({"and", "or"})


class PromptLines:
    """Reads the tokens of a program line by line."""

    def __init__(self, text: Text, tokens: Sequence[Token]) -> None:
        self._text = text
        self._tokens = tokens

    def read(self, index: int) -> tuple[int, list[PromptText]]:
        """The prompts of a line, and the token behind it or at the next clause."""
        prompts: list[PromptText] = []
        begin = index
        starts_statement = True
        lambdas = 0
        in_block = self._tokens[index].text in _BLOCKS
        while index < len(self._tokens):
            token = self._tokens[index]
            if token.begins and index > begin:
                break
            if starts_statement and (token.kind == STRING or token.is_op("(")):
                prompt, index = self._prompt(index)
                if prompt is not None:
                    prompts.append(prompt)
                    if self._is_from(index):
                        break
                starts_statement = False
                continue
            starts_statement = False
            if token.depth == 0 and token.kind in (OP, NAME):
                lambdas += token.text == "lambda"
                if token.text == ";":
                    starts_statement = True
                elif token.text == ":" and lambdas:
                    lambdas -= 1
                elif token.text == ":" and in_block:
                    starts_statement = True
                    in_block = False
            index += 1
        return index, prompts

    def _is_from(self, index: int) -> bool:
        return index < len(self._tokens) and self._tokens[index].is_name("from")

    def _prompt(self, index: int) -> tuple[PromptText | None, int]:
        """The prompt of a statement (None: it is no string), and the next token."""
        strings, stop = self._strings(index)
        if not strings or not all(map(is_prompt_literal, strings)):
            return None, index + 1
        where = None
        distribution = None
        while stop < len(self._tokens) and self._is_own(stop, index):
            behind = self._condition_end(stop + 1)
            word = self._tokens[stop]
            if begins_where(self._tokens, stop) and where is None:
                where = self._filled(stop, behind, "a condition")
            elif begins_distribution(self._tokens, stop) and distribution is None:
                distribution = self.distribution(stop, behind)
            else:
                raise self._bad(f"a second `{word.text}` of a prompt, which has one", word)
            stop = behind
        if not self._is_end(stop):
            return None, index + 1
        span = SourceSpan(self._tokens[index].start, self._tokens[stop - 1].end)
        return PromptText(literal_of(self._text, strings), span, where, distribution), stop

    def _strings(self, index: int) -> tuple[tuple[Token, ...], int]:
        """Adjacent strings, possibly in brackets, and the token behind them."""
        if self._tokens[index].is_op("("):
            stop = index + 1
            while self._tokens[stop].kind == STRING:
                stop += 1
            strings = tuple(self._tokens[index + 1 : stop])
            return (strings, stop + 1) if self._tokens[stop].is_op(")") else ((), stop)
        stop = index + 1
        while stop < len(self._tokens) and self._is_next_string(stop):
            stop += 1
        return tuple(self._tokens[index:stop]), stop

    def _is_next_string(self, index: int) -> bool:
        token = self._tokens[index]
        return token.kind == STRING and not token.begins

    def _is_end(self, index: int) -> bool:
        if index == len(self._tokens) or self._tokens[index].begins:
            return True
        return self._tokens[index].is_op(";") or self._is_from(index)

    def _is_own(self, index: int, prompt: int) -> bool:
        """Whether a clause belongs to the prompt: it is on its line, or on the next one, indented
        more than a prompt that begins its line."""
        if not begins_where(self._tokens, index) and not begins_distribution(self._tokens, index):
            return False
        token = self._tokens[index]
        first = self._tokens[prompt]
        return not token.begins or (first.begins and token.indent > first.indent)

    def _condition_end(self, index: int) -> int:
        """The end of an expression that begins here: its line end, unless it must continue."""
        begin = index
        while index < len(self._tokens):
            token = self._tokens[index]
            if token.depth == 0 and index > begin and self._ends_condition(index):
                break
            index += 1
        return index

    def _ends_condition(self, index: int) -> bool:
        token = self._tokens[index]
        before = self._tokens[index - 1]
        if token.is_op(";") or token.is_name("from", "where"):
            return True
        if begins_distribution(self._tokens, index):
            return True
        if not token.begins:
            return False
        return not _is_open(before) and token.text not in _GOES_ON

    def begins_statement(self, index: int) -> bool:
        """Whether a line begins here that cannot continue a condition."""
        token = self._tokens[index]
        before = self._tokens[index - 1]
        if not token.begins or token.depth or _is_open(before):
            return False
        if token.kind == STRING:
            return before.kind != STRING
        return token.kind == NAME and token.text not in OPERATOR_WORDS

    def distribution(self, index: int, behind: int) -> Distribution:
        """Parse `distribute NAME over values` up to a token. Raises BadProgram."""
        word = self._tokens[index]
        if behind < index + 2 or self._tokens[index + 1].kind != NAME:
            raise self._bad(f"behind `{word.text}` comes the name of a hole", word)
        name = self._tokens[index + 1]
        if behind < index + 3 or not self._tokens[index + 2].is_name("over", "in"):
            raise self._bad(f"behind `{word.text} {name.text}` comes `over` and its values", name)
        values = self._filled(index + 2, behind, f"a list of the values of {name.text}")
        return Distribution(name.text, SourceSpan(name.start, name.end), values)

    def _filled(self, index: int, behind: int, what: str) -> SourceSpan:
        """The text behind a keyword."""
        word = self._tokens[index]
        if behind <= index + 1:
            raise self._bad(f"behind `{word.text}` comes {what}", word)
        return SourceSpan(self._tokens[index + 1].start, self._tokens[behind - 1].end)

    def _bad(self, message: str, token: Token) -> BadProgram:
        return self._text.bad(message, token.start, token.end)


def _is_open(token: Token) -> bool:
    """Whether an expression cannot end with this token."""
    return token.text in (_OPEN_ENDS if token.kind == NAME else _OPEN_SIGNS)
