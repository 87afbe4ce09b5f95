"""How a chat template reads messages, found by rendering small chats.

Clients send OpenAI's messages: texts or parts, old and new roles, a call's arguments as JSON text.
Templates read some of that. `find_traits` probes a template once; `adapt` brings messages into the
form that the template reads. What the template writes is read by `format_reading.py`. It knows no
models, no tokens and no HTTP.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from jinja2 import TemplateError

from router.text.answer_format import GENERIC_CALLS

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message], Sequence[Message] | None], str]
_TEXT = "sesquipedalian"
_OTHER_TEXT = "antidisestablishmentarianism"
_NAME = "look_up"
_ARGUMENTS = {"lemma": "floccinaucinihilipilification"}
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "",
        "parameters": {"type": "object", "properties": {"lemma": {"type": "string"}}},
    },
}
# Some templates require ids of nine letters and digits.
_CALL_ID = "call00001"
_IMAGE: Message = {"type": "image"}
_QUESTION: list[Message] = [{"role": "user", "content": _TEXT}]
# The roles of a call's result, and the role that carries it where a template knows neither.
_RESULTS = ("tool", "function")
_RESULT_FALLBACK = "user"
# Between messages that become one.
_JOINT = "\n\n"
# The key under which messages bring what the assistant thought.
THOUGHT_KEY = "reasoning_content"
# The `thought_key` of templates that read the thought from a part of the content.
PART_OF_CONTENT = "content"


class TemplateLimit(TemplateError):
    """A template ran too long or wrote too much: what renders raises it."""


@dataclass(frozen=True, slots=True)
class Traits:
    """How a template reads messages.

    `words` are the strings in its comparisons: the roles that it knows are among them.
    `takes_parts`: content must be a list of parts. `shows_calls`: it renders an assistant's calls,
    else they are put into the content. `takes_text_arguments`: the arguments of a call must be JSON
    text, else an object. `takes_null_content`: the content of a message that has only calls must be
    null, else empty. `shows_results`: it renders results of calls, else they
    become user messages. `single_roles`: of these it takes no two messages in a row, so that such
    messages become one.

    `thought_key`: the key from which it reads what the assistant thought; empty: it shows none.
    `takes_text_with_calls`: else it refuses a message with both. `id_len`: it requires ids of calls
    with as many letters and digits. `name_in_id`: it shows a call by its id, which has to be
    `functions.NAME:NUMBER`.

    `shows_images`: those among the parts of a user's message. `image_text` is what it writes for
    one, which stands in the texts of all other messages; empty: there are none.
    """

    words: frozenset[str] = frozenset()
    takes_parts: bool = False
    shows_calls: bool = False
    takes_text_arguments: bool = False
    takes_null_content: bool = False
    shows_results: bool = True
    single_roles: frozenset[str] = frozenset()
    thought_key: str = ""
    takes_text_with_calls: bool = True
    id_len: int | None = None
    name_in_id: bool = False
    shows_images: bool = False
    image_text: str = ""


def find_traits(render: Render, words: frozenset[str]) -> Traits:
    """The traits of a template. `render` may raise anything: the template cannot read that chat.

    A template that exceeds its time limit is not rendered again.
    """
    plain = Traits(words)
    try:
        plain = Traits(words, takes_parts=_takes_parts(render))
        plain = replace(plain, single_roles=_single_roles(render, plain))
        plain = replace(plain, shows_results=_shows_results(render, plain))
        for takes_text, takes_null in product((False, True), repeat=2):
            traits = replace(
                plain,
                shows_calls=True,
                shows_results=True,
                takes_text_arguments=takes_text,
                takes_null_content=takes_null,
            )
            text = _chat_with_call(render, traits)
            if _is_whole(text[_question_len(render, traits, text) :]):
                return traits
    except TemplateLimit:
        pass  # a template that takes so long counts as one that shows no calls
    return plain


def with_images(render: Render, traits: Traits, marker: str) -> Traits:
    """The traits with those of images. `marker` is what stands for one in a prompt."""
    question = {"role": "user", "content": [_part(_TEXT), dict(_IMAGE), _part(_OTHER_TEXT)]}
    rendered = _rendered(render, adapt([question], traits), None)
    is_shown = rendered.count(marker) == 1 and _TEXT in rendered and _OTHER_TEXT in rendered
    between = rendered.partition(_TEXT)[2].partition(_OTHER_TEXT)[0]
    text = between if is_shown and marker in between else marker
    return replace(traits, shows_images=is_shown, image_text=text)


def adapt(messages: Sequence[Message], traits: Traits) -> list[dict[str, Any]]:
    """The messages as the template reads them. Fields that are None count as absent."""
    shown: list[dict[str, Any]] = []
    was_result = False
    ids = _CallIds(traits)
    for message in messages:
        adapted = ids.renamed(_adapted(message, traits))
        is_result = not traits.shows_results and adapted.get("role") in _RESULTS
        if is_result:
            adapted = {"role": _RESULT_FALLBACK, "content": adapted.get("content", "")}
        role = adapted.get("role")
        same_role = bool(shown) and shown[-1].get("role") == role
        # Templates that know no results may require alternating turns.
        is_beside_result = is_result or was_result
        if same_role and (is_beside_result or role in traits.single_roles):
            joint = "\n" if is_beside_result else _JOINT
            shown[-1] = {**shown[-1], "content": _joined(shown[-1], adapted, joint)}
        else:
            shown.append(adapted)
        was_result = is_result
    return shown


def _joined(first: Message, second: Message, joint: str) -> Any:
    """The contents of two messages, one below the other."""
    one = first.get("content", "")
    other = second.get("content", "")
    if isinstance(one, str) and isinstance(other, str):
        return f"{one}{joint}{other}"
    lists = ([_part(part)] if isinstance(part, str) else part for part in (one, joint, other))
    return [part for parts in lists for part in parts]


def _part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _adapted(message: Message, traits: Traits) -> dict[str, Any]:
    shown = {key: value for key, value in message.items() if value is not None}
    role = _role(shown.get("role"), traits.words)
    if role is not None:
        shown["role"] = role
    calls = shown.pop("tool_calls", None)
    if "function_call" in shown and not calls:
        calls = [{"type": "function", "function": shown.pop("function_call")}]
    if calls and traits.shows_calls:
        shown["tool_calls"] = [_message_call(call, traits) for call in calls]
        shown.setdefault("content", None if traits.takes_null_content else "")
    elif calls:
        shown["content"] = _appended(shown.get("content"), _written(calls))
    thought = shown.pop(THOUGHT_KEY, None)
    if "tool_calls" in shown and not traits.takes_text_with_calls:
        thought = _JOINT.join(filter(None, (thought, _text(shown["content"]))))
        shown["content"] = None if traits.takes_null_content else ""
    content = shown.get("content")
    is_shown = traits.shows_images and shown.get("role") == "user"
    if traits.image_text and isinstance(content, list) and not is_shown:
        content = shown["content"] = _with_image_texts(content, traits.image_text)
    if traits.takes_parts and isinstance(content, str):
        shown["content"] = [_part(content)]
    if thought and traits.thought_key == PART_OF_CONTENT:
        parts = [_part(content)] if content and isinstance(content, str) else content or []
        shown["content"] = [{"type": "thinking", "thinking": thought}, *parts]
    elif thought and traits.thought_key:
        shown[traits.thought_key] = thought
    return shown


def _with_image_texts(content: Sequence[Any], image_text: str) -> Any:
    """A content as a text, where its parts are texts and images."""
    kinds = [part.get("type") if isinstance(part, Mapping) else None for part in content]
    if "image" not in kinds or not {"text", "image"}.issuperset(kinds):
        return content
    return "".join(
        image_text if kind == "image" else part["text"]
        for kind, part in zip(kinds, content, strict=True)
    )


def _text(content: Any) -> str:
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = (part.get("text") for part in parts if isinstance(part, Mapping))
    return "".join(text for text in texts if isinstance(text, str))


class _CallIds:
    """The ids of a chat's calls as the template requires them. Owner of those renamed so far."""

    def __init__(self, traits: Traits) -> None:
        self._traits = traits
        self._renamed: dict[str, str] = {}
        self._num_calls = 0

    def renamed(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message whose calls, or whose result, have the ids that the template requires."""
        if self._traits.id_len is None and not self._traits.name_in_id:
            return message
        if "tool_calls" in message:
            message = {**message, "tool_calls": [*map(self._call, message["tool_calls"])]}
        call_id = message.get("tool_call_id")
        if call_id in self._renamed:
            message = {**message, "tool_call_id": self._renamed[call_id]}
        return message

    def _call(self, call: Any) -> Any:
        call_id = call.get("id") if isinstance(call, Mapping) else None
        function = call.get("function") if isinstance(call, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        number = self._num_calls
        self._num_calls += 1
        if not isinstance(call_id, str):
            return call
        new = call_id
        if self._traits.name_in_id:
            new = f"functions.{name}:{number}"
        elif len(call_id) != self._traits.id_len or not call_id.isalnum():
            new = hashlib.sha256(call_id.encode()).hexdigest()[: self._traits.id_len]
        self._renamed[call_id] = new
        return {**call, "id": new}


def _appended(content: Any, text: str) -> Any:
    if isinstance(content, list):
        return [*content, _part(text)]
    return f"{content}\n{text}" if content else text


def _role(role: Any, words: frozenset[str]) -> Any:
    """The role that the template knows in place of OpenAI's newest and oldest one."""
    if role == "developer" and "developer" not in words:
        return "system"
    if role == "function" and "function" not in words and "tool" in words:
        return "tool"
    return role


def _written(calls: Sequence[Any]) -> str:
    """Calls in the form in which a model is told to call where its template shows none."""
    form = GENERIC_CALLS
    written: list[str] = []
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            function = {}
        arguments = function.get("arguments", {})
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        written.append(f"{function.get('name', '')}{form.middle}{arguments or '{}'}")
    return f"{form.first}{(form.between or '').join(written)}{form.last}"


def _message_call(call: Any, traits: Traits) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    return {**call, "function": {**function, "arguments": _arguments(function, traits)}}


def _arguments(function: Mapping[str, Any], traits: Traits) -> Any:
    """Text that is no JSON, as a model may have written it, stays as it is."""
    arguments = function.get("arguments", {})
    if traits.takes_text_arguments:
        if isinstance(arguments, str):
            return arguments
        return json.dumps(arguments, ensure_ascii=False)
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments) if arguments.strip() else {}
    except ValueError:
        return arguments


def _rendered(render: Render, messages: Sequence[Message], tools: Sequence[Message] | None) -> str:
    try:
        return render(messages, tools)
    except TemplateLimit:
        raise
    except Exception:  # a template is a program: it may raise anything  # noqa: BLE001
        return ""


def _takes_parts(render: Render) -> bool:
    def shows(content: Any) -> bool:
        return _TEXT in _rendered(render, [{"role": "user", "content": content}], None)

    return not shows(_TEXT) and shows([_part(_TEXT)])


def _single_roles(render: Render, traits: Traits) -> frozenset[str]:
    """Of the roles that the template shows, those whose second message it refuses or drops."""

    def shows(role: str, texts: Sequence[str]) -> bool:
        messages = [{"role": role, "content": text} for text in texts]
        if role != "user":
            messages.append({"role": "user", "content": _NAME})
        rendered = _rendered(render, adapt(messages, traits), None)
        return all(text in rendered for text in texts)

    return frozenset(
        role
        for role in ("system", "user")
        if shows(role, [_TEXT]) and not shows(role, [_TEXT, _OTHER_TEXT])
    )


def _shows_results(render: Render, traits: Traits) -> bool:
    """For a template that shows no calls; false only where it shows a user message there."""

    def shows(role: str) -> bool:
        messages = [
            {"role": "user", "content": _NAME},
            {"role": "assistant", "content": _NAME},
            {"role": role, "content": _TEXT},
        ]
        return _TEXT in _rendered(render, adapt(messages, traits), None)

    return shows("tool") or not shows(_RESULT_FALLBACK)


def _question_len(render: Render, traits: Traits, text: str) -> int:
    """How much of a chat's `text` is before the answer: some templates print their tools there."""
    question = _rendered(render, adapt(_QUESTION, traits), [_TOOL])
    return len(os.path.commonprefix([question, text]))


def _chat_with_call(render: Render, traits: Traits) -> str:
    call = {
        "id": _CALL_ID,
        "type": "function",
        "function": {"name": _NAME, "arguments": _ARGUMENTS},
    }
    messages: list[Message] = [
        *_QUESTION,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": _TEXT, "tool_call_id": _CALL_ID, "name": _NAME},
    ]
    return _rendered(render, adapt(messages, traits), [_TOOL])


def _is_whole(text: str) -> bool:
    """Whether the call is there, its arguments encoded once.

    Python's quotes are those of an object printed as such, escaped ones of JSON encoded again.
    """
    ((key, value),) = _ARGUMENTS.items()
    return value in text and f"'{key}'" not in text and f'\\"{key}' not in text
