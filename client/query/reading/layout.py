"""The places of a program's clauses and prompts: the result of `clauses`, used by `rewriting`.

import helpers                    preamble
argmax(max_len=100)               decoder
   "Q: [X]" where len(X) < 3      body, with a prompt and its own clauses
from "model"                      model
where X in ["a"]                  where
distribute X over ["a", "b"]      distribution
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from client.query.reading.text import Fragment, SourceSpan, Text


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
        close = get_close_matches(self.name, holes, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        what = f"a distribution over {self.name}, which is no hole of {where}{hint}"
        raise text.bad(what, self.name_span.start, self.name_span.end)


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
