"""Proves at every start that answers are read back as the chat template shows them.

    message --template--> answer's text --AnswerReader--> the message, at every cut of the text

A part of the format that fails is off, by the name of the sample that it failed. The proof shows
that template and reader agree; that the model was trained so it cannot show.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from router.text.answer_format import GENERIC_CALLS, AnswerFormat, Code
from router.text.answer_reader import Answer, AnswerReader, CallBegun, Piece
from router.text.format_reading import Reading
from router.text.template_probe import Probe, Shown, answer, tool, without_end
from router.text.template_traits import TemplateLimit

_TEXT = 'Grüß Gott <b> {"x": 1}.\n\nSecond, line'
_THOUGHT = 'First,\n\nthen <b> {"a": [1]} …'
_SAID = "Let me see."
_MEANT = "I must look."
_NAME = "look_up"
_OTHER_NAME = "fetch-all.v2"
_TWO = {"city": "Sao Paulo", "n": 7}
_TYPES = {"s": "x y", "i": -3, "f": 2.5, "b": True, "z": None, "l": [1, "a"], "o": {"k": [True]}}
_HOSTILE = {"code": "if a < b && c > \"d\":\n\tprint('é{}[]\\\\', f(x=1, y=2))\n# </end> 日本 👍"}
_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "a call": {"city": "Paris"},
    "a call without arguments": {},
    "two arguments": _TWO,
    "arguments of all types": _TYPES,
    "a hostile text": _HOSTILE,
    "numbers as text": {"s": "42", "t": "true"},
}
_NO_CALLS = "the template shows no calls"
_DROPPED = "the template drops thoughts of earlier answers"
_CUT = f"{_DROPPED}: its prompt opens them, and of an answer it keeps what follows them"
_MAX_QUOTED_LEN = 200
_Call = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Sample:
    """`is_cut`: every cut in two is tried, as none of a longer sample covers them."""

    name: str
    text: str = ""
    thought: str = ""
    calls: tuple[_Call, ...] = ()
    is_cut: bool = True


@dataclass(frozen=True, slots=True)
class PartVerdict:
    """Whether a part of answers, thoughts or calls, is read, and was proven.

    `reason` says why not: of a part that is off, the sample that failed. Of a proven one it says
    what the checkpoint describes otherwise, and how it was proven if not by what is rendered of it.
    """

    is_on: bool
    is_proven: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What holds of a format: `answer_format` is what is left of it."""

    answer_format: AnswerFormat
    thought: PartVerdict
    calls: PartVerdict

    @property
    def has_generic_calls(self) -> bool:
        """Whether the template shows no calls, so that the prompt must say how to call."""
        return self.calls.is_on and not self.calls.is_proven


def unread(reason: str) -> Verdict:
    """Of a template that could not be asked: answers are text, calls have the generic form."""
    off = PartVerdict(is_on=False, is_proven=False, reason=reason)
    calls = PartVerdict(is_on=True, is_proven=False, reason=reason)
    return Verdict(AnswerFormat(calls=GENERIC_CALLS), off, calls)


def prove(reading: Reading) -> Verdict:
    """The verdict on what was read of a template.

    One that exceeds its time limit is not rendered again.
    """
    if reading.is_stopped:
        return unread(reading.fault)
    try:
        return _prove(reading)
    except TemplateLimit as error:
        return unread(str(error))


def _prove(reading: Reading) -> Verdict:
    form = reading.answer_format
    fault = _fault(reading.probe, form, [_Sample("a text", _TEXT)])
    thought = _judged(form.thought is not None, fault)
    if thought.is_on:
        thought = _judged_thought(reading.probe, form)
        thought = replace(thought, reason=thought.reason or _disagreement(reading))
    if not thought.is_on:
        form = replace(form, thought=None)
    if fault:
        form = replace(form, content_opening="", content_closing="")
    if not reading.shows_calls:
        form = replace(form, calls=GENERIC_CALLS)
        return Verdict(form, thought, PartVerdict(True, False, _NO_CALLS))
    calls = _judged(form.calls is not None, fault or reading.fault)
    if calls.is_on:
        samples = _call_samples(form)
        shown = [sample for sample in samples if _shows(reading.probe, form, sample)]
        calls = _judged_by(reading.probe, form, shown)
    if not calls.is_on:
        form = replace(form, calls=None, other_calls=())
    return Verdict(form, thought, calls)


def _judged(is_read: bool, fault: str) -> PartVerdict:
    return PartVerdict(is_read and not fault, False, fault)


def _disagreement(reading: Reading) -> str:
    """Where the checkpoint names other marks of thoughts than its template writes."""
    declared = reading.declared
    thought = reading.answer_format.thought
    if declared is None or thought is None:
        return ""
    is_same = thought.opener == declared.opener and thought.closer.startswith(declared.closer)
    marks = f"{declared.opener!r} and {declared.closer!r}"
    return "" if is_same else f"the checkpoint's response_template names {marks}"


def _judged_by(probe: Probe, form: AnswerFormat, samples: Sequence[_Sample]) -> PartVerdict:
    """A part for which these samples speak."""
    fault = _fault(probe, form, samples)
    return PartVerdict(not fault, not fault, fault)


def _judged_thought(probe: Probe, form: AnswerFormat) -> PartVerdict:
    """Thoughts before texts, else before calls: some templates show them there alone."""
    samples = [_Sample("a thought", _TEXT, _THOUGHT)]
    if form.calls is not None:
        samples.append(_Sample("a thought and a call", "", _MEANT, ((_NAME, _TWO),)))
    for sample in samples:
        if _shows(probe, form, sample):
            return _judged_by(probe, form, [sample])
    return _judged_dropped(probe, form)


def _judged_dropped(probe: Probe, form: AnswerFormat) -> PartVerdict:
    """Thoughts that history drops. The template has to open them, and to cut them where we do."""
    assert form.thought is not None
    closer = form.thought.closer

    def is_cut(mark: str) -> bool:
        return probe.as_earlier(_THOUGHT + mark + _TEXT) == probe.as_earlier(_TEXT)

    if not probe.prompt().rstrip().endswith(form.thought.opener):
        return PartVerdict(True, False, f"{_DROPPED}, and writes nowhere what opens them")
    if not is_cut(closer) or is_cut(closer[1:]):
        return PartVerdict(True, False, f"{_DROPPED}, and shows nowhere what closes them")
    sample = _Sample("a thought", _TEXT, _THOUGHT)
    fault = _misread(form, sample, _THOUGHT + closer + _TEXT, in_thought=True)
    return PartVerdict(not fault, not fault, fault or _CUT)


def _call_samples(form: AnswerFormat) -> Iterator[_Sample]:
    assert form.calls is not None
    parameters = form.calls.parameters
    # The template may leave quotes within strings as they are, which models do not.
    is_quoted = parameters is not None and parameters.string.code is Code.PYTHON
    hostile = _TWO if is_quoted else _HOSTILE
    has_two = form.calls.between is not None
    for name, arguments in _ARGUMENTS.items():
        if not (is_quoted and arguments is _HOSTILE):
            is_cut = not (has_two and arguments)
            called = _OTHER_NAME if arguments is _TWO else _NAME
            yield _Sample(name, calls=((called, arguments),), is_cut=is_cut)
    if has_two:
        yield _Sample("two calls", calls=((_NAME, _TYPES), (_OTHER_NAME, hostile)))
    call = ((_NAME, _TWO),)
    may_follow = not form.calls.is_bare
    if may_follow:
        yield _Sample("a text and a call", _SAID, calls=call, is_cut=form.thought is None)
    if form.thought is not None:
        yield _Sample("a thought and a call", "", _MEANT, call, is_cut=not may_follow)
    if form.thought is not None and may_follow:
        yield _Sample("a thought, a text and a call", _SAID, _MEANT, call)


def _tools(sample: _Sample) -> list[dict[str, Any]]:
    return [tool(name, arguments) for name, arguments in sample.calls]


def _shows(probe: Probe, form: AnswerFormat, sample: _Sample) -> bool:
    """Whether the template shows all of a sample in one answer.

    Some drop thoughts or texts beside calls, or show text and calls one after the other.
    """
    if sample.calls and sample.text and not probe.traits.takes_text_with_calls:
        return False
    body = probe.shown(answer(sample.text, sample.thought, sample.calls), _tools(sample)).body
    if sample.calls and sample.text:
        said = body[: body.find(_NAME)]
        if sample.text not in said or any(end in said for end in form.ends):
            return False
    return not body or all(text in body for text in (sample.text, sample.thought))


def _fault(probe: Probe, form: AnswerFormat, samples: Sequence[_Sample]) -> str:
    """The first sample that does not hold, and why; empty: all hold."""
    for sample in samples:
        reason = _reason(probe, form, sample)
        if reason:
            return f"{sample.name}: {reason}"
    return ""


def _reason(probe: Probe, form: AnswerFormat, sample: _Sample) -> str:
    """Why a sample does not hold; empty: it does."""
    message = answer(sample.text, sample.thought, sample.calls)
    shown = probe.shown(message, _tools(sample) or None)
    if not shown.body:
        return "the template does not render it"
    begun, name, rest = shown.body.rpartition(sample.calls[-1][0] if sample.calls else sample.text)
    text = begun + name + without_end(rest, form.ends)
    return _misread(form, sample, text, in_thought=_is_in_thought(form, shown))


def _misread(form: AnswerFormat, sample: _Sample, text: str, *, in_thought: bool) -> str:
    """How the reader takes the text, or a cut of it, for another message; empty: for this one."""
    schemas = {each["function"]["name"]: each["function"]["parameters"] for each in _tools(sample)}

    def reader() -> AnswerReader:
        return AnswerReader(form, schemas, in_thought=in_thought, may_call=bool(sample.calls))

    whole = reader()
    found = whole.read(text)
    if not _is_same(found, sample):
        return f"{_quoted(text)} is read as {found}"
    if sample.calls and (not whole.is_over or whole.num_beginnings > 1):
        return f"the reader does not arrive at the end of {_quoted(text)}"
    pieces = _told(reader(), [text])
    if _told(reader(), list(text)) != pieces:
        return f"{_quoted(text)} is read otherwise character by character"
    for cut in range(1, len(text) if sample.is_cut else 1):
        if _told(reader(), [text[:cut], text[cut:]]) != pieces:
            return f"{_quoted(text)} is read otherwise when cut after {cut} characters"
    return ""


def _is_in_thought(form: AnswerFormat, shown: Shown) -> bool:
    """Whether the prompt has opened the thought, and the history has not left it out."""
    thought = form.thought
    if thought is None or not thought.opener or thought.closer not in shown.body:
        return False
    was_closed = thought.closer in shown.given
    prompt = shown.prompt.removesuffix(shown.given) if was_closed else shown.prompt
    return prompt.rstrip().endswith(thought.opener)


def _is_same(found: Answer, sample: _Sample) -> bool:
    if (found.thought, found.text.strip()) != (sample.thought, sample.text):
        return False
    if not all(call.is_whole for call in found.calls):
        return False
    try:
        calls = tuple((call.name, json.loads(call.arguments)) for call in found.calls)
    except ValueError:
        return False
    return calls == sample.calls


def _told(reader: AnswerReader, texts: Sequence[str]) -> list[tuple[str, str]]:
    """What the pieces tell, those of one kind as one."""
    told: list[tuple[str, str]] = []
    for text in texts:
        _gather(told, reader.push(text))
    _gather(told, reader.finish())
    return told


def _gather(told: list[tuple[str, str]], pieces: Sequence[Piece]) -> None:
    for piece in pieces:
        kind = type(piece).__name__
        if isinstance(piece, CallBegun):
            told.append((kind, piece.name))
        elif told and told[-1][0] == kind:
            told[-1] = (kind, told[-1][1] + piece.text)
        else:
            told.append((kind, piece.text))


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _MAX_QUOTED_LEN else f"{text[:_MAX_QUOTED_LEN]}...")
