"""Reads how a chat template writes arguments one by one, each with its name and its value."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from router.text.answer_format import (
    CallForm,
    Code,
    Parameters,
    ValueForm,
    without_open_tag,
)
from router.text.template_probe import (
    KEYS,
    NAMES,
    OTHER_WORD,
    WORD,
    CallProbe,
    Unreadable,
    common_suffix,
    with_ids,
    without_end,
)

_NUMBER = 31337
_OTHER_NUMBER = 4242
_QUOTED = 'a"b'
_OTHERS: tuple[Any, ...] = (_NUMBER, True, None, [1, "x"], {"y": 1.5})


@dataclass(frozen=True, slots=True)
class _Written:
    """How one value is written: what stands around it, and its code."""

    before: str
    code: Code
    after: str


class ParameterReading:
    """Reads the form from calls of one template. `ends` end an answer, the longest first."""

    def __init__(self, probe: CallProbe, ends: Sequence[str], *, several: bool) -> None:
        self._probe = probe
        self._ends = ends
        self._several = several
        body = probe.shown([{KEYS[0]: WORD}])
        self._before_name, name, rest = body.partition(NAMES[0])
        self._before_key, key, _ = rest.partition(KEYS[0])
        self._is_readable = bool(name and key)

    def form(self) -> CallForm:
        """The form of calls. Raises Unreadable."""
        if not self._is_readable:
            raise Unreadable("arguments are neither JSON nor parameters")
        plain = self._written(_NUMBER, "")
        text = self._written(_QUOTED, "")
        is_raw = text.code is Code.RAW and text.before.startswith(plain.before)
        quote = text.before[len(plain.before) :] if is_raw else ""
        others = [self._written(value, quote) for value in _OTHERS]
        if len({each.before for each in others}) > 1:
            raise Unreadable("values are written in several ways")
        codes = {each.code for each in others}
        code = next((each for each in (Code.LAX, Code.PYTHON) if each in codes), Code.JSON)
        between, text_closing = self._between_values()
        if text.after != text_closing + plain.after:
            raise Unreadable("what ends parameters differs")
        string = ValueForm(text.before, text_closing, text.code)
        end, between_calls, last = self._ends_of_calls(plain.after, text_closing)
        other = ValueForm(plain.before, "", code)
        mark = text.before[-1:]
        if text.code is Code.RAW and mark in tuple("'\"") and text_closing == mark:
            # Literals of Python, whose strings templates do not escape, but models do.
            string = ValueForm(text.before[:-1], "", Code.PYTHON)
            other = ValueForm(other.opening, "", Code.PYTHON)
        none = self._none(last) or self._before_key.rstrip() + end
        parameters = Parameters(self._before_key, between, end, none, string, other)
        first = with_ids(self._before_name)
        return CallForm(first, "", between_calls, last, parameters=parameters)

    def _written(self, value: Any, quote: str) -> _Written:
        body = self._probe.shown([{KEYS[0]: value}])
        _, _, rest = body.partition(NAMES[0] + self._before_key + KEYS[0])
        for code, text in _spellings(value, quote):
            before, found, after = rest.partition(text)
            if found:
                return _Written(before, code, after)
        raise Unreadable(f"the value {value!r} is not shown")

    def _between_values(self) -> tuple[str, str]:
        """What stands between parameters, and what ends strings alone."""
        body = self._probe.shown([{KEYS[0]: WORD, KEYS[1]: OTHER_WORD}])
        strings = body.partition(WORD)[2].partition(KEYS[1])[0]
        body = self._probe.shown([{KEYS[0]: _NUMBER, KEYS[1]: _OTHER_NUMBER}])
        numbers = body.partition(str(_NUMBER))[2].partition(KEYS[1])[0]
        common = common_suffix(strings, numbers)
        return common, strings.removesuffix(common)

    def _ends_of_calls(self, after: str, text_closing: str) -> tuple[str, str | None, str]:
        """What ends parameters, and what stands between calls and behind the last one."""
        last = without_end(after, self._ends)
        if not self._several:
            return last, None, ""
        body = self._probe.shown([{KEYS[0]: WORD}, {KEYS[0]: WORD}])
        rest = body.partition(WORD + text_closing)[2]
        between = rest.partition(NAMES[1])[0]
        common = os.path.commonprefix([between, last])
        end = without_open_tag(common) or common
        last_of_two = without_end(rest.rpartition(WORD + text_closing)[2], self._ends)
        return end, with_ids(between[len(end) :]), with_ids(last_of_two[len(end) :])

    def _none(self, last: str) -> str:
        """What stands behind the name of a call without parameters; empty: none is shown."""
        rest = self._probe.shown([{}]).partition(NAMES[0])[2]
        return without_end(rest, self._ends).removesuffix(last)


def _spellings(value: Any, quote: str) -> list[tuple[Code, str]]:
    """Ways to write a value, the most common first."""
    ways = [
        (Code.JSON, json.dumps(value, ensure_ascii=False)),
        (Code.PYTHON, repr(value)),
    ]
    if isinstance(value, str):
        ways.insert(0, (Code.RAW, value))
    return [*ways, (Code.LAX, _lax(value, quote))] if quote else ways


def _lax(value: Any, quote: str) -> str:
    """JSON with bare keys, and with strings between `quote`."""
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, list):
        return f"[{','.join(_lax(each, quote) for each in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{_lax(each, quote)}' for key, each in value.items())}}}"
    return json.dumps(value)
