"""OpenAI's Response object: what a whole answer is, and what a stream's events carry."""

from dataclasses import dataclass
from typing import Any

from proto.contract import FinishReason
from router.http.responses.schema import ResponseBody
from router.http.responses.tools import told_choice
from router.http.server_info import constraint_fields
from router.request.events import Finished

_INCOMPLETE = {
    FinishReason.LENGTH: "max_output_tokens",
    FinishReason.DEADLINE: "deadline",
    # Nobody can ask for a pause here; it would be a limit on tokens.
    FinishReason.PAUSED: "max_output_tokens",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """One response to be. `created_s` is in Unix time."""

    response_id: str
    created_s: int
    model: str
    body: ResponseBody

    def in_progress(self) -> dict[str, Any]:
        """Before there is any output."""
        return self._fields("in_progress", [])

    def failed(self, message: str) -> dict[str, Any]:
        """The bad end of a stream."""
        fields = self._fields("failed", [])
        return {**fields, "error": {"code": "server_error", "message": message}}

    def ended(
        self, end: Finished, output: list[dict[str, Any]], completed_s: int
    ) -> dict[str, Any]:
        """The whole response; `completed_s` is in Unix time."""
        reason = _INCOMPLETE.get(end.reason)
        fields = self._fields(status_of(end), output)
        return {
            **fields,
            "completed_at": None if reason else completed_s,
            "incomplete_details": {"reason": reason} if reason else None,
            "usage": _usage(end),
            **constraint_fields(end),
        }

    def _fields(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        """All fields, in about OpenAI's order; what was not given has OpenAI's defaults."""
        body = self.body
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self.created_s,
            "completed_at": None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "model": self.model,
            "output": output,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "prompt_cache_key": body.prompt_cache_key,
            "prompt_cache_retention": body.prompt_cache_retention,
            "reasoning": {"effort": body.effort, "summary": None},
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "store": body.is_stored,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": _text(body),
            "tool_choice": told_choice(body.tool_choice),
            "tools": [tool.told() for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": body.truncation or "disabled",
            "usage": None,
            "user": body.user,
            "metadata": body.metadata or {},
        }


def _text(body: ResponseBody) -> dict[str, Any]:
    told = None if body.text is None else body.text.format
    fields = {"type": "text"} if told is None else told.model_dump(by_alias=True, exclude_none=True)
    return {"format": fields, "verbosity": body.verbosity or "medium"}


def status_of(end: Finished) -> str:
    """OpenAI's word for how a response or its message ended."""
    return "incomplete" if end.reason in _INCOMPLETE else "completed"


def _usage(end: Finished) -> dict[str, Any]:
    """Nobody pays for what is put into the cache, and nothing is thought apart from the answer."""
    return {
        "input_tokens": end.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": end.num_cached_tokens, "cache_write_tokens": 0},
        "output_tokens": end.num_generated_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": end.num_prompt_tokens + end.num_generated_tokens,
    }
