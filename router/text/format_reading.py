"""Reads from a chat template how its model writes answers, by what stands around sentinels.

A few chats are rendered with words that no template writes. What stands around a text, a thought, a
name, a key and a value in them is kept as literal text, up to the next of these words. No model is
known by its name; what comes out is proven by `format_proof.py`.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from router.text.answer_format import (
    NUMBER,
    AnswerFormat,
    CallForm,
    ThoughtForm,
    without_open_tag,
)
from router.text.parameter_reading import ParameterReading
from router.text.template_probe import (
    ARGUMENTS,
    CALL_IDS,
    KEYS,
    NAMES,
    QUESTION,
    TEXT,
    THOUGHT,
    TOOLS,
    WORD,
    CallProbe,
    Probe,
    Shown,
    Template,
    Unreadable,
    answer,
    behind_thought,
    common_suffix,
    with_ids,
    without_end,
)
from router.text.template_traits import PART_OF_CONTENT, THOUGHT_KEY, TemplateLimit, Traits

# What the field calls a thought.
_THOUGHT_KEYS = (THOUGHT_KEY, "thinking", "reasoning")
_LAST_TAG = re.compile(r"(<[^<>\s]+>|\[[A-Z_]+\])\s*$")
_FIRST_TAG = re.compile(r"\s*(<[^<>\s]+>)")
_FROM_TAG = re.compile(r"<[^<>\s]+>.*", re.DOTALL)
_TAG_WITH_SPACE = re.compile(r"\s*(?:<[^<>\s]+>|\[[^\[\]\s]+\])\s*")
_TAG = re.compile(r"[<\[◁].*[>\]▷]")
_BRACKET = re.compile(r"[\[{]")
_MARK_BEGUN = re.compile(r"[<\[◁]")
_ONE_CALL = answer(calls=[(NAMES[0], ARGUMENTS)])
_LONG_ID = "call_0123456789abcdef01234567"


@dataclass(frozen=True, slots=True)
class Reading:
    """How the model answers, as far as its template shows it.

    probe:       renders chats in the form that the template reads
    shows_calls: the template shows calls; `fault` says what could not be read of them
    is_stopped:  nothing was read, since the template exceeds its time limit
    declared:    the form of thoughts that the checkpoint names beside its template
    """

    answer_format: AnswerFormat
    probe: Probe
    shows_calls: bool
    fault: str = ""
    is_stopped: bool = False
    declared: ThoughtForm | None = None


def declared_thought(response_template: Any) -> ThoughtForm | None:
    """The literal marks of thoughts in transformers' `response_template`; None: it names none.

    Its regular expressions are not run: they are the checkpoint's.
    """
    fields = response_template.get("fields") if isinstance(response_template, Mapping) else None
    if not isinstance(fields, Mapping):
        return None
    for key in _THOUGHT_KEYS:
        field = fields.get(key)
        if isinstance(field, Mapping):
            marks = field.get("open"), field.get("close")
            if all(isinstance(mark, str) and mark.strip() for mark in marks):
                return ThoughtForm(str(marks[0]), str(marks[1]))
    return None


def read_format(
    template: Template,
    special: Mapping[str, Any],
    traits: Traits,
    end_tokens: Sequence[str] = (),
    declared: ThoughtForm | None = None,
) -> Reading:
    """The format of answers. `end_tokens` end answers beside what the template writes there.

    `declared` are the marks of thoughts if the template drops those of earlier answers.

    A template that exceeds its time limit is not rendered again, and counts as one of plain text.
    """
    probe = Probe(template, special, traits)
    try:
        if not probe.prompt():
            probe = replace(probe, default_tools=TOOLS)
        return _read(probe, end_tokens, declared)
    except TemplateLimit as error:
        fault = f"the template was stopped: {error}"
        return Reading(AnswerFormat(), probe, shows_calls=False, fault=fault, is_stopped=True)


def _read(probe: Probe, end_tokens: Sequence[str], declared: ThoughtForm | None) -> Reading:
    shown = probe.shown(answer(TEXT))
    header = shown.body.partition(TEXT)[0]
    history = probe.history_prompt()
    is_plain = history == probe.prompt() and not _MARK_BEGUN.search(header)
    # With other white space than in the history the prompt may have it already.
    is_given = header.strip() != "" and shown.given.strip().endswith(header.strip())
    if history and (is_plain or is_given):
        probe = replace(probe, header=header)
        shown = probe.shown(answer(TEXT))
    before, _, after = shown.body.partition(TEXT) if TEXT in shown.body else ("", "", "")
    thought, thought_key = _read_thought(probe, before)
    thought = thought or declared or _dropped_thought(probe)
    probe = replace(probe, traits=replace(probe.traits, thought_key=thought_key))
    ends = _ends(probe, after, end_tokens)
    calls = None
    shows_calls = probe.traits.shows_calls
    fault = ""
    try:
        if shows_calls:
            calls, calls_traits = _read_calls(probe, thought, ends)
            probe = replace(probe, traits=calls_traits)
            shows_calls = calls is not None
    except Unreadable as error:
        fault = str(error)
    answer_format = AnswerFormat(
        content_opening=behind_thought(before, thought).strip(),
        content_closing=without_end(after, ends).strip(),
        thought=thought,
        calls=calls,
        ends=ends,
    )
    return Reading(_with_other_calls(answer_format), probe, shows_calls, fault, declared=declared)


def _ends(probe: Probe, after: str, end_tokens: Sequence[str]) -> tuple[str, ...]:
    """What ends an answer: behind texts and calls alike, if there is such a tag."""
    called = probe.shown(_ONE_CALL, TOOLS[:1]).body
    common = _FROM_TAG.search(common_suffix(after, called))
    end = common[0] if common else after
    tag = _FIRST_TAG.match(end)
    eos_token = str(probe.special.get("eos_token", ""))
    found = {end.strip(), tag[1] if tag else "", eos_token, *end_tokens}
    return tuple(sorted(filter(None, found), key=len, reverse=True))


def _with_other_calls(form: AnswerFormat) -> AnswerFormat:
    """With forms that templates of this kind do not show, and that their models write.

    Where a header names a call's recipient, it may also stand behind the channel, and without one
    the text there is for the user. Calls that are JSON by themselves may be marked as what an
    interpreter runs.
    """
    calls = form.calls
    if calls is None or calls.parameters is not None:
        return form
    if form.content_opening.startswith("<|channel|>") and "to=functions." in calls.first:
        first = "<|channel|>commentary to=functions."
        middle = " <|constrain|>json<|message|>"
        other = replace(calls, first=first, middle=middle, marker=first)
        thought = form.thought
        if thought is not None:
            thought = replace(thought, preamble="<|channel|>commentary<|message|>")
        return replace(form, thought=thought, other_calls=(other,))
    if calls.first.lstrip().startswith("{"):
        return replace(form, other_calls=(replace(calls, first="<|python_tag|>" + calls.first),))
    return form


# Thoughts.


def _read_thought(probe: Probe, before: str) -> tuple[ThoughtForm | None, str]:
    """The form of thoughts that history shows, and the key that shows them."""
    for key in (*_THOUGHT_KEYS, PART_OF_CONTENT):
        thought = _thought_before_text(_showing(probe, key), before)
        if thought is not None:
            return thought, key
    for key in _THOUGHT_KEYS:
        thought = _thought_before_call(_showing(probe, key))
        if thought is not None:
            return thought, key
    return None, ""


def _showing(probe: Probe, key: str) -> Probe:
    return replace(probe, traits=replace(probe.traits, thought_key=key))


def _thought_before_text(probe: Probe, before: str) -> ThoughtForm | None:
    shown = probe.shown(answer(TEXT, THOUGHT))
    opening, thought, rest = shown.body.partition(THOUGHT)
    closing, text, _ = rest.partition(TEXT)
    is_printed = re.search(r"""['"]type['"]""", shown.body) is not None
    if not thought or not text or (probe.traits.thought_key == PART_OF_CONTENT and is_printed):
        return None
    if before and opening.strip() and not opening.startswith(before):
        # Marks of the text are not the thought's.
        common = common_suffix(before, closing)
        kept = closing[: len(closing) - len(common)]
        closing = kept if common.strip() == before.strip() and kept.strip() else closing
    if not closing.strip():
        return None
    if not opening.strip():
        opening = _prompted_opening(probe, shown, closing) + opening
    return ThoughtForm(opening, _closing_before_all(probe, closing, rest))


def _prompted_opening(probe: Probe, shown: Shown, closing: str) -> str:
    """The opening that the generation prompt has written, and may have closed again."""
    prompt = shown.prompt
    if closing.strip() and closing.strip() in shown.given:
        prompt = prompt.removesuffix(shown.given)
    tag = _LAST_TAG.search(prompt.removeprefix(probe.history_prompt()))
    return tag[0] if tag else shown.given or probe.shown(answer(TEXT)).given


def _closing_before_all(probe: Probe, closing: str, rest: str) -> str:
    """Up to where the answer may go on otherwise, as with the header of a further message."""
    called = probe.shown(answer("", THOUGHT, [(NAMES[0], ARGUMENTS)]), TOOLS[:1]).body
    if THOUGHT not in called or NAMES[0] not in called:
        return closing
    common = os.path.commonprefix([rest, called.partition(THOUGHT)[2]])
    both = without_open_tag(common)
    return both if 0 < len(both.strip()) < len(closing.strip()) else closing


def _thought_before_call(probe: Probe) -> ThoughtForm | None:
    """Of a template that shows thoughts beside calls alone."""
    shown = probe.shown(answer("", THOUGHT, [(NAMES[0], ARGUMENTS)]), TOOLS[:1])
    opening, thought, rest = shown.body.partition(THOUGHT)
    closing = _TAG_WITH_SPACE.match(rest)
    if not thought or WORD not in rest or closing is None:
        return None
    if not opening.strip():
        opening = _prompted_opening(probe, shown, closing[0]) + opening
    return ThoughtForm(opening, closing[0]) if opening.strip() else None


def _dropped_thought(probe: Probe) -> ThoughtForm | None:
    """Of a template whose history drops thoughts: the marks are what it looks for in texts."""
    words = {word.strip() for word in probe.template.constants}
    for closing in sorted(filter(_TAG.fullmatch, words), key=lambda tag: (len(tag), tag)):
        chat = probe.as_earlier(THOUGHT + closing + TEXT)
        if TEXT in chat and THOUGHT not in chat:
            return ThoughtForm(closing.replace("/", "", 1), closing)
    return None


# Calls.


def _read_calls(
    probe: Probe, thought: ThoughtForm | None, ends: Sequence[str]
) -> tuple[CallForm | None, Traits]:
    """The form of calls, None if none are shown, and the traits that it asks for.

    Raises Unreadable.
    """
    one = CallProbe(probe, thought).shown([ARGUMENTS])
    if WORD not in one:
        return None, probe.traits
    traits = _traits_of_calls(probe, one)
    calls = CallProbe(replace(probe, traits=traits), thought)
    labels = [f"functions.{name}:{n}" for n, name in enumerate(NAMES)]
    labels = labels if traits.name_in_id else list(NAMES)
    bodies = [calls.shown([ARGUMENTS] * num_calls) for num_calls in (1, 2, 3)]
    several = labels[1] in bodies[1] and bodies[1].count(WORD) == 2
    if _json_span(bodies[0]) is not None:
        form = _json_form(bodies, labels, ends, several=several)
    else:
        form = ParameterReading(calls, ends, several=several).form()
    if not form.first.strip() and form.parameters is None:
        raise Unreadable("calls begin with nothing")
    texts = AnswerFormat(calls=form).markers
    if any(NAMES[0] in text for text in texts):
        raise Unreadable("the name is written twice")
    if any(word in text for text in texts for word in (QUESTION, *NAMES, *KEYS, WORD)):
        raise Unreadable("calls stand behind another prompt than the one that asks for them")
    form = replace(form, name_in_id=traits.name_in_id, id_len=traits.id_len)
    return form, traits


def _traits_of_calls(probe: Probe, one: str) -> Traits:
    traits = replace(probe.traits, name_in_id=NAMES[0] not in one)
    label = CALL_IDS[0] if traits.name_in_id else NAMES[0]
    if label not in one:
        raise Unreadable("the name is not shown")
    (call,) = _ONE_CALL["tool_calls"]
    long = {**_ONE_CALL, "tool_calls": [{**call, "id": _LONG_ID}]}
    if not probe.shown(long, TOOLS[:1]).body:
        traits = replace(traits, id_len=len(CALL_IDS[0]))
    thought = THOUGHT if traits.thought_key else ""
    both = probe.shown(answer(TEXT, thought, [(NAMES[0], ARGUMENTS)]), TOOLS[:1]).body
    return replace(traits, takes_text_with_calls=label in both)


def _json_form(
    bodies: Sequence[str], labels: Sequence[str], ends: Sequence[str], *, several: bool
) -> CallForm:
    """From answers of one, two and three calls, whose arguments are JSON. Raises Unreadable."""
    first, middle, last = _pieces(bodies[0], labels[:1])
    last = without_end(last, ends)
    between = None
    if several:
        _, middle, between, next_middle, last_of_two = _pieces(bodies[1], labels[:2])
        *_, next_between, _, _ = _pieces(bodies[2], labels)
        between = _numbered(between, next_between, 1, 2)
    if between is not None:
        numbered = _numbered(middle, next_middle, 0, 1)
        if numbered is None:
            raise Unreadable("names are followed differently")
        middle = numbered
        last = without_end(last_of_two, ends)
        if NUMBER in between:
            behind = common_suffix(between, first)
            if not first.removesuffix(behind).endswith("0"):
                raise Unreadable("calls are numbered, but not the first one")
            first = first.removesuffix(behind)[:-1] + NUMBER + behind
    return CallForm(first, middle, between, last)


def _pieces(body: str, labels: Sequence[str]) -> list[str]:
    """What stands before, between and behind names and arguments. Raises Unreadable."""
    pieces = []
    for label in labels:
        before, found, rest = body.partition(label)
        span = _json_span(rest)
        if not found or span is None:
            raise Unreadable("the name is not before the arguments")
        pieces += [before, rest[: span[0]]]
        body = rest[span[1] :]
    return [with_ids(piece) for piece in (*pieces, body)]


def _json_span(text: str) -> tuple[int, int] | None:
    """Where the sentinel arguments stand as JSON."""
    for bracket in _BRACKET.finditer(text):
        try:
            value, length = json.JSONDecoder().raw_decode(text[bracket.start() :])
        except ValueError:
            continue
        if value == ARGUMENTS:
            return bracket.start(), bracket.start() + length
    return None


def _numbered(text: str, other: str, number: int, other_number: int) -> str | None:
    """`text` with a place for the number in which `other` differs; None: they differ otherwise."""
    if text == other:
        return text
    common = os.path.commonprefix([text, other])
    rest = text[len(common) :].removeprefix(str(number))
    if common + str(number) + rest == text and common + str(other_number) + rest == other:
        return common + NUMBER + rest
    return None
