"""`launcher client`: what is typed is answered line by line, its tokens printed as they come.

/command ...        changes the session
text key=value ...  asks: as the next turn of a chat, or raw, as a text to go on with
key=value ...       parameters that hold from then on

Each message has a connection of its own, so that Ctrl-C, which ends it, frees the request at the
server. On a terminal the client goes on then. Where stdin is no terminal, each line of it is a
message, and Ctrl-C ends the client.

A chat is kept, here and in its files, as OpenAI's clients send it; what the model thought is in
`reasoning_content`.

    {"messages": [{"role": "system", "content": "..."}, {"role": "user", ...}, ...]}

The parameters are the longest end of a line that reads as `key=value` and nothing else. A prompt in
quotes has Python's escapes, and may end as a parameter would.
"""

import ast
import asyncio
import difflib
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from client.calls import Answer, Constraint, GenerateCall, Message, Prompt, ServerNotice
from client.cli.terminal import ExitCode, Screen, notice_text, unseen_keys
from client.errors import BadInput, TandemError
from client.images import image_url
from client.lmtp.frames import Greeting, turn_fields
from client.lmtp.model import LmtpModel
from client.sampling import SAMPLING_RULES, Sampling

_QUOTED = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
_STRINGS = r"""\[(?:"(?:[^"\\]|\\.)*"|[^"\]])*\]"""
_PARAMETER = re.compile(
    rf"([A-Za-z_][A-Za-z0-9_]*)=(?!=)((?>{_QUOTED}|{_STRINGS}(?!\S)|\S*))(?:\s+|\Z)"
)
# From the first parameter that only parameters follow; each value is read once, as far as it goes.
_PARAMETERS = re.compile(rf"(?<!\S)(?>(?:{_PARAMETER.pattern})+)\Z")
_QUOTED_PROMPT = re.compile(rf"({_QUOTED})\s*(.*)", re.DOTALL)
_MAX_SHOWN_LEN = 60
# How alike a name is, at least, that was meant as a parameter's (difflib).
_TYPO = 0.75


@dataclass(frozen=True, slots=True)
class Line:
    """What was typed. `prompt` None: only parameters. `parameters`: None takes one back."""

    prompt: str | None
    parameters: Mapping[str, object | None] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a key's value must be, in words, and how it is read; ValueError if it is not."""

    words: str
    read: Callable[[str], object]


def _number(value: str) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _strings(value: str) -> list[str]:
    strings = json.loads(value)
    if not strings or not isinstance(strings, list) or not all(isinstance(s, str) for s in strings):
        raise ValueError
    return strings


def _stop(value: str) -> list[str]:
    return _strings(value) if value.startswith("[") else [value]


def _schema(value: str) -> object:
    schema = json.loads(value)
    if not isinstance(schema, dict | bool):
        raise ValueError
    return schema


_NUMBER = _Rule("a number", _number)
_WHOLE = _Rule("a whole number", int)
_CONSTRAINTS = MappingProxyType(
    {
        "where": _Rule("a condition in quotes", str),
        "regex": _Rule("a pattern in quotes", str),
        "lark": _Rule("a grammar in quotes", str),
        "gbnf": _Rule("a grammar in quotes", str),
        "choice": _Rule("a JSON list of strings", _strings),
        "json": _Rule("a JSON schema", _schema),
    }
)
_RULES: Mapping[str, _Rule] = MappingProxyType(
    {
        "max_tokens": _WHOLE,
        **{key: _WHOLE if rule.is_whole else _NUMBER for key, rule in SAMPLING_RULES.items()},
        "stop": _Rule("a string, or a JSON list of strings", _stop),
        "timeout_s": _NUMBER,
        **_CONSTRAINTS,
    }
)
KEYS = tuple(_RULES)
CONSTRAINT_KEYS = tuple(_CONSTRAINTS)


def read_line(text: str, *, is_talk: bool = False) -> Line:
    """What a line means. Raises BadInput.

    `is_talk`: people write of x=3; an end that names no parameter, nor nearly one, is text.
    """
    text = text.strip()
    quoted = _QUOTED_PROMPT.fullmatch(text)
    if quoted is not None and (not quoted[2] or _PARAMETERS.match(quoted[2])):
        return Line(_unquoted(quoted[1]), _read_parameters(quoted[2]))
    found = _PARAMETERS.search(text)
    if found is None:
        return Line(text)
    if is_talk and not all(_is_near(key) for key, _ in _PARAMETER.findall(found[0])):
        return Line(text)
    return Line(text[: found.start()].rstrip() or None, _read_parameters(found[0]))


def call_of(prompt: Prompt, parameters: Mapping[str, object | None]) -> GenerateCall:
    """The request for a prompt under all parameters that hold. Raises BadInput."""
    given = {key: value for key, value in parameters.items() if value is not None}
    kinds = [key for key in given if key in _CONSTRAINTS]
    if len(kinds) > 1:
        raise BadInput(
            f"{kinds[0]} and {kinds[1]} exclude each other: an output has one constraint"
        )
    sampling = {key: given.pop(key) for key in SAMPLING_RULES if key in given}
    constraint = Constraint(kinds[0], given.pop(kinds[0])) if kinds else None
    stop = given.pop("stop", ())
    # The rules have given each value the type of its field.
    return GenerateCall(
        prompt=prompt,
        sampling=Sampling(**sampling),  # type: ignore[arg-type]
        constraint=constraint,
        stop=tuple(stop),  # type: ignore[arg-type]
        **given,  # type: ignore[arg-type]
    )


def _is_near(key: str) -> bool:
    return key in _RULES or bool(difflib.get_close_matches(key, KEYS, 1, _TYPO))


def _read_parameters(text: str) -> dict[str, object | None]:
    return {key: _read(key, value) for key, value in _PARAMETER.findall(text)}


def _read(key: str, text: str) -> object | None:
    """The value behind a key; None takes it back. Raises BadInput."""
    is_quoted = re.fullmatch(_QUOTED, text) is not None
    value = _unquoted(text) if is_quoted else text
    shown = value if len(value) <= _MAX_SHOWN_LEN else value[:_MAX_SHOWN_LEN] + "..."
    rule = _RULES.get(key)
    if rule is None:
        near = difflib.get_close_matches(key, KEYS, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(KEYS)}"
        raise BadInput(
            f"{key}={shown}: no parameter has this name; {hint} "
            "(a prompt that ends like this belongs in quotes)"
        )
    if not value or (key == "stop" and is_quoted):
        return [value] if value else None
    try:
        return rule.read(value)
    except (ValueError, RecursionError):
        raise BadInput(f"{key} must be {rule.words}. Given: {shown}") from None


def _unquoted(quoted: str) -> str:
    try:
        return str(ast.literal_eval(quoted))
    except (SyntaxError, ValueError) as error:
        raise BadInput(f"{quoted}: {error}") from None


_ROLES = ("user", "assistant")


@dataclass(frozen=True, slots=True)
class Conversation:
    """`turns` are of the user and of the assistant. `system`: what comes before them, if anything.

    `is_raw`: a text is gone on with as it is, and nothing is remembered.
    """

    system: str = ""
    turns: tuple[Message, ...] = ()
    is_raw: bool = False

    def prompt(self, text: str, images: tuple[str, ...] = ()) -> str | tuple[Message, ...]:
        """The prompt of a request for the next answer."""
        if self.is_raw:
            return text
        return (*self._messages, Message("user", text, images=images))

    @property
    def _messages(self) -> tuple[Message, ...]:
        system = (Message("system", self.system),) if self.system else ()
        return (*system, *self.turns)

    @property
    def thought(self) -> str:
        """What was thought before the last answer."""
        return self.turns[-1].thought if self.turns else ""

    def answered(
        self, text: str, answer: str, thought: str = "", images: tuple[str, ...] = ()
    ) -> "Conversation":
        """With a question and its answer."""
        if self.is_raw:
            return self
        question = Message("user", text, images=images)
        turns = (*self.turns, question, Message("assistant", answer, thought))
        return replace(self, turns=turns)

    def write(self, path: Path) -> None:
        """Keeps it in a file. Raises BadInput."""
        turns = [turn_fields(turn) for turn in self._messages]
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
            content, images = _read_content(content, place)
            if index == 0 and role == "system":
                system = content
            elif role in _ROLES:
                thought = each.get("reasoning_content") or ""
                if not isinstance(thought, str):
                    raise BadInput(f"{place}: `reasoning_content` must be a string")
                turns.append(Message(role, content, thought, images))
            else:
                raise BadInput(f"{place}: `role` must be user or assistant. Given: {role}")
        return cls(system, tuple(turns))


def _read_content(content: object, place: str) -> tuple[str, tuple[str, ...]]:
    """A text, and the URLs of the images before it. Raises BadInput."""
    if isinstance(content, str):
        return content, ()
    text = ""
    images: list[str] = []
    for part in content if isinstance(content, list) else [content]:
        match part:
            case {"type": "text", "text": str(words)}:
                text += words
            case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
                images.append(url)
            case _:
                rule = "must have a `content`, a string or parts that are texts and images"
                raise BadInput(f"{place} {rule}")
    return text, tuple(images)


def read_json(path: Path) -> object:
    """A file's JSON. Raises BadInput."""
    try:
        value: object = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: is not JSON: {error}") from None
    return value


COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "/system TEXT": "what the chat begins with; without a text: none",
        "/clear": "begin anew; the system prompt and the parameters stay",
        "/save FILE": "keep the chat as JSON, in the form of OpenAI's `messages`",
        "/load FILE": "go on with a chat that was kept",
        "/image FILE": "an image, or its URL, for the next message; without a file: none",
        "/thought": "what the model thought before its last answer",
        "/set NAME VALUE": "a parameter that holds from now on; without a value: not any more",
        "/schema FILE": "answers are JSON of the schema in the file; without a file: not any more",
        "/where EXPR": "answers satisfy a condition on X, like len(words(X)) < 5; without: any",
        "/raw": "texts are gone on with as they are; with a text: that one alone",
        "/chat": "texts are turns of a chat again",
        "/models": "the names of what is served",
        "/info": "the server and its limits",
        "/help": "this",
        "/quit": "leave, as Ctrl-D does",
    }
)


def _help() -> list[str]:
    width = max(map(len, COMMANDS))
    return [
        "Type a message, with parameters at its end if you like:",
        "",
        '    Once upon a time max_tokens=50 temperature=0.7 stop="\\n" where="len(words(X)) < 5"',
        "",
        "Parameters alone hold for all that follows; key= takes one back.",
        'A message in quotes has escapes ("two\\nlines") and may end as a parameter would.',
        f"Parameters: {', '.join(KEYS)}",
        "",
        *(f"{usage:<{width}}  {what}" for usage, what in COMMANDS.items()),
        "",
        "Ctrl-C stops an answer.",
    ]


@dataclass
class Reply:
    """What was read of an answer. `thinking_since_s` is when its thought began."""

    text: str = ""
    thought: str = ""
    num_tokens: int = 0
    num_thought_tokens: int = 0
    thinking_since_s: float = 0.0


@dataclass
class Chat:
    """A session with one model. Owner of the conversation and of the parameters that hold."""

    connect: Callable[[], LmtpModel]
    screen: Screen
    is_interactive: bool
    conversation: Conversation = field(default_factory=lambda: Conversation(is_raw=True))
    _kept: dict[str, object | None] = field(default_factory=dict)
    # For the next message.
    _images: tuple[str, ...] = ()

    async def greet(self) -> None:
        """Begins a chat if the model has a template for one.

        Raises a TandemError if nobody is there to talk to.
        """
        greeting = await self._server()
        self.conversation = Conversation(is_raw="messages" not in greeting.features)
        if self.is_interactive:
            kind = ", without a chat template" if self.conversation.is_raw else ""
            served = ", ".join(greeting.models)
            self.screen.note(f"{greeting.server} serves {served}{kind}; try /help")

    async def answer(self, line: str) -> bool:
        """Answer a line; False: it was wrong, or failed."""
        try:
            name, _, rest = line.partition(" ")
            if line.startswith("/") and name[1:].isidentifier():
                await self._obey(name, rest.strip())
            elif line:
                await self._say(line)
        except TandemError as error:
            self.screen.error(str(error))
            return False
        finally:
            self.screen.end_line()
        return True

    async def _obey(self, name: str, argument: str) -> None:
        command = getattr(self, f"_do_{name[1:]}", None)
        if command is None:
            listed = ", ".join(usage.split()[0] for usage in COMMANDS)
            raise BadInput(f"{name}: no such command; there are {listed}")
        await command(argument)

    async def _do_system(self, text: str) -> None:
        self.conversation = replace(self.conversation, system=text)
        self.screen.note("[system prompt set]" if text else "[no system prompt]")

    async def _do_clear(self, _: str) -> None:
        self.conversation = replace(self.conversation, turns=())
        self.screen.note("[a new chat]")

    async def _do_save(self, name: str) -> None:
        path = _path(name, "/save")
        self.conversation.write(path)
        self.screen.note(f"[{len(self.conversation.turns)} turns kept in {path}]")

    async def _do_load(self, name: str) -> None:
        path = _path(name, "/load")
        self.conversation = Conversation.read(path)
        self.screen.note(f"[{len(self.conversation.turns)} turns of {path}]")

    async def _do_image(self, source: str) -> None:
        if source and self.conversation.is_raw:
            raise BadInput("/image: a text that is gone on with has no images; /chat goes back")
        self._images = (*self._images, image_url(source)) if source else ()
        count = len(self._images)
        self.screen.note(
            f"[{count or 'no'} {'image' if count == 1 else 'images'} for the next message]"
        )

    async def _do_thought(self, _: str) -> None:
        if self.conversation.thought:
            self.screen.lines([self.conversation.thought])
        else:
            self.screen.note("[no thought]")

    async def _do_set(self, argument: str) -> None:
        key, _, value = argument.partition(" ")
        if key:
            self._keep({key: _read(key, value.strip())})
        self._show_kept()

    async def _do_schema(self, name: str) -> None:
        schema = None
        if name:
            schema = read_json(_path(name, "/schema"))
            if not isinstance(schema, dict | bool):
                raise BadInput(f"{name}: must hold a JSON schema, an object, true or false")
        self._constrain("json", schema)

    async def _do_where(self, condition: str) -> None:
        self._constrain("where", condition or None)

    async def _do_raw(self, text: str) -> None:
        if text:
            line = read_line(text)
            raw = replace(self.conversation, is_raw=True)
            await self._ask(raw, line.prompt or "", line.parameters)
        else:
            self.conversation = replace(self.conversation, is_raw=True)
            self.screen.note("[texts are gone on with as they are; /chat goes back]")

    async def _do_chat(self, _: str) -> None:
        if "messages" not in (await self._server()).features:
            raise BadInput("/chat: the model has no chat template")
        self.conversation = replace(self.conversation, is_raw=False)
        self.screen.note("[texts are turns of a chat]")

    async def _do_models(self, _: str) -> None:
        self.screen.lines((await self._server()).models)

    async def _do_info(self, _: str) -> None:
        facts = (await self._server()).facts
        self.screen.lines(f"{name}: {_in_words(value)}" for name, value in facts.items())

    async def _do_help(self, _: str) -> None:
        self.screen.lines(_help())

    def _constrain(self, key: str, value: object | None) -> None:
        """An answer has one constraint: a new one takes the place of the other."""
        self._keep({**dict.fromkeys(CONSTRAINT_KEYS), key: value})
        self._show_kept()

    def _keep(self, parameters: Mapping[str, object | None]) -> None:
        together = {**self._kept, **parameters}
        # Whether they go together is seen now, not with the next message.
        call_of("", together)
        self._kept = {key: value for key, value in together.items() if value is not None}

    def _show_kept(self) -> None:
        kept = " ".join(f"{key}={_shown(value)}" for key, value in self._kept.items())
        self.screen.note(f"[from now on: {kept or 'no parameters'}]")

    async def _server(self) -> Greeting:
        async with self.connect() as model:
            return await model.server()

    async def _say(self, text: str) -> None:
        line = read_line(text, is_talk=not self.conversation.is_raw)
        if line.prompt is None:
            self._keep(line.parameters)
            self._show_kept()
        else:
            await self._ask(self.conversation, line.prompt, line.parameters)

    async def _ask(
        self, conversation: Conversation, text: str, parameters: Mapping[str, object | None]
    ) -> None:
        images = () if conversation.is_raw else self._images
        call = call_of(conversation.prompt(text, images), {**self._kept, **parameters})
        call = replace(call, separates_thought=not conversation.is_raw)
        reply = Reply()
        try:
            async with self.connect() as model:
                await self._show(model, call, reply)
        except asyncio.CancelledError:
            # What was read of it is what the next turn is about.
            if reply.text:
                self._answered(conversation, text, reply)
            raise
        if not conversation.is_raw:
            self._answered(conversation, text, reply)

    def _answered(self, conversation: Conversation, text: str, reply: Reply) -> None:
        self.conversation = conversation.answered(text, reply.text, reply.thought, self._images)
        self._images = ()

    async def _show(self, model: LmtpModel, call: GenerateCall, reply: Reply) -> None:
        started_s = time.monotonic()
        async with aclosing(model.stream(call)) as stream:
            async for part in stream:
                if isinstance(part, Answer):
                    self._think(reply, part.thought[len(reply.thought) :])
                    self._show_text(reply, part.text[len(reply.text) :])
                    if not reply.text:
                        self._fold(reply)
                    self.screen.end_line()
                    self._summarize(part, time.monotonic() - started_s)
                    continue
                reply.num_tokens += 1
                if part.thought is not None:
                    reply.num_thought_tokens = reply.num_tokens
                    self._think(reply, part.thought)
                self._show_text(reply, part.text)

    def _think(self, reply: Reply, piece: str) -> None:
        if piece and not reply.thought:
            reply.thinking_since_s = time.monotonic()
            if self.is_interactive:
                self.screen.note("[thinking ...]")
        reply.thought += piece

    def _show_text(self, reply: Reply, piece: str) -> None:
        if piece and not reply.text:
            self._fold(reply)
        reply.text += piece
        self.screen.piece(piece)

    def _fold(self, reply: Reply) -> None:
        """One line for the whole thought, once it is over."""
        if reply.thought and self.is_interactive:
            thought_s = time.monotonic() - reply.thinking_since_s
            self.screen.note(
                f"[thought for {thought_s:.1f} s, {reply.num_thought_tokens} tokens; "
                "/thought shows it]"
            )

    def _summarize(self, answer: Answer, duration_s: float) -> None:
        usage = answer.usage
        if answer.constraint_satisfied is False:
            self.screen.note(f"[the constraint does not hold: {answer.violation or 'cut short'}]")
        if self.is_interactive:
            seed = "" if answer.seed is None else f", seed={answer.seed}"
            self.screen.note(
                f"[{answer.finish_reason}: {usage.num_output_tokens} tokens in {duration_s:.1f} s, "
                f"{usage.num_cached_tokens} of the prompt's {usage.num_prompt_tokens} cached{seed}]"
            )


def _path(name: str, command: str) -> Path:
    if not name:
        raise BadInput(f"{command}: which file?")
    return Path(name).expanduser()


def _in_words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _shown(value: object) -> str:
    text = _in_words(value)
    return text if len(text) <= _MAX_SHOWN_LEN else text[:_MAX_SHOWN_LEN] + "..."


# Some builds of Python lack it: then lines are typed without editing and history.
with suppress(ImportError):
    import readline

HISTORY_NAME = "client_history"
_HISTORY_LEN = 1000


def run_client(url: str, api_key: str | None, model: str | None, state_folder: Path) -> ExitCode:
    """The command; the history of prompts is kept in `state_folder`.

    Raises a TandemError if nobody is there to talk to, BadInput.
    """
    if sys.stdin is None:
        raise BadInput("stdin is closed; prompts come from there")
    screen = Screen()

    def show_notice(notice: ServerNotice) -> None:
        if text := notice_text(notice):
            screen.note(text)

    def connect() -> LmtpModel:
        return LmtpModel(url, key=api_key, name=model, on_notice=show_notice)

    chat = Chat(connect, screen, sys.stdin.isatty())
    asyncio.run(chat.greet())
    if not chat.is_interactive:
        return _answer_pipe(chat)
    with _history_in(state_folder):
        _answer_terminal(chat)
    return ExitCode.OK


def _answer_pipe(chat: Chat) -> ExitCode:
    code = ExitCode.OK
    sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        for line in sys.stdin:
            if line.strip() in ("/quit", "/exit"):
                break
            if not asyncio.run(chat.answer(line.strip())):
                code = ExitCode.FAILED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return code


def _answer_terminal(chat: Chat) -> None:
    while True:
        try:
            line = input("raw> " if chat.conversation.is_raw else "> ").strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            chat.screen.lines([""])
            continue
        if line in ("/quit", "/exit"):
            return
        try:
            with unseen_keys(sys.stdin.fileno()):
                asyncio.run(chat.answer(line))
        except KeyboardInterrupt:
            chat.screen.note("[cancelled]")


@contextmanager
def _history_in(folder: Path) -> Iterator[None]:
    """Keep what is typed in a file of the folder, which only its owner reads, if that can be."""
    path = folder / HISTORY_NAME
    is_kept = "readline" in sys.modules and _read_history(path)
    try:
        yield
    finally:
        if is_kept:
            readline.set_history_length(_HISTORY_LEN)
            with suppress(OSError):
                readline.write_history_file(path)


def _read_history(path: Path) -> bool:
    """Read the file, made if it is missing; False: that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        readline.read_history_file(path)
    except OSError:
        return False
    return True
