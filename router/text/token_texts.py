"""The table of token texts: what each token adds to a text, by token id.

Most decoders look at tokens one by one, so a token's part of the text does not depend on the text.
`build_token_texts` recognises those decoders and makes the table; for the others it returns None,
and text is decoded by the library, window by window. It knows no files, no streams, no requests.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers.pre_tokenizers import ByteLevel

# Text, bytes of a character that other tokens complete, or None: an id without a token, or a
# special token that is not shown.
TokenText = str | bytes | None

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")


@dataclass(frozen=True, slots=True)
class TokenTexts:
    """Each token's text by id, as it reads behind other text, and how a text begins.

    `all` holds every token, `shown` has None for the special ones.
    `first` returns the text of a token that begins the text, for decoders that treat it
    differently; else None. Up to `num_stripped` characters `stripped` are cut off the beginning.
    `marks_bytes`: each byte that belongs to no character becomes a U+FFFD of its own
    (sentencepiece's byte fallback); otherwise one U+FFFD stands for each broken character.
    """

    all: tuple[TokenText, ...]
    shown: tuple[TokenText, ...]
    first: Callable[[int], str] | None = None
    stripped: str = " "
    num_stripped: int = 0
    marks_bytes: bool = False

    def decode_bytes(self, data: bytes, *, final: bool) -> tuple[str, bytes]:
        """The characters in `data` and what may still become one (empty when `final`)."""
        if not self.marks_bytes:
            text, used = codecs.utf_8_decode(data, "replace", final)
        else:
            text, used = codecs.utf_8_decode(data, "surrogateescape", final)
            text = _ESCAPED_BYTE.sub("\ufffd", text)
        return text, data[used:]

    def strip(self, text: str, num_left: int) -> tuple[str, int]:
        """`text` without up to `num_left` leading `stripped`, and how many may still go."""
        start = 0
        while start < len(text) and start < num_left and text[start] == self.stripped:
            start += 1
        return text[start:], num_left - start if start == len(text) else 0

    def join(self, token_ids: Iterable[int]) -> str:
        """The whole text of `token_ids`, for tables without `first`."""
        pieces = (self.all[token_id] for token_id in token_ids if token_id < len(self.all))
        data = b"".join(
            piece.encode() if isinstance(piece, str) else piece or b"" for piece in pieces
        )
        text, _ = self.decode_bytes(data, final=True)
        return self.strip(text, self.num_stripped)[0]


def build_token_texts(
    backend: Backend, tokens: Sequence[str | None], special_ids: frozenset[int]
) -> TokenTexts | None:
    """The table for `backend`'s decoder, or None when a token's text depends on its neighbours.

    `tokens` are the token strings by id, None where an id has no token.
    """
    steps = _steps(backend)
    kinds = [step["type"] for step in steps]
    if kinds[1:] == ["Fuse"]:  # joining is what happens at the end in any case
        kinds.pop()
    if kinds == ["ByteLevel"]:
        return _table(_byte_level(tokens), special_ids)
    if not steps or kinds in (["Metaspace"], ["WordPiece"]):
        return _by_example(backend, tokens, special_ids)
    if _takes_tokens_apart(steps):
        return _replaced(steps, tokens, special_ids)
    return None


def _steps(backend: Backend) -> list[dict[str, Any]]:
    """The decoder's settings as a flat list; empty when there is no decoder."""
    if backend.decoder is None:
        return []
    # The pickled state of a decoder is its part of tokenizer.json; there is no other way to
    # read the settings without writing out the whole vocabulary.
    todo = [json.loads(backend.decoder.__getstate__())]
    steps = []
    while todo:
        step = todo.pop(0)
        if step["type"] == "Sequence":
            todo = step["decoders"] + todo
        else:
            steps.append(step)
    return steps


def _table(pieces: Iterable[TokenText], special_ids: frozenset[int], **settings: Any) -> TokenTexts:
    every = tuple(pieces)
    shown = tuple(
        None if token_id in special_ids else piece for token_id, piece in enumerate(every)
    )
    return TokenTexts(all=every, shown=shown, **settings)


def _byte_level(tokens: Sequence[str | None]) -> Iterable[TokenText]:
    """GPT-2's decoder: characters stand for bytes; a token with any other character is itself."""
    # The alphabet writes printable Latin-1 as itself, and the other bytes, in their order, as
    # U+0100 and up. Characters below that which stand for no byte must not pass for one.
    alphabet = set(ByteLevel.alphabet())
    moved = [byte for byte in range(256) if chr(byte) not in alphabet]
    to_byte = {256 + index: byte for index, byte in enumerate(moved)}
    to_byte |= dict.fromkeys(moved, 0xFFFF)
    for token in tokens:
        if token is None:
            yield None
            continue
        try:
            data = token.translate(to_byte).encode("latin-1")
        except UnicodeEncodeError:
            yield token
            continue
        try:
            yield data.decode()
        except UnicodeDecodeError:
            yield data


def _by_example(
    backend: Backend, tokens: Sequence[str | None], special_ids: frozenset[int]
) -> TokenTexts:
    """Metaspace, WordPiece, no decoder: only the first token of a text is treated apart."""
    decoder = backend.decoder
    if decoder is None:
        behind = [None if token is None else " " + token for token in tokens]
    else:
        behind = [None if token is None else decoder.decode(["x", token])[1:] for token in tokens]
    return _table(
        behind,
        special_ids,
        first=lambda token_id: backend.decode([token_id], skip_special_tokens=False),
    )


def _takes_tokens_apart(steps: Sequence[Mapping[str, Any]]) -> bool:
    """True for: plain replacements, byte fallback, and then the joined text's left end cut."""
    kinds = [step["type"] for step in steps]
    num_replaced = next((i for i, kind in enumerate(kinds) if kind != "Replace"), len(kinds))
    plain = all(step["pattern"].get("String") for step in steps[:num_replaced])
    tail = kinds[num_replaced:]
    if tail[:1] == ["ByteFallback"]:
        tail = tail[1:]
    cuts_left = tail == ["Fuse", "Strip"] and steps[-1]["stop"] == 0
    return plain and (tail in ([], ["Fuse"]) or cuts_left)


def _replaced(
    steps: Sequence[Mapping[str, Any]], tokens: Sequence[str | None], special_ids: frozenset[int]
) -> TokenTexts:
    """Sentencepiece's way: U+2581 is a space, <0xNN> a byte, the text's first space falls off."""
    pairs = [(s["pattern"]["String"], s["content"]) for s in steps if s["type"] == "Replace"]
    has_bytes = any(step["type"] == "ByteFallback" for step in steps)

    def piece(token: str | None) -> TokenText:
        if token is None:
            return None
        for pattern, content in pairs:
            token = token.replace(pattern, content)
        match = _BYTE_TOKEN.fullmatch(token) if has_bytes else None
        return token if match is None else bytes.fromhex(match[1])

    strip = steps[-1] if steps[-1]["type"] == "Strip" else {"content": " ", "start": 0}
    return _table(
        map(piece, tokens),
        special_ids,
        stripped=strip["content"],
        num_stripped=strip["start"],
        marks_bytes=has_bytes,
    )
