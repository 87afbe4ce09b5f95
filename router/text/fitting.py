"""Texts that are far too long, told from their beginnings.

Tokenizing megabytes takes seconds, which nobody is to spend on a prompt that can only be refused.
"""

from router.request.errors import InvalidRequest
from router.text.tokenizer import Tokenizer

# Characters of a beginning: so many in any case, and so many for each token that may be.
_LEAST_LEN = 1 << 14
_CHARS_A_TOKEN = 16
# A cut through a word, or what a tokenizer does to the whole of a text, makes a few tokens more or
# less. It never makes half of them.
_MARGIN = 2


async def check_fits(tokenizer: Tokenizer, text: str, max_len: int, field: str) -> None:
    """Raise InvalidRequest for a text whose beginning alone has far more than `max_len` tokens.

    A text that passes may still be too long: it was worth tokenizing. Costs nothing for texts of
    an ordinary length, and a third of their tokenizing for those in between.
    """
    begin_len = max(_LEAST_LEN, _CHARS_A_TOKEN * max_len)
    while 2 * begin_len <= len(text):
        begin = await tokenizer.encode_async(text[:begin_len], add_special_tokens=False)
        if len(begin) > _MARGIN * max_len:
            raise InvalidRequest(
                f"`{field}` must have at most {max_len} tokens. Given: {len(begin)} in its first "
                f"{begin_len} of {len(text)} characters",
                field,
            )
        begin_len *= 4
