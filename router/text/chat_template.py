"""The model's chat templates: render a chat's messages to a prompt, within bounds.

A template is a program that comes with the model, run in Jinja's sandbox with transformers'
settings: it cannot reach Python's internals, loop for ever, or write without end. A single call of
a string method or filter (`center(10 ** 9)`, `join`) can still take memory: the operator chose the
model, and clients cannot write templates. It knows templates and messages; no tokens, no HTTP.
"""

import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from processes.worker_threads import WorkerThreads
from router.request.errors import TemplateFailed
from router.text.control_tokens import ControlTokens, MarkedText
from router.text.format_proof import Verdict, prove
from router.text.format_reading import Reading, declared_thought, read_format
from router.text.template_traits import Message, TemplateLimit, adapt, find_traits, with_images

T = TypeVar("T")
# Few: the event loop takes turns with each.
_NUM_WORKERS = 2
_DEFAULT = "default"
_WITH_TOOLS = "tool_use"
_NO_VARIABLES: Mapping[str, Any] = MappingProxyType({})
# Names that the template gets anyway, or that Jinja defines.
_OWN_NAMES = frozenset(
    {
        "messages", "tools", "add_generation_prompt", "continue_final_message", "bos_token",
        "eos_token", "raise_exception", "strftime_now", "namespace", "range", "dict", "lipsum",
        "cycler", "joiner", "loop", "self", "super", "caller", "varargs", "kwargs",
    }
)  # fmt: skip
_MAX_TEXT_LEN = 1 << 24
_MAX_INT_BITS = 1 << 12
# The prefix of our own names inside a template.
PRIVATE_PREFIX = "tandem_"
_TICK = f"{PRIVATE_PREFIX}tick"
_BOUNDED = f"{PRIVATE_PREFIX}bounded"


def _call_node(name: str, arguments: list[Any], line: int) -> nodes.Call:
    function = nodes.Name(name, "load", lineno=line)
    return nodes.Call(function, arguments, [], None, None, lineno=line)


def _bounded(text: str) -> str:
    if len(text) > _MAX_TEXT_LEN:
        raise TemplateLimit(f"it wrote more than {_MAX_TEXT_LEN} characters")
    return text


def _check_operands(operator: str, left: Any, right: Any) -> None:
    """Refuse what would take memory or time out of all proportion to a chat."""
    if isinstance(left, int) and isinstance(right, int):
        num_bits = left.bit_length()
        if operator == "*":
            num_bits += right.bit_length()
        elif operator == "**":
            num_bits *= max(right, 1)
        if num_bits > _MAX_INT_BITS:
            raise TemplateLimit(f"it made a number of more than {_MAX_INT_BITS} bits")
        return
    length = _len(left) + _len(right)
    if operator == "*":
        length *= left if isinstance(left, int) else right if isinstance(right, int) else 1
    if length > _MAX_TEXT_LEN:
        raise TemplateLimit(f"it made a text or list of more than {_MAX_TEXT_LEN} entries")


def _len(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON for a prompt, not for HTML as Jinja's own."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; here it marks nothing."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's own declaration)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    """The settings, functions and filters that the hub's templates expect."""

    intercepted_binops = frozenset(("+", "*", "**"))

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, "jinja2.ext.loopcontrols"],
        )
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda format: now().strftime(format)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _check_operands(operator, left, right)
        return super().call_binop(context, operator, left, right)


class _Bounds(NodeTransformer):
    """Lets the clock be looked at in every loop and macro, and joined texts be measured."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._ticking(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._ticking(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        return _call_node(_BOUNDED, [self.generic_visit(node)], node.lineno)

    def _ticking(self, node: nodes.For | nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        tick = _call_node(_TICK, [], node.lineno)
        node.body.insert(0, nodes.ExprStmt(tick, lineno=node.lineno))
        return node


def _compared(tree: nodes.Template) -> frozenset[str]:
    return frozenset(
        constant.value
        for comparison in tree.find_all(nodes.Compare)
        for constant in comparison.find_all(nodes.Const)
        if isinstance(constant.value, str)
    )


def _constants(tree: nodes.Template) -> frozenset[str]:
    """The texts that the template writes or compares."""
    found = {each.value for each in tree.find_all(nodes.Const)}
    return frozenset(
        {each for each in found if isinstance(each, str)}
        | {each.data for each in tree.find_all(nodes.TemplateData)}
    )


class CompiledTemplate:
    """One template, ready to render.

    `variables` are the names that it reads, `words` the string constants in its comparisons,
    `constants` all texts in it.
    """

    def __init__(self, source: str, time_limit_s: float, now: Callable[[], datetime]) -> None:
        """Raises jinja2.TemplateSyntaxError."""
        environment = _Environment(now)
        tree = environment.parse(source)
        # First: looking for variables folds constants.
        self.words: frozenset[str] = _compared(tree)
        self.constants = _constants(tree)
        self.variables: frozenset[str] = frozenset(find_undeclared_variables(tree))
        code = environment.compile(_Bounds().visit(tree))
        self._template = Template.from_code(environment, code, environment.make_globals(None))
        self._time_limit_s = time_limit_s

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text. Raises what the template raises, and TemplateLimit."""
        deadline_s = time.monotonic() + self._time_limit_s

        def tick() -> str:
            if time.monotonic() > deadline_s:
                raise TemplateLimit(f"it was not done after {self._time_limit_s} s")
            return ""

        parts: list[str] = []
        text_len = 0
        bounds = {_TICK: tick, _BOUNDED: _bounded}
        for part in self._template.generate({**variables, **bounds}):
            text_len += len(part)
            if text_len > _MAX_TEXT_LEN:
                raise TemplateLimit(f"it wrote more than {_MAX_TEXT_LEN} characters")
            parts.append(part)
        return "".join(parts)


class ChatTemplate:
    """The templates of one model, by name: "default", and "tool_use" for chats with tools.

    A template that cannot be compiled raises when it is used: the model can still serve prompts.
    `response_template` is what the checkpoint says of its answers (see `declared_thought`).
    Texts of `control_tokens` in messages stay text; without, they become tokens. `now` is the time
    that a template's `strftime_now` formats. A template's traits are found when
    it is first used.
    """

    def __init__(
        self,
        templates: Mapping[str, str],
        bos_token: str | None,
        eos_token: str | None,
        *,
        response_template: Any = None,
        control_tokens: ControlTokens | None = None,
        now: Callable[[], datetime] = datetime.now,
        time_limit_s: float = 2.0,
    ) -> None:
        self._special = {
            name: token
            for name, token in (("bos_token", bos_token), ("eos_token", eos_token))
            if token is not None
        }
        self._declared_thought = declared_thought(response_template)
        self._control_tokens = control_tokens
        self._workers = WorkerThreads(_NUM_WORKERS, "template")
        # Of what they are, broken ones too.
        self.digest = sha256(repr(sorted(templates.items())).encode()).hexdigest()[:16]
        self._templates: dict[str, CompiledTemplate | TemplateFailed] = {}
        self._readings: dict[str, Reading] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._end_tokens: tuple[str, ...] = ()
        self._image_marker: str | None = None
        for name, source in templates.items():
            try:
                self._templates[name] = CompiledTemplate(source, time_limit_s, now)
            except (TemplateError, RecursionError) as error:
                self._templates[name] = TemplateFailed(
                    f"the model's chat template {name!r} is broken: {error}", "messages"
                )

    async def in_worker(self, work: Callable[[], T]) -> T:
        """What `work` returns, off the event loop: templates are programs, chats may be long."""
        return await self._workers.run(work)

    def start(self) -> None:
        """Starts the threads of `in_worker` now. Raises NoThreads."""
        self._workers.start()

    @property
    def names(self) -> tuple[str, ...]:
        """The templates that there are."""
        return tuple(sorted(self._templates))

    @property
    def faults(self) -> list[TemplateFailed]:
        """Of the templates that cannot be compiled."""
        return [each for each in self._templates.values() if isinstance(each, TemplateFailed)]

    def reads(self, variable: str, *, name: str | None = None, with_tools: bool = False) -> bool:
        """Whether the template that `render` would take reads a variable. Raises TemplateFailed."""
        return variable in self._compiled(name or self._choose(with_tools)).variables

    def prove(self, end_tokens: Sequence[str] = (), image_marker: str | None = None) -> None:
        """Reads and proves the form of answers of every template: a fraction of a second each.

        Once, at the start. `end_tokens` end answers, whatever templates write there; the prompt has
        an `image_marker` for each image of the messages; None: they have none.
        """
        self._end_tokens = tuple(end_tokens)
        self._image_marker = image_marker
        # What was rendered before may have read it without them.
        self._readings.clear()
        self._verdicts.clear()
        for name, template in self._templates.items():
            if isinstance(template, CompiledTemplate):
                self._verdict_of(name, template)

    def verdict(self, name: str | None = None, *, with_tools: bool = False) -> Verdict:
        """What of the form of answers is known, and why not the rest. Raises TemplateFailed.

        `name` and `with_tools` choose the template as in `render`.
        """
        name = name or self._choose(with_tools)
        return self._verdict_of(name, self._compiled(name))

    def thought_key(self, name: str | None = None, *, with_tools: bool = False) -> str:
        """The key from which the template reads what an assistant thought; empty: it reads none.

        Raises TemplateFailed.
        """
        name = name or self._choose(with_tools)
        return self._reading_of(name, self._compiled(name)).probe.traits.thought_key

    def after_answer(self) -> str:
        """What the template writes behind an assistant's last answer, without white space.

        Empty where it writes nothing, or cannot show such a chat.
        """
        answer = secrets.token_hex(16)
        chat = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": answer}]
        try:
            text = self.render(chat, add_generation_prompt=False)
        except TemplateFailed:
            return ""
        return text.rpartition(answer)[2].strip() if answer in text else ""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        name: str | None = None,
        variables: Mapping[str, Any] = _NO_VARIABLES,
        asked_s: float | None = None,
    ) -> str:
        """The prompt for `messages`, in OpenAI's or transformers' form.

        Fields of a message that are None count as absent. `continue_final_message` ends the
        prompt right behind the last message's text, so that the model goes on with it. `name`
        chooses a template, which is otherwise the one for tools if there are tools.
        `variables` are more names that the template may read. Its dates are those of `asked_s`, in
        Unix time. A MarkedText where clients wrote control tokens. Raises TemplateFailed.
        """
        name = name or self._choose(tools is not None)
        template = self._compiled(name)
        _check_names(variables)
        mark = None
        if self._control_tokens is not None:
            given = (messages, tools, variables)
            (messages, tools, variables), mark = self._control_tokens.marked(given)
        traits = self._reading_of(name, template).probe.traits
        shown = adapt(messages, traits)
        marker = ""
        if continue_final_message:
            add_generation_prompt = False
            # Random, so that no message can contain it. A template that trims messages
            # drops the space.
            marker = f"{secrets.token_hex(16)} "
            shown[-1:] = [_marked(shown, marker)]
        context = self._context(shown, tools, add_generation_prompt) | dict(variables)
        if asked_s is not None:
            context["strftime_now"] = datetime.fromtimestamp(asked_s).strftime
        try:
            text = template.render(context)
        except TemplateLimit as error:
            raise TemplateFailed(f"the chat template was stopped: {error}", "messages") from error
        except TemplateError as error:
            raise TemplateFailed(
                f"the chat template refused the messages: {error}", "messages"
            ) from error
        except Exception as error:  # a template is a program: it may raise anything
            raise TemplateFailed(f"the chat template failed: {error!r}", "messages") from error
        text = _cut(text, marker) if continue_final_message else text
        return text if mark is None else MarkedText(text, mark)

    def _context(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> dict[str, Any]:
        return {
            "documents": None,
            **self._special,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }

    def _reading_of(self, name: str, template: CompiledTemplate) -> Reading:
        reading = self._readings.get(name)
        if reading is None:

            def render(messages: Sequence[Message], tools: Sequence[Message] | None) -> str:
                return template.render(self._context(messages, tools, False))

            traits = find_traits(render, template.words)
            reading = read_format(
                template, self._special, traits, self._end_tokens, self._declared_thought
            )
            if self._image_marker is not None:
                traits = with_images(render, reading.probe.traits, self._image_marker)
                reading = replace(reading, probe=replace(reading.probe, traits=traits))
            self._readings[name] = reading
        return reading

    def _verdict_of(self, name: str, template: CompiledTemplate) -> Verdict:
        verdict = self._verdicts.get(name)
        if verdict is None:
            verdict = self._verdicts[name] = prove(self._reading_of(name, template))
        return verdict

    def _choose(self, with_tools: bool) -> str:
        return _WITH_TOOLS if with_tools and _WITH_TOOLS in self._templates else _DEFAULT

    def _compiled(self, name: str) -> CompiledTemplate:
        template = self._templates.get(name)
        if template is None:
            has = f"has only {', '.join(self.names)}" if self._templates else "has none"
            raise TemplateFailed(
                f"chats need a chat template named {name!r}, and the model {has}; send a prompt "
                "instead, or start the server with --tokenizer-config-path",
                "messages",
            )
        if isinstance(template, TemplateFailed):
            raise TemplateFailed(str(template), template.field)
        return template


def _check_names(variables: Mapping[str, Any]) -> None:
    for name in variables:
        if not name.isidentifier() or name.startswith(PRIVATE_PREFIX) or name in _OWN_NAMES:
            raise TemplateFailed(
                f"a variable of the chat template may not be called `{name[:60]}`: "
                "it has to be a name that is not taken",
                "chat_template_kwargs",
            )


def _marked(messages: Sequence[Mapping[str, Any]], marker: str) -> dict[str, Any]:
    """The last message with `marker` behind its text."""
    message = dict(messages[-1]) if messages else {}
    content = message.get("content")
    if isinstance(content, str):
        return message | {"content": content + marker}
    parts = list(content) if isinstance(content, list) else []
    for index in reversed(range(len(parts))):
        if isinstance(parts[index], Mapping) and isinstance(parts[index].get("text"), str):
            parts[index] = {**parts[index], "text": parts[index]["text"] + marker}
            return message | {"content": parts}
    raise TemplateFailed("`messages`: the last message has no text to continue", "messages")


def _cut(text: str, marker: str) -> str:
    """`text` up to `marker`; without the space before it if the template trims messages."""
    end = text.rfind(marker.rstrip())
    if end < 0:
        raise TemplateFailed(
            "`messages`: the last message cannot be continued, the chat template leaves it out",
            "messages",
        )
    return text[:end] if text.startswith(marker, end) else text[:end].rstrip()
