"""The incremental detokenizer: token ids to text, one at a time, never splitting a character.

For every sequence of ids: the pushed texts and the flushed one together are what
`Tokenizer.decode` makes of all the ids at once. It knows no requests, no stop strings.

`tokenizers.decoders.DecodeStream` would do most of this, but takes twice the time (0.73 against
0.35 us a token with a byte-level decoder), cannot flush a character that stays incomplete, and
drops the whole characters beside broken bytes of byte fallback.
"""

import os.path
from collections.abc import Sequence
from copy import copy
from typing import Protocol

from router.text.token_texts import TokenTexts
from router.text.tokenizer import Tokenizer

# Tokens in a row that may end within a character. Only broken text has more.
_MAX_WAITING = 16
# Tokens of the prompt that a decoder sees, so that the text continues.
_CONTEXT_LEN = 16


class _Incremental(Protocol):
    def fork(self) -> "_Incremental": ...
    def push(self, token_id: int) -> str: ...
    def flush(self) -> str: ...


class Detokenizer:
    """One sequence's text.

    With `prompt_ids` the text continues the prompt's: a leading space, which decoders drop at the
    beginning of a text, stays. Without, it begins a text; `is_whole` keeps that space as well, for
    texts that must equal their tokens' bytes. `shown_ids` are shown though special tokens are not.

    `push` answers the text that a token id adds; "" while a character is incomplete.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_special_tokens: bool = True,
        prompt_ids: Sequence[int] = (),
        *,
        is_whole: bool = False,
        shown_ids: frozenset[int] = frozenset(),
    ) -> None:
        shown_ids = shown_ids if skip_special_tokens else frozenset()
        self._text: _Incremental
        if tokenizer.texts is not None:
            self._text = _TableText(
                tokenizer.texts, skip_special_tokens, prompt_ids, is_whole, shown_ids
            )
        else:
            self._text = _WindowText(tokenizer, skip_special_tokens, prompt_ids, shown_ids)
        self.push = self._text.push

    def fork(self) -> "Detokenizer":
        """Another one, for a sequence that has been the same so far."""
        other = copy(self)
        other._text = self._text.fork()
        other.push = other._text.push
        return other

    def flush(self) -> str:
        """U+FFFD for a character that was left incomplete, else ""."""
        return self._text.flush()


class _TableText:
    """Looks each token's text up; joins bytes to characters."""

    def __init__(
        self,
        texts: TokenTexts,
        skip_special_tokens: bool,
        prompt_ids: Sequence[int],
        is_whole: bool,
        shown_ids: frozenset[int],
    ) -> None:
        self._texts = texts
        self._shown_ids = shown_ids
        self._table = texts.shown if skip_special_tokens else texts.all
        self._table_len = len(self._table)
        self._pending = b""
        self._num_left = texts.num_stripped
        # False while the next text depends on what came before.
        self._plain = False
        self._begun = is_whole or (texts.first is None and texts.num_stripped == 0)
        for token_id in prompt_ids:
            if self._begun:
                break
            self.push(token_id)
        self._pending = b""
        self._plain = self._begun

    def fork(self) -> "_TableText":
        return copy(self)

    def push(self, token_id: int) -> str:
        piece = self._table[token_id] if token_id < self._table_len else None
        if self._plain and isinstance(piece, str):
            return piece
        if piece is None and token_id in self._shown_ids:
            piece = self._texts.all[token_id]
        return "" if piece is None else self._push_slowly(token_id, piece)

    def flush(self) -> str:
        if not self._pending:
            return ""
        text, self._pending = self._texts.decode_bytes(self._pending, final=True)
        return text

    def _push_slowly(self, token_id: int, piece: str | bytes) -> str:
        if isinstance(piece, bytes):
            text, self._pending = self._texts.decode_bytes(self._pending + piece, final=False)
        else:
            # Text cannot complete a character: what was pending stays broken.
            broken, self._pending = self._texts.decode_bytes(self._pending, final=True)
            text = broken + piece
        if not self._begun and self._texts.first is not None:
            text = self._texts.first(token_id)
            self._begun = True
        text = self._begin(text)
        self._plain = self._begun and not self._pending
        return text

    def _begin(self, text: str) -> str:
        if self._begun:
            return text
        text, self._num_left = self._texts.strip(text, self._num_left)
        self._begun = self._num_left == 0
        return text


class _WindowText:
    """Lets the library decode a short window, for decoders that look at neighbours.

    ids:   | forgotten ... | shown, for context | may end within a character |
                           ^ window[0]          ^ window[num_context]

    A decoder that changes the beginning of a text once the text grows cannot be streamed exactly;
    what such a text adds is still shown.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_special_tokens: bool,
        prompt_ids: Sequence[int],
        shown_ids: frozenset[int],
    ) -> None:
        self._tokenizer = tokenizer
        self._skips = skip_special_tokens
        self._shown_ids = shown_ids
        context_ids = prompt_ids[-_CONTEXT_LEN:]
        self._window = [token_id for token_id in context_ids if self._counts(token_id)]
        self._num_context = 0
        self._shown = ""
        self._slide()

    def fork(self) -> "_WindowText":
        other = copy(self)
        other._window = [*self._window]
        return other

    def push(self, token_id: int) -> str:
        if not self._counts(token_id):
            return ""
        self._window.append(token_id)
        text = whole = self._decode()
        if len(self._window) - self._num_context < _MAX_WAITING:
            whole = text.rstrip("\ufffd")
        added = self._show(whole)
        if whole == text:
            self._slide()
        return added

    def flush(self) -> str:
        return self._show(self._decode())

    def _show(self, text: str) -> str:
        added = text[len(os.path.commonprefix((text, self._shown))) :]
        if added:
            self._shown = text
        return added

    def _slide(self) -> None:
        """Drop the context: what was shown since is the new one."""
        del self._window[: self._num_context]
        self._num_context = len(self._window)
        self._shown = self._decode()

    def _counts(self, token_id: int) -> bool:
        """False for tokens that the decoder does not get: skipped special ones, unknown ids."""
        if self._skips and self._tokenizer.is_special(token_id):
            return token_id in self._shown_ids
        return token_id < self._tokenizer.vocab_size

    def _decode(self) -> str:
        return self._tokenizer.decode(self._window, skip_special_tokens=False)
