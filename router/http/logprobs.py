"""Log-probabilities in their three shapes: OpenAI's for chats, its first one, vLLM's for prompts.

Tokens are shown so that their texts, joined, are the text of the answer: a character of several
tokens comes with the last of them. What a token is by itself, its `bytes` say. It knows no routes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from router.request.request import PromptScored, TokenGenerated, TokenLogprob
from router.text.detokenizer import Detokenizer
from router.text.tokenizer import Tokenizer

# Minus infinity is no number of JSON; this is what OpenAI says in its place.
_LOWEST_LOGPROB = -9999.0
# What OpenAI's and vLLM's APIs promise, whatever the server's limit for TGI's.
MAX_TOP_LOGPROBS = 20


class TokenNames:
    """What tokens are called: by their text, or by their id for those who asked for that.

    `shows_special`: special tokens are part of the answer's text.
    """

    def __init__(self, tokenizer: Tokenizer, *, by_id: bool, shows_special: bool) -> None:
        self._tokenizer = tokenizer
        self._by_id = by_id
        self._shows_special = shows_special

    def name(self, token: TokenLogprob) -> str:
        """The token's text, or vLLM's form of its id."""
        return f"token_id:{token.token_id}" if self._by_id else token.text

    def alternative(self, token: TokenLogprob) -> str:
        """As `name`, but parts of characters as OpenAI spells them: all would be called alike."""
        own = self._tokenizer.token_bytes(token.token_id)
        if self._by_id or not _is_partial(own):
            return self.name(token)
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in own)

    def bytes_of(self, token: TokenLogprob) -> list[int] | None:
        """What the token adds to the text, though it be part of a character; None for what is no
        text, as special tokens are."""
        if token.hidden or (token.special and not self._shows_special):
            return None
        own = self._tokenizer.token_bytes(token.token_id)
        if _is_partial(own):
            return list(own)
        # A text may lose a space at its beginning or an end behind a stop: what is whole
        # characters is as it is shown, but for what tells of a broken character before it.
        num_broken = _num_leading(token.text) - _num_leading(own.decode())
        return list(token.text[max(0, num_broken) :].encode())

    def prompt(self, tokens: Sequence[TokenLogprob]) -> list[TokenLogprob]:
        """A prompt's tokens, each with the text that it adds to those before it."""
        text = Detokenizer(self._tokenizer)
        added = [text.push(token.token_id) for token in tokens]
        if added:
            added[-1] += text.flush()
        return [
            token if token.special else TokenLogprob(token.token_id, one, token.logprob)
            for token, one in zip(tokens, added, strict=True)
        ]


class ChatLogprobs:
    """Entries of `logprobs.content`, each with `num_top` alternatives."""

    def __init__(self, names: TokenNames, num_top: int) -> None:
        self._names = names
        self._num_top = num_top

    def of(self, events: Sequence[TokenGenerated]) -> dict[str, Any]:
        """The field `logprobs` of a choice."""
        return {"content": [self._entry(event) for event in events], "refusal": None}

    def _entry(self, event: TokenGenerated) -> dict[str, Any]:
        tops = _agreeing(event.token, event.top_tokens[: self._num_top])
        effect = event.mask_effect
        return {
            **self._token(event.token),
            "top_logprobs": [self._token(token) for token in tops],
            **({} if effect is None else {"constraint": effect.value}),
        }

    def _token(self, token: TokenLogprob) -> dict[str, Any]:
        return {
            "token": self._names.name(token),
            "logprob": logprob(token.logprob),
            "bytes": self._names.bytes_of(token),
        }


class OldLogprobs:
    """OpenAI's first shape: parallel lists, offsets into the choice's text in characters.

    `num_top` 0 reports the tokens alone. One object for each choice: it counts on.
    """

    def __init__(self, names: TokenNames, num_top: int) -> None:
        self._names = names
        self._num_top = num_top
        self._offset = 0

    def prompt(self, text: str, scored: PromptScored) -> dict[str, Any]:
        """The lists for a prompt that is echoed as `text`."""
        tokens = self._names.prompt(scored.tokens)
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            # A special token that is in the text was written there; others were added to it.
            if not token.special or text.startswith(token.text, self._offset):
                self._offset += len(token.text)
        return self._lists(tokens, scored.top_tokens or ((),) * len(tokens), offsets)

    def of(self, events: Sequence[TokenGenerated]) -> dict[str, Any]:
        """The lists for the next tokens of the choice."""
        offsets = []
        for event in events:
            offsets.append(self._offset)
            self._offset += 0 if event.token.hidden else len(event.token.text)
        tokens = [event.token for event in events]
        lists = self._lists(tokens, [event.top_tokens for event in events], offsets)
        effects = [event.mask_effect for event in events]
        if any(effects):
            lists["constraint"] = [None if effect is None else effect.value for effect in effects]
        return lists

    def _lists(
        self,
        tokens: Sequence[TokenLogprob],
        top_tokens: Sequence[Sequence[TokenLogprob]],
        offsets: list[int],
    ) -> dict[str, Any]:
        tops: list[dict[str, float | None] | None] | None = None
        if self._num_top > 0:
            tops = [self._top(token, top) for token, top in zip(tokens, top_tokens, strict=True)]
        return {
            "text_offset": offsets,
            "token_logprobs": [logprob(token.logprob) for token in tokens],
            "tokens": [self._names.name(token) for token in tokens],
            "top_logprobs": tops,
        }

    def _top(
        self, token: TokenLogprob, top: Sequence[TokenLogprob]
    ) -> dict[str, float | None] | None:
        """Alternatives by their names, the chosen token among them; None for a first token."""
        if token.logprob is None:
            return None
        by_name: dict[str, float | None] = {}
        for other in _agreeing(token, top[: self._num_top]):
            is_chosen = other.token_id == token.token_id
            name = self._names.name(token) if is_chosen else self._names.alternative(other)
            by_name.setdefault(name, logprob(other.logprob))
        by_name.setdefault(self._names.name(token), logprob(token.logprob))
        return by_name


def joined(*lists: Mapping[str, Any]) -> dict[str, Any]:
    """Several of the first shape's answers as one."""
    keys = dict.fromkeys(key for one in lists for key in one)
    return {
        key: None
        if any(one.get(key, ()) is None for one in lists)
        else [value for one in lists for value in one.get(key, [None] * len(one["tokens"]))]
        for key in keys
    }


def prompt_logprobs(scored: PromptScored, num_top: int) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: at each place the token and its alternatives, by id.

    `rank` counts from 1, the most probable; of a token beyond the alternatives it is not known.
    """
    tops = scored.top_tokens or ((),) * len(scored.tokens)
    return [_place(token, top[:num_top]) for token, top in zip(scored.tokens, tops, strict=True)]


def _place(token: TokenLogprob, top: Sequence[TokenLogprob]) -> dict[str, Any] | None:
    if token.logprob is None:
        return None
    place = {
        str(candidate.token_id): _ranked(candidate, rank)
        for rank, candidate in enumerate(_agreeing(token, top), start=1)
    }
    place.setdefault(str(token.token_id), _ranked(token, None))
    return place


def _ranked(token: TokenLogprob, rank: int | None) -> dict[str, Any]:
    return {"logprob": logprob(token.logprob), "rank": rank, "decoded_token": token.text}


def _agreeing(token: TokenLogprob, top: Sequence[TokenLogprob]) -> list[TokenLogprob]:
    """The alternatives, the token among them with the very number that it has itself.

    The two are computed apart and may differ in their last digits, while clients compare them to
    see whether a token was the most probable one.
    """
    return [
        other._replace(logprob=token.logprob) if other.token_id == token.token_id else other
        for other in top
    ]


def _num_leading(text: str) -> int:
    """How many U+FFFD it begins with."""
    return len(text) - len(text.lstrip("\ufffd"))


def _is_partial(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return True
    return False


def logprob(value: float | None) -> float | None:
    """A log-probability that JSON can hold; None is that of a first token."""
    return None if value is None else max(_LOWEST_LOGPROB, value)
