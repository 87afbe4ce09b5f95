"""The model's chat templates: render a chat's messages to a prompt.

It knows templates and messages; no tokens, no HTTP.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, TypeVar

from jinja2 import TemplateError

from processes.worker_threads import WorkerThreads
from router.request.errors import TemplateFailed
from router.text.control_tokens import ControlTokens, MarkedText
from router.text.template_traits import (
    PRIVATE_PREFIX,
    CallSyntax,
    CompiledTemplate,
    TemplateLimit,
    Traits,
    adapt,
    find_traits,
)

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


class ChatTemplate:
    """The templates of one model, by name: "default", and "tool_use" for chats with tools.

    A template that cannot be compiled raises when it is used: the model can still serve prompts.
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
        control_tokens: ControlTokens | None = None,
        now: Callable[[], datetime] = datetime.now,
        time_limit_s: float = 2.0,
    ) -> None:
        self._special = {
            name: token
            for name, token in (("bos_token", bos_token), ("eos_token", eos_token))
            if token is not None
        }
        self._control_tokens = control_tokens
        self._workers = WorkerThreads(_NUM_WORKERS, "template")
        self._templates: dict[str, CompiledTemplate | TemplateFailed] = {}
        self._traits: dict[str, Traits] = {}
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

    def call_syntax(self, name: str | None = None) -> CallSyntax:
        """The syntax of calls in the template that `render` takes for tools. Raises TemplateFailed.

        As slow as rendering at its first call.
        """
        name = name or self._choose(with_tools=True)
        return self._traits_of(name, self._compiled(name)).calls

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        name: str | None = None,
        variables: Mapping[str, Any] = _NO_VARIABLES,
    ) -> str:
        """The prompt for `messages`, in OpenAI's or transformers' form.

        Fields of a message that are None count as absent. `continue_final_message` ends the
        prompt right behind the last message's text, so that the model goes on with it. `name`
        chooses a template, which is otherwise the one for tools if there are tools.
        `variables` are more names that the template may read. A MarkedText where clients wrote
        control tokens. Raises TemplateFailed.
        """
        name = name or self._choose(tools is not None)
        template = self._compiled(name)
        _check_names(variables)
        mark = None
        if self._control_tokens is not None:
            given = (messages, tools, variables)
            (messages, tools, variables), mark = self._control_tokens.marked(given)
        traits = self._traits_of(name, template)
        shown = adapt(messages, traits)
        marker = ""
        if continue_final_message:
            add_generation_prompt = False
            # Random, so that no message can contain it. A template that trims messages
            # drops the space.
            marker = f"{secrets.token_hex(16)} "
            shown[-1:] = [_marked(shown, marker)]
        context = self._context(shown, tools, add_generation_prompt) | dict(variables)
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

    def _traits_of(self, name: str, template: CompiledTemplate) -> Traits:
        traits = self._traits.get(name)
        if traits is None:
            traits = self._traits[name] = find_traits(
                lambda messages, tools: template.render(self._context(messages, tools, False)),
                template.words,
            )
        return traits

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
