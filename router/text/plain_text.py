"""Text that goes on another, as tokens: no special tokens, and no space that is not there.

Some tokenizers put a space in front of every text that they are given, as if a word began there.
"""

from router.text.tokenizer import Tokenizer

# One of these is a token of its own in front of most texts, so that the rest is what follows it.
_ANCHORS = ("\n", "a", ".", "0")


async def plain_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The token ids of `text` behind some other text. Raises InvalidRequest for invalid Unicode.

    A tokenizer that changes what it is given (to small letters, say) has its own way.
    """
    ids = await tokenizer.encode_async(text, add_special_tokens=False)
    if _says(tokenizer, ids, text):
        return ids
    for anchor in _ANCHORS:
        before = tokenizer.encode(anchor, add_special_tokens=False)
        whole = await tokenizer.encode_async(anchor + text, add_special_tokens=False)
        rest = whole[len(before) :]
        if whole[: len(before)] == before and _says(tokenizer, rest, text):
            return rest
    return ids


def _says(tokenizer: Tokenizer, ids: list[int], text: str) -> bool:
    said = b"".join(tokenizer.token_bytes(token_id) for token_id in ids)
    return said == text.encode()
