"""Texts that are far too long for the model, found before all of them is tokenized."""

from router.request.errors import InvalidRequest
from router.text.tokenizer import Tokenizer

# Characters that are tokenized at once where only their number matters. A cut through a word, or a
# normalizer that sees the whole text, changes it by a few, never by a factor of two.
_MIN_PIECE_LEN, _MAX_PIECE_LEN = 1 << 14, 1 << 16


async def check_fits(
    tokenizer: Tokenizer,
    text: str,
    max_len: int,
    field: str,
    *,
    chars_per_token: int = 4,
    margin: int = 2,
) -> None:
    """Raise InvalidRequest for a text that has far more than `max_len` tokens: `margin` times as
    many.

    Tokenizing megabytes takes seconds, wasted on a prompt that is refused, and taking the memory
    back of a million tokens as long as a health check may take. Texts of less than
    `chars_per_token` cost nothing; longer ones are tokenized in pieces until they are too many.
    """
    piece_len = min(max(_MIN_PIECE_LEN, chars_per_token * max_len), _MAX_PIECE_LEN)
    if len(text) <= max(2 * piece_len, chars_per_token * max_len):
        return
    num_tokens = 0
    for start in range(0, len(text), piece_len):
        num_tokens += await tokenizer.count(text[start : start + piece_len])
        if num_tokens > margin * max_len:
            raise InvalidRequest(
                f"`{field}` must have at most {max_len} tokens. Given: {num_tokens} in its first "
                f"{start + piece_len} of {len(text)} characters",
                field,
            )
