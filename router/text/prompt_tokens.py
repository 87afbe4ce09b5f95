"""The tokens of prompts: texts far too long are refused early, and a text continues another one."""

from router.request.errors import InvalidRequest
from router.text.tokenizer import Tokenizer

# Characters of a beginning: at least so many, and so many for each token that is allowed.
_MIN_BEGINNING_LEN = 1 << 14
_CHARS_PER_TOKEN = 16
# A cut through a word, or a normalizer that sees the whole text, changes the number of tokens by a
# few, never by a factor of two.
_MARGIN = 2
# One of these is a token of its own in front of most texts, so that the rest is what follows it.
_ANCHORS = ("\n", "a", ".", "0")


async def check_fits(tokenizer: Tokenizer, text: str, max_len: int, field: str) -> None:
    """Raise InvalidRequest for a text whose beginning alone has far more than `max_len` tokens.

    Tokenizing megabytes takes seconds, wasted on a prompt that is refused. A text that passes may
    still be too long. Texts of an ordinary length cost nothing, and those in between a third of
    their tokenizing.
    """
    begin_len = max(_MIN_BEGINNING_LEN, _CHARS_PER_TOKEN * max_len)
    while 2 * begin_len <= len(text):
        begin = await tokenizer.encode_async(text[:begin_len], add_special_tokens=False)
        if len(begin) > _MARGIN * max_len:
            raise InvalidRequest(
                f"`{field}` must have at most {max_len} tokens. Given: {len(begin)} in its first "
                f"{begin_len} of {len(text)} characters",
                field,
            )
        begin_len *= 4


async def continuation_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The token ids of `text` behind another text: no special tokens, and no added space.

    Some tokenizers put a space in front of every text, as if a word began there. One that changes
    its input (to small letters, say) does so here too. Raises InvalidRequest for invalid Unicode.
    """
    ids = await tokenizer.encode_async(text, add_special_tokens=False)
    if _decodes_to(tokenizer, ids, text):
        return ids
    for anchor in _ANCHORS:
        before = tokenizer.encode(anchor, add_special_tokens=False)
        whole = await tokenizer.encode_async(anchor + text, add_special_tokens=False)
        rest = whole[len(before) :]
        if whole[: len(before)] == before and _decodes_to(tokenizer, rest, text):
            return rest
    return ids


def _decodes_to(tokenizer: Tokenizer, ids: list[int], text: str) -> bool:
    return b"".join(tokenizer.token_bytes(token_id) for token_id in ids) == text.encode()
