"""Finds the clauses and prompts of a program among its tokens: its Layout.

    import helpers                    preamble
    argmax(max_len=100)               decoder
       "Q: [X]" where len(X) < 3      body, with a prompt and its own clauses
    from "model"                      model
    where X in ["a"]                  where
    distribute X over ["a", "b"]      distribution

A clause begins with its keyword outside of brackets: at the start of a line, or behind a prompt or
another clause. Behind a prompt, `where` and `distribution` are the prompt's own; `from` and what
follows it are the program's. Keywords are told from variables of the same name, as in `where = 3`.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from client.query.errors import BadProgram
from client.query.reading.text import (
    NAME,
    OP,
    STRING,
    Fragment,
    SourceSpan,
    Text,
    Token,
    is_prompt_literal,
    literal_of,
    tokens_of,
)

DECODERS = ("argmax", "sample", "beam")
# Including those of LMQL that are not supported, for errors.
DECODER_WORDS = (*DECODERS, "best_k")
# Words that an expression follows.
OPERATOR_WORDS = frozenset({"and", "or", "in", "is", "not", "if", "else"})
_USES_OF_A_NAME = frozenset({".", ",", ":", "=", ":=", ";", ")"})


def is_import(tokens: Sequence[Token], index: int) -> bool:
    """Whether `from` begins an import: `import` follows on its line."""
    line = itertools.takewhile(lambda token: not token.begins, tokens[index + 1 :])
    return any(token.is_name("import") for token in line)


def begins_where(tokens: Sequence[Token], index: int) -> bool:
    """Whether this is the keyword `where` and not a variable."""
    return tokens[index].is_name("where") and not _is_variable(tokens, index)


def begins_distribution(tokens: Sequence[Token], index: int) -> bool:
    """Whether this is the keyword `distribute` or `distribution`: a name follows, which Python
    would not allow."""
    if not tokens[index].is_name("distribute", "distribution"):
        return False
    behind_string = index > 0 and tokens[index - 1].kind == STRING
    if index + 1 == len(tokens):
        return tokens[index].begins or behind_string
    following = tokens[index + 1]
    if following.begins and behind_string:
        return True
    is_operator = following.text in OPERATOR_WORDS
    return following.kind == NAME and not is_operator and following.depth == 0


def _is_variable(tokens: Sequence[Token], index: int) -> bool:
    if index + 1 == len(tokens) or tokens[index + 1].begins:
        return False
    following = tokens[index + 1]
    return following.is_op(*_USES_OF_A_NAME) or (
        following.text.endswith("=") and following.text not in {"==", "!=", "<=", ">="}
    )


@dataclass(frozen=True, slots=True)
class Distribution:
    """`distribute NAME over values`."""

    name: str
    name_span: SourceSpan
    values: SourceSpan

    def check(self, text: Text, holes: Sequence[str], where: str) -> None:
        """Raises BadProgram if its name is none of `holes`; `where` names their place."""
        if self.name in holes:
            return
        what = f"a distribution over {self.name}, which is no hole of {where}"
        raise text.bad(what, self.name_span)


@dataclass(frozen=True, slots=True)
class PromptText:
    """A statement of strings, with its clauses. `span`: the whole statement."""

    value: Fragment
    span: SourceSpan
    where: SourceSpan | None = None
    distribution: Distribution | None = None


@dataclass(frozen=True, slots=True)
class DecoderText:
    """A decoder's name and the content of its brackets, None: no brackets."""

    name: str
    span: SourceSpan
    arguments: SourceSpan | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """Lines of Python. `margin`: the indentation of the first one."""

    span: SourceSpan
    margin: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A program's parts. `blocks`: the body, on the decoder's line and below."""

    preamble: Block | None = None
    decoder: DecoderText | None = None
    blocks: tuple[Block, ...] = ()
    prompts: tuple[PromptText, ...] = ()
    model: SourceSpan | None = None
    where: SourceSpan | None = None
    distribution: Distribution | None = None


_BLOCKS = frozenset(
    "if elif else for while try except finally with async def class match case".split()
)
# Tokens that an expression cannot end with, or that no statement begins with: it continues.
_OPEN_ENDS = frozenset(
    "and or not in is if else lambda from where distribution distribute over".split()
)
_OPEN_SIGNS = frozenset("< > <= >= == != + - * / // % @ & | ^ ~ << >> ** , .".split())
_GOES_ON = frozenset({"and", "or"})


def _is_open(token: Token) -> bool:
    """Whether an expression cannot end with this token."""
    return token.text in (_OPEN_ENDS if token.kind == NAME else _OPEN_SIGNS)


# Markers for syntax highlighting, on the first line of a docstring or a text.
_LANGUAGE_TAG = re.compile(r"\s*lmql[ \t]*(?=\n)")


def layout_of(text: Text, region: SourceSpan) -> Layout:
    """The parts of the program in a region of the text. Raises BadProgram."""
    tag = _LANGUAGE_TAG.match(text.text, region.start, region.end)
    begin = region.start if tag is None else tag.end()
    return _Splitter(text, tokens_of(text, SourceSpan(begin, region.end))).layout()


class _Splitter:
    """Reads the tokens of a program, statement by statement."""

    def __init__(self, text: Text, tokens: list[Token]) -> None:
        self._text = text
        self._tokens = tokens
        self._preamble: Block | None = None
        self._decoder: DecoderText | None = None
        # The rest of the decoder's line, and the lines below.
        self._beside: Block | None = None
        self._block: Block | None = None
        self._prompts: list[PromptText] = []
        self._clauses: dict[str, Any] = {}
        # Whether a clause has ended the body: no statement may follow.
        self._is_closed = False

    def layout(self) -> Layout:
        index = 0
        while index < len(self._tokens):
            index = self._step(index)
        return Layout(
            preamble=self._preamble,
            decoder=self._decoder,
            blocks=tuple(block for block in (self._beside, self._block) if block is not None),
            prompts=tuple(self._prompts),
            **self._clauses,
        )

    def _step(self, index: int) -> int:
        token = self._tokens[index]
        if token.is_name("from") and not is_import(self._tokens, index):
            return self._read_clause(index, "model", "a model")
        if begins_where(self._tokens, index):
            return self._read_clause(index, "where", "a condition")
        if begins_distribution(self._tokens, index):
            return self._read_clause(index, "distribution", "a hole and its values")
        if self._begins_decoder(index):
            return self._read_decoder(index)
        return self._read_line(index)

    # The body

    def _read_line(self, index: int) -> int:
        """One logical line of the body, up to a clause."""
        token = self._tokens[index]
        if self._is_closed:
            raise self._bad(
                "behind the program's clauses comes no further statement "
                "(a prompt's own `where` stands on the prompt's line)",
                token,
            )
        stop, prompts = self._read_prompts(index)
        self._prompts.extend(prompts)
        end = self._tokens[stop - 1].end
        if not token.begins:
            start = token.start if self._beside is None else self._beside.span.start
            self._beside = Block(SourceSpan(start, end))
        elif self._block is None:
            self._block = Block(SourceSpan(token.start, end), self._margin(index, stop))
        else:
            self._block = replace(self._block, span=SourceSpan(self._block.span.start, end))
        return stop

    def _margin(self, index: int, stop: int) -> str:
        """The indentation of a line. Behind the opening quotes of a docstring it is the smallest
        one of the lines below, as for docstrings in general."""
        margin = self._in_front(self._tokens[index])
        if not margin.strip():
            return margin
        below = [token for token in self._tokens[stop:] if token.begins]
        if not below:
            return ""
        lowest = self._in_front(min(below, key=lambda token: token.indent))
        is_opening = self._tokens[stop - 1].is_op(":")
        if is_opening and below[0].indent <= len(lowest):
            return lowest[: below[0].indent - 1]
        return lowest

    def _in_front(self, token: Token) -> str:
        return self._text.text[token.start - token.indent : token.start]

    # Clauses

    def _begins_decoder(self, index: int) -> bool:
        token = self._tokens[index]
        # On one line a decoder may follow a clause: from "model" argmax "[X]".
        is_first = token.begins or (self._beside is None and self._decoder is None)
        if not is_first or not token.is_name(*DECODER_WORDS):
            return False
        if self._block is not None and token.indent > len(self._block.margin):
            return False
        return self._stands_alone(index + 1)

    def _stands_alone(self, index: int) -> bool:
        """Whether a decoder's name, with or without brackets, is alone on its line, or is followed
        by a string or a name, which Python would not allow."""
        behind = self._behind_brackets(index)
        if behind == len(self._tokens) or self._tokens[behind].begins:
            return True
        following = self._tokens[behind]
        return following.kind in (NAME, STRING) and following.text not in OPERATOR_WORDS

    def _behind_brackets(self, index: int) -> int:
        """The token behind the brackets that open here, or this token if none do."""
        if index == len(self._tokens) or self._tokens[index].begins:
            return index
        if not self._tokens[index].is_op("("):
            return index
        index += 1
        while self._tokens[index].depth:
            index += 1
        return index + 1

    def _read_decoder(self, index: int) -> int:
        token = self._tokens[index]
        if self._decoder is not None:
            raise self._bad(f"a second decoder clause, `{token.text}`: a program has one", token)
        self._preamble = self._block
        self._block = None
        self._is_closed = False
        behind = self._behind_brackets(index + 1)
        end = token.end
        arguments = None
        if behind > index + 1:
            end = self._tokens[behind - 1].end
            arguments = SourceSpan(self._tokens[index + 1].end, self._tokens[behind - 1].start)
        self._decoder = DecoderText(token.text.lower(), SourceSpan(token.start, end), arguments)
        return behind

    def _read_clause(self, index: int, name: str, what: str) -> int:
        """Read `from`, `where` or `distribute` of the program; `name`: its field of Layout."""
        self._begin_clause(index, self._clauses.get(name))
        behind = self._clause_end(index + 1)
        is_distribution = name == "distribution"
        self._clauses[name] = (
            self._made_distribution(index, behind)
            if is_distribution
            else self._filled(index, behind, what)
        )
        return behind

    def _begin_clause(self, index: int, known: object) -> None:
        token = self._tokens[index]
        if known is not None:
            raise self._bad(f"a second `{token.text}` of the program, which has one", token)
        if token.begins and self._block is not None and token.indent > len(self._block.margin):
            raise self._bad(
                f"the program's `{token.text}` stands no further right than its first statement, "
                "a prompt's own on the prompt's line",
                token,
            )
        self._is_closed = self._block is not None or self._beside is not None

    def _is_clause(self, index: int) -> bool:
        token = self._tokens[index]
        before = self._tokens[index - 1]
        if token.is_name("from", "where") or begins_distribution(self._tokens, index):
            return True
        stands = token.begins or before.kind == STRING or before.is_op(")")
        return stands and token.is_name(*DECODER_WORDS) and self._stands_alone(index + 1)

    # Prompts

    def _read_prompts(self, index: int) -> tuple[int, list[PromptText]]:
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
            behind = self._clause_end(stop + 1)
            word = self._tokens[stop]
            if begins_where(self._tokens, stop) and where is None:
                where = self._filled(stop, behind, "a condition")
            elif begins_distribution(self._tokens, stop) and distribution is None:
                distribution = self._made_distribution(stop, behind)
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

    def _clause_end(self, index: int) -> int:
        """The end of an expression that begins here: its line end, unless it must continue."""
        while index < len(self._tokens) and not self._ends_clause(index):
            index += 1
        return index

    def _ends_clause(self, index: int) -> bool:
        token = self._tokens[index]
        if token.depth:
            return False
        if token.is_op(";") or self._is_clause(index):
            return True
        return token.begins and not _is_open(self._tokens[index - 1]) and token.text not in _GOES_ON

    def _made_distribution(self, index: int, behind: int) -> Distribution:
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
        return self._text.bad(message, SourceSpan(token.start, token.end))
