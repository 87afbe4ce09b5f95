"""A chat as the terminal client keeps it, and as its files hold it.

    {"messages": [{"role": "system", "content": "..."}, {"role": "user", ...}, ...]}

which is what OpenAI's clients send. What the model thought is in `reasoning_content`.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from client.calls import Message
from client.errors import BadInput

_ROLES = ("user", "assistant")


@dataclass(frozen=True, slots=True)
class Conversation:
    """`turns` are of the user and of the assistant. `system`: what comes before them, if anything.

    `is_raw`: a text is gone on with as it is, and nothing is remembered.
    """

    system: str = ""
    turns: tuple[Message, ...] = ()
    is_raw: bool = False

    def prompt(self, text: str) -> str | tuple[Message, ...]:
        """The prompt of a request for the next answer."""
        if self.is_raw:
            return text
        system = (Message("system", self.system),) if self.system else ()
        return (*system, *self.turns, Message("user", text))

    @property
    def thought(self) -> str:
        """What was thought before the last answer."""
        return self.turns[-1].thought if self.turns else ""

    def answered(self, text: str, answer: str, thought: str = "") -> "Conversation":
        """With a question and its answer."""
        if self.is_raw:
            return self
        turns = (*self.turns, Message("user", text), Message("assistant", answer, thought))
        return replace(self, turns=turns)

    def write(self, path: Path) -> None:
        """Keeps it in a file. Raises BadInput."""
        system = (Message("system", self.system),) if self.system else ()
        turns = [_kept(turn) for turn in (*system, *self.turns)]
        try:
            path.write_text(json.dumps({"messages": turns}, indent=2, ensure_ascii=False) + "\n")
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}") from None

    @classmethod
    def read(cls, path: Path) -> "Conversation":
        """What a file holds. Raises BadInput, which names the place."""
        value = read_json(path)
        messages = value.get("messages") if isinstance(value, dict) else value
        if not isinstance(messages, list):
            raise BadInput(f"{path}: must hold an object with `messages`, a list")
        system = ""
        turns = []
        for index, each in enumerate(messages):
            role, content = (
                (each.get("role"), each.get("content")) if isinstance(each, dict) else (None, None)
            )
            place = f"{path}: `messages[{index}]`"
            if not isinstance(content, str):
                raise BadInput(f"{place} must have a `content`, a string")
            if index == 0 and role == "system":
                system = content
            elif role in _ROLES:
                thought = each.get("reasoning_content") or ""
                if not isinstance(thought, str):
                    raise BadInput(f"{place}: `reasoning_content` must be a string")
                turns.append(Message(role, content, thought))
            else:
                raise BadInput(f"{place}: `role` must be user or assistant. Given: {role}")
        return cls(system, tuple(turns))


def _kept(turn: Message) -> dict[str, str]:
    kept = {"role": turn.role, "content": turn.content}
    return kept | ({"reasoning_content": turn.thought} if turn.thought else {})


def read_json(path: Path) -> object:
    """A file's JSON. Raises BadInput."""
    try:
        value: object = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: is not JSON: {error}") from None
    return value
