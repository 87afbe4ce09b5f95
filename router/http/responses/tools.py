"""Tools of a response, which are functions with a type, and the choice among them."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from router.http.body import Schema
from router.http.openai.tools import Function, Name, ToolChoice, offered_functions, read_choice
from router.http.tools.grammar import AllowedTools
from router.request.errors import InvalidRequest, Unsupported, quoted

_FLAT = '{"type": "function", "name": ...}'


def _choice(value: Any) -> ToolChoice:
    return read_choice(value, _FLAT)


Choice = Annotated[
    ToolChoice,
    PlainValidator(_choice),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
]


class Tool(Schema):
    """A tool; only functions are served. OpenAI has them strict unless they say otherwise."""

    type: str
    name: Name | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def function(self) -> Function:
        """As chats have it. The name must be there."""
        given = self.model_dump(exclude={"type"}, exclude_unset=True)
        return Function.model_validate(given)

    def told(self) -> dict[str, Any]:
        """As a response tells it back."""
        return {
            "type": self.type,
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": self.strict is not False,
        }


def shown_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """What the chat template sees, the same as of a chat."""
    return [{"type": "function", "function": tool.function.for_template()} for tool in tools]


def check_tools(tools: Sequence[Tool]) -> None:
    """Raises Unsupported for tools of other kinds, InvalidRequest for one without a name."""
    for index, tool in enumerate(tools):
        place = f"tools[{index}]"
        if tool.type != "function":
            rule = f"must be `function`: others are not served. Given: {quoted(tool.type)}"
            raise Unsupported(f"`{place}.type` {rule}", f"{place}.type")
        if tool.name is None:
            raise InvalidRequest(
                f"`{place}.name` is required: a function's fields stand beside `type`, not below "
                "`function` as in chats",
                f"{place}.name",
            )


def offered_tools(
    tools: Sequence[Tool], choice: ToolChoice | None, *, in_parallel: bool
) -> AllowedTools | None:
    """What may be called; None: nothing. Raises InvalidRequest."""
    functions = [tool.function for tool in tools]
    offered = offered_functions("tools", "tools[{}]", functions, choice, in_parallel=in_parallel)
    return None if offered is None else offered.offer


def told_choice(choice: ToolChoice | None) -> Any:
    """As a response tells it back."""
    if choice is None:
        return "auto"
    if choice.allowed is not None:
        tools = [{"type": "function", "name": name} for name in choice.allowed]
        return {"type": "allowed_tools", "mode": choice.word, "tools": tools}
    return {"type": "function", "name": choice.name} if choice.name else choice.word
