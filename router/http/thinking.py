"""What clients ask of a model's thought: whether there is one, how long it is, who sees it."""

from dataclasses import dataclass
from typing import Any, Literal

from router.http.schema import Schema
from router.request.errors import wrong
from router.text.chat_template import ChatTemplate

# Under these names templates let a thought be switched.
_SWITCHES = ("enable_thinking", "thinking")


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """What is asked; None: nothing, so that the model does as it does.

    budget: tokens of the thought
    field, budget_field: the client's words for the first two
    is_shown: the answer tells the thought
    """

    is_wanted: bool | None = None
    budget: int | None = None
    field: str = ""
    budget_field: str = ""
    is_shown: bool = True

    def switches(
        self, template: ChatTemplate, name: str | None, *, with_tools: bool
    ) -> dict[str, Any]:
        """The variables with which the template does so. Raises TemplateFailed."""
        if self.is_wanted is None:
            return {}
        return {
            switch: self.is_wanted
            for switch in _SWITCHES
            if template.reads(switch, name=name, with_tools=with_tools)
        }

    def ignored(self, *, is_switched: bool, may_think: bool) -> list[str]:
        """The client's words that have no effect on a model that `may_think`, or does not."""
        fields = []
        if self.is_wanted is not None and not is_switched and self.is_wanted != may_think:
            fields.append(self.field)
        if self.budget is not None and not may_think:
            fields.append(self.budget_field)
        return fields


NO_WISHES = Thinking()


class ThinkingField(Schema):
    """`thinking`, Anthropic's; chats of several other servers have it, too."""

    type: Literal["adaptive", "between_tools", "disabled", "enabled"]
    budget_tokens: int | None = None
    display: Literal["omitted", "summarized"] | None = None

    @property
    def is_wanted(self) -> bool | None:
        """None: the model decides."""
        return {"enabled": True, "disabled": False}.get(self.type)


def checked_budget(budget: int | None, field: str) -> int | None:
    """vLLM's: -1 is none. Raises InvalidRequest."""
    if budget is not None and budget < -1:
        raise wrong(field, "must be at least 0, or -1 for none", budget)
    return None if budget == -1 else budget
