"""The limits of the server whose validation is tested, and the seed that it draws."""

from router.engine.validation import Limits

LIMITS = Limits(max_input_len=24, max_total_len=32, vocab_size=500)
SEED = 17
