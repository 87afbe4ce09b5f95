"""Small chats rendered by a template, to see how an answer in them is written.

Texts in them are sentinels, words that no template writes of itself: where they stand in what was
rendered, and what stands around them, is the model's form. It knows no forms.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from router.text.answer_format import ID, ThoughtForm
from router.text.template_traits import THOUGHT_KEY, Message, TemplateLimit, Traits, adapt

QUESTION = "Sesquipedalian?"
_ASKED: Message = {"role": "user", "content": QUESTION}
TEXT = "Antediluvian"
THOUGHT = "Perspicacious"
NAMES = ("look_up", "fetch_all", "drop_it")
KEYS = ("zeta", "zulu")
WORD = "floccinauci"
OTHER_WORD = "nihilipili"
# As short as the strictest templates want them.
CALL_IDS = ("call00001", "call00002", "call00003")
# The words of templates for the switch between answers with a thought and without one.
_SWITCHES = ("enable_thinking", "thinking")
# The beginning of a tag, within which two texts may begin to differ.
_TAG_BEGUN = re.compile(r"(?:[<\[◁][^<>\[\]\s]*)?$")
_KINDS: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
}


class Unreadable(Exception):
    """What a template shows is in no form that is known."""


class Template(Protocol):
    """A compiled template.

    variables: the names that it reads
    constants: the texts in it
    """

    @property
    def variables(self) -> frozenset[str]: ...

    @property
    def constants(self) -> frozenset[str]: ...

    def render(self, variables: Mapping[str, Any], /) -> str:
        """The text. Raises anything, and TemplateLimit."""


@dataclass(frozen=True, slots=True)
class Shown:
    """An answer as a template shows it.

    body:   what the answer is, behind the generation prompt; empty where it is not rendered
    given:  what the generation prompt wrote beyond what a chat without it has in that place
    prompt: the generation prompt, with all before it
    """

    body: str = ""
    given: str = ""
    prompt: str = ""


def tool(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A tool that takes such arguments."""
    properties = {key: _schema(value) for key, value in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": []}
    return {
        "type": "function",
        "function": {"name": name, "description": "d", "parameters": parameters},
    }


def _schema(value: Any) -> dict[str, Any]:
    # A type of null makes some templates recurse for ever.
    shown: dict[str, Any] = {} if value is None else {"type": _KINDS[type(value)]}
    if isinstance(value, list):
        shown["items"] = {"type": "string"}
    if isinstance(value, dict):
        shown["additionalProperties"] = {"type": "string"}
    return {**shown, "description": "d"}


def answer(
    text: str = "",
    thought: str = "",
    calls: Sequence[tuple[str, Mapping[str, Any]]] = (),
) -> dict[str, Any]:
    """An assistant's message in OpenAI's form."""
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")}
    if thought:
        message[THOUGHT_KEY] = thought
    if calls:
        message["tool_calls"] = [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
            }
            for call_id, (name, arguments) in zip(CALL_IDS, calls, strict=False)
        ]
    return message


ARGUMENTS: Mapping[str, Any] = {KEYS[0]: WORD}
TOOLS = [tool(name, ARGUMENTS) for name in NAMES]


@dataclass(frozen=True, slots=True)
class Probe:
    """Renders chats of one question. `special` are the tokens that templates get.

    Every method raises TemplateLimit.

    `header` is what stands before each answer where templates write no generation prompt.
    """

    template: Template
    special: Mapping[str, Any]
    traits: Traits
    # Some templates render no chat without any.
    default_tools: Sequence[Message] | None = None
    header: str = ""

    @property
    def variables(self) -> dict[str, Any]:
        """What lets the template show thoughts."""
        return dict.fromkeys([each for each in _SWITCHES if each in self.template.variables], True)

    def prompt(self, tools: Sequence[Message] | None = None) -> str:
        """The chat before the answer; empty where the template refuses it."""
        return self._rendered([_ASKED], tools, generates=True)

    def history_prompt(self) -> str:
        """What the chat before the answer has without the generation prompt."""
        return os.path.commonprefix([self._rendered([_ASKED]), self.prompt()])

    def shown(self, message: Message, tools: Sequence[Message] | None = None) -> Shown:
        """The answer `message` in the chat; of nothing where the template refuses it."""
        prompt = self.prompt(tools)
        history = self._rendered([_ASKED, message], tools)
        if not prompt or not history:
            return Shown()
        common_len = len(os.path.commonprefix([prompt, history]))
        if common_len < len(prompt):
            common_len = _tag_start(prompt[:common_len])
        body = history[common_len:].removeprefix(self.header)
        return Shown(body, prompt[common_len:], prompt)

    def as_earlier(self, text: str) -> str:
        """A chat that goes on behind an answer of this text; empty where it is refused."""
        return self._rendered([_ASKED, answer(text), _ASKED])

    def _rendered(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] | None = None,
        *,
        generates: bool = False,
    ) -> str:
        variables = {
            "documents": None,
            **self.special,
            "messages": adapt(messages, self.traits),
            "tools": tools or self.default_tools,
            "add_generation_prompt": generates,
            **self.variables,
        }
        try:
            return self.template.render(variables)
        except TemplateLimit:
            raise
        except Exception:  # a template is a program: it may raise anything  # noqa: BLE001
            return ""


def _tag_start(text: str) -> int:
    begun = _TAG_BEGUN.search(text)
    assert begun is not None
    return begun.start()


@dataclass(frozen=True, slots=True)
class CallProbe:
    """Renders answers of calls of the tools `NAMES`."""

    probe: Probe
    thought: ThoughtForm | None

    def shown(self, arguments: Sequence[Mapping[str, Any]]) -> str:
        """An answer with as many calls, without an empty thought before them."""
        calls = list(zip(NAMES, arguments, strict=False))
        body = self.probe.shown(answer(calls=calls), TOOLS).body
        before, label, rest = body.partition(NAMES[0] if NAMES[0] in body else CALL_IDS[0])
        return behind_thought(before, self.thought) + label + rest


def behind_thought(text: str, thought: ThoughtForm | None) -> str:
    """What stands before a text or calls, without an empty thought or what closes one."""
    if thought is None:
        return text
    before, closer, rest = text.partition(thought.closer)
    return rest.removeprefix(thought.closing.partition(closer)[2]) if closer else before


def without_end(text: str, ends: Sequence[str]) -> str:
    """Up to the first of the texts that end an answer, and to the white space before it."""
    for end in ends:
        text = text.partition(end)[0]
    return text.rstrip()


def with_ids(text: str) -> str:
    """With places for the ids of calls."""
    for call_id in CALL_IDS:
        text = text.replace(call_id, ID)
    return text


def common_suffix(text: str, other: str) -> str:
    return os.path.commonprefix([text[::-1], other[::-1]])[::-1]
