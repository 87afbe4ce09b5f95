"""Finds the clauses of a program among its tokens.

A clause begins with its keyword outside of brackets: at the start of a line, or behind a prompt or
another clause. Behind a prompt, `where` and `distribution` are the prompt's own; `from` and what
follows it are the program's.
"""

import keyword
import re
from dataclasses import replace
from difflib import get_close_matches

from client.query.errors import BadProgram
from client.query.reading.clause_keywords import (
    DECODER_WORDS,
    DECODERS,
    OPERATOR_WORDS,
    begins_distribution,
    begins_where,
    is_import,
)
from client.query.reading.layout import Block, DecoderText, Distribution, Layout, PromptText
from client.query.reading.prompt_lines import PromptLines
from client.query.reading.text import SourceSpan, Text
from client.query.reading.tokens import NAME, STRING, Token, tokens_of

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
        self._lines = PromptLines(text, tokens)
        self._preamble: Block | None = None
        self._decoder: DecoderText | None = None
        # The rest of the decoder's line, and the lines below.
        self._beside: Block | None = None
        self._block: Block | None = None
        self._prompts: list[PromptText] = []
        self._model: SourceSpan | None = None
        self._where: SourceSpan | None = None
        self._distribution: Distribution | None = None
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
            model=self._model,
            where=self._where,
            distribution=self._distribution,
        )

    def _step(self, index: int) -> int:
        token = self._tokens[index]
        if token.is_name("from") and not is_import(self._tokens, index):
            return self._read_model(index)
        if begins_where(self._tokens, index):
            return self._read_where(index)
        if begins_distribution(self._tokens, index):
            return self._read_distribution(index)
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
        if token.begins:
            self._check_word(index)
        stop, prompts = self._lines.read(index)
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

    def _check_word(self, index: int) -> None:
        """Raises if a line begins with an unknown clause, which is not valid Python."""
        token = self._tokens[index]
        self._check_colon(index)
        is_known = keyword.iskeyword(token.text) or token.text in keyword.softkwlist
        if token.kind != NAME or is_known:
            return
        behind = self._behind_brackets(index + 1)
        if behind == len(self._tokens):
            return
        following = self._tokens[behind]
        if following.begins:
            # An indented block below a name belongs to a decoder, unless a prompt is before it.
            is_clause = following.indent > token.indent and not self._prompts
        elif following.kind == STRING:
            is_clause = behind == index + 1
        else:
            is_clause = following.kind == NAME and not keyword.iskeyword(following.text)
        if is_clause:
            raise self._bad(_unknown(token.text), token)

    def _check_colon(self, index: int) -> None:
        behind = self._behind_brackets(index + 1)
        if not self._tokens[index].is_name(*DECODER_WORDS) or behind == len(self._tokens):
            return
        is_end = behind + 1 == len(self._tokens) or self._tokens[behind + 1].begins
        if self._tokens[behind].is_op(":") and is_end:
            raise self._bad("the decoder's line has no ':' at its end", self._tokens[behind])

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

    def _read_model(self, index: int) -> int:
        self._begin_clause(index, self._model)
        behind = index + 1
        while behind < len(self._tokens) and not self._is_clause(behind):
            if self._tokens[behind].begins and behind > index + 1:
                break
            behind += 1
        self._model = self._clause_span(index, behind, "a model")
        return behind

    def _read_where(self, index: int) -> int:
        self._begin_clause(index, self._where)
        behind = self._clause_end(index + 1)
        self._where = self._clause_span(index, behind, "a condition")
        return behind

    def _read_distribution(self, index: int) -> int:
        self._begin_clause(index, self._distribution)
        behind = self._clause_end(index + 1)
        self._distribution = self._lines.distribution(index, behind)
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

    def _clause_end(self, index: int) -> int:
        """The start of the next clause of the program, from a token on."""
        while index < len(self._tokens) and not self._is_clause(index):
            if self._lines.begins_statement(index):
                break
            index += 1
        return index

    def _is_clause(self, index: int) -> bool:
        token = self._tokens[index]
        before = self._tokens[index - 1]
        if token.is_name("from", "where") or begins_distribution(self._tokens, index):
            return True
        stands = token.begins or before.kind == STRING or before.is_op(")")
        return stands and token.is_name(*DECODER_WORDS) and self._stands_alone(index + 1)

    def _clause_span(self, index: int, behind: int, what: str) -> SourceSpan:
        token = self._tokens[index]
        if behind == index + 1:
            raise self._bad(f"behind `{token.text}` comes {what}", token)
        return SourceSpan(self._tokens[index + 1].start, self._tokens[behind - 1].end)

    def _bad(self, message: str, token: Token) -> BadProgram:
        return self._text.bad(message, token.start, token.end)


def _unknown(word: str) -> str:
    close = get_close_matches(word.lower(), [*DECODERS, "from", "where", "distribute"], n=1)
    hint = f"; did you mean `{close[0]}`?" if close else ""
    return f"`{word}` is no decoder ({', '.join(DECODERS)}) and no clause{hint}"
