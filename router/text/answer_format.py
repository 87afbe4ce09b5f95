"""How a model writes an answer: its thought, its text, its calls.

    [thought.opening THOUGHT thought.closing] [content_opening TEXT content_closing] [calls]
    calls:      first NAME middle ARGUMENTS (between NAME middle ARGUMENTS)* last
    ARGUMENTS:  a JSON object, or parameters one by one:
                first KEY opening VALUE closing (between KEY opening VALUE closing)* end, or none

All are literal texts, with `ID` and `NUMBER` where a call's id or its number stands. They are read
from the chat template (`format_reading.py`) and proven by a round trip (`format_proof.py`); the
mask, the reader of streams and the rendering of history come from this one description. It knows no
models, no tokens and no HTTP.
"""

import os
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

# Characters of the private use area, which no template writes.
ID = "\ue000"
NUMBER = "\ue001"
_PLACES = re.compile(f"[{ID}{NUMBER}]")
# The first tag, up to the bracket that ends it.
_TAG = re.compile(rf"[^>\]\n{ID}{NUMBER}]*[>\]]")
# What may be cut off at the end of a text that several have in common.
_OPEN_TAG = re.compile(r"\s*[<\[◁][^<>\[\]]*$")
# Commas and brackets, which values contain as well.
_MAX_STOP_LEN = 2
_ID_MEMBER = re.compile(rf',\s*"\w+":\s*"{ID}"')
_NAME_MEMBER = re.compile(r'\{(?=\s*"name":\s*"\Z)')
_TYPED = '{"type": "function", '
_BRACKETED_WORD = re.compile(r"\[[A-Z_]{3,}\]")


def without_open_tag(text: str) -> str:
    """`text` up to a tag at its end that is not closed, as what texts have in common may end."""
    return _OPEN_TAG.sub("", text)


@cache
def spellings(text: str) -> tuple[str, ...]:
    """A text around a name in the ways in which models write it; as it is first.

    An id may be left out, and a call may be said to be one: `{"type": "function", "name": "`.
    """
    found = [text]
    without = _ID_MEMBER.sub("", text)
    if without != text:
        found.append(without)
    return (
        *found,
        *(_NAME_MEMBER.sub(_TYPED, each) for each in found if _NAME_MEMBER.search(each)),
    )


class Code(StrEnum):
    """How a parameter's value is written.

    RAW: a string as it is. JSON. PYTHON: a literal. LAX: JSON with bare keys, and with its own
    quotes around strings.
    """

    RAW = "raw"
    JSON = "json"
    PYTHON = "python"
    LAX = "lax"


@dataclass(frozen=True, slots=True)
class ValueForm:
    """`opening` stands between key and value, `closing` right behind the value."""

    opening: str
    closing: str
    code: Code


@dataclass(frozen=True, slots=True)
class Parameters:
    """Arguments one by one. `none` stands for no parameters at all, in place of `first ... end`.

    `string` and `other` are the forms of strings and of all other values; often the same.
    """

    first: str
    between: str
    end: str
    none: str
    string: ValueForm
    other: ValueForm

    @property
    def quote(self) -> str:
        """What stands around strings within LAX values."""
        if self.other.code is not Code.LAX:
            return ""
        return self.string.opening.removeprefix(self.other.opening)

    def terminator(self, value: ValueForm) -> str:
        """What ends a value and never occurs within it; "" where its quotes and brackets do."""
        common = os.path.commonprefix([self.between, self.end])
        text = value.closing or without_open_tag(common) or common
        is_tag = len(text.strip()) > _MAX_STOP_LEN
        return text if is_tag or value.code is Code.RAW else ""

    def stops(self, value: ValueForm) -> str:
        """The characters before one of which a value ends, outside its brackets and quotes."""
        return "".join({(value.closing + text)[:1] for text in (self.between, self.end)})


@dataclass(frozen=True, slots=True)
class CallForm:
    """The texts around names and arguments.

    between:    None: an answer has one call at most
    parameters: None: the arguments are a JSON object
    marker:     what begins calls, where it is not the first tag of `first`
    name_in_id: the name's place holds `functions.NAME:NUMBER`, the call's id
    id_len:     characters of ids, letters and digits, where the template insists on it
    """

    first: str
    middle: str
    between: str | None
    last: str
    parameters: Parameters | None = None
    marker: str = ""
    name_in_id: bool = False
    id_len: int | None = None

    @property
    def example(self) -> str:
        """A call as it is written, with words in the places of what differs."""
        name = "functions.NAME:0" if self.name_in_id else "NAME"
        arguments = f"{self.middle}ARGUMENTS"
        each = self.parameters
        if each is not None:
            arguments = f"{each.first}KEY{each.string.opening}VALUE{each.string.closing}{each.end}"
        text = f"{self.first}{name}{arguments}{self.last}"
        return text.replace(ID, "ID").replace(NUMBER, "0")

    @property
    def is_bare(self) -> bool:
        """Calls begin like text: they are calls at the beginning of an answer alone."""
        first = self.first.strip()
        return first[:1] in ("", "{", "[") and not _BRACKETED_WORD.match(first)

    @property
    def trigger(self) -> str:
        """The beginning of `first` that free text never contains, so that it begins calls."""
        if self.marker:
            return self.marker
        first = self.first.lstrip()
        if self.is_bare:
            return first[:1]
        tag = _TAG.match(first)
        return tag[0] if tag else _PLACES.split(first)[0].rstrip() or first


@dataclass(frozen=True, slots=True)
class ThoughtForm:
    """What stands around a thought.

    `preamble` opens a text for the user that ends as a thought does; calls may follow it.
    """

    opening: str
    closing: str
    preamble: str = ""

    @property
    def opener(self) -> str:
        """`opening` without the white space around it, of which models take liberties."""
        return self.opening.strip()

    @property
    def closer(self) -> str:
        """`closing` without the white space around it."""
        return self.closing.strip()


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """One model's form of answers. Of plain text alone if nothing is given.

    calls:           None: the template shows none
    other_calls:     further forms in which the model calls, and the template does not write
    ends:            texts that end an answer: the end token, and what the template writes there
    """

    content_opening: str = ""
    content_closing: str = ""
    thought: ThoughtForm | None = None
    calls: CallForm | None = None
    other_calls: tuple[CallForm, ...] = ()
    ends: tuple[str, ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        """All literal texts: special tokens among them may be sampled, and are never shown."""
        texts = [self.content_opening, self.content_closing]
        if self.thought is not None:
            texts += [self.thought.opening, self.thought.closing, self.thought.preamble]
        for form in (self.calls, *self.other_calls):
            if form is None:
                continue
            texts += [form.first, form.middle, form.between or "", form.last]
            if form.parameters is not None:
                each = form.parameters
                texts += [each.first, each.between, each.end, each.none]
                for value in (each.string, each.other):
                    texts += [value.opening, value.closing]
        return tuple(dict.fromkeys(text for text in texts if text))


# For templates that show no calls: an instruction in the prompt names it.
GENERIC_CALLS = CallForm(
    first='<tool_call>\n{"name": "',
    middle='", "arguments": ',
    between='}\n</tool_call>\n<tool_call>\n{"name": "',
    last="}\n</tool_call>",
)
