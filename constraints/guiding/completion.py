"""Known completions: tokens that complete an output, updated from token to token.

after a token:  the completion begins with it   ->  its rest, which is legal without a check
                the completion is still legal   ->  the completion, after one check by the matcher
                an end of it is still legal     ->  that end
                otherwise                       ->  the caller searches

Every result is legal, completes the text, and is no longer than the budget that was asked for.

What searches need beside the masks is here, too: hints, which are texts that they try, and a limit
on their CPU time.
"""

import threading
from collections.abc import Callable, Iterator
from time import thread_time

from constraints.bitmask import Bitmask, allowed_ids, set_bits
from constraints.guiding.alphabet import alphabet_of
from constraints.matcher import Matcher
from constraints.vocabulary import Vocabulary

KnownCompletion = tuple[int, ...]

# The most ends of a known completion that are tried before a search.
MAX_TRIES = 12
# The most tokens of a mask that are tested one by one.
MAX_LOOKS = 32


def completes(matcher: Matcher, vocabulary: Vocabulary, tokens: KnownCompletion) -> bool:
    """Whether the text is complete after these tokens."""
    if vocabulary.end_ids:
        closed = (*tokens, vocabulary.end_ids[0])
        return matcher.num_legal(closed) == len(closed)
    if matcher.num_legal(tokens) < len(tokens):
        return False
    ahead = matcher.fork()
    for token_id in tokens:
        ahead.advance(token_id)
    return ahead.is_complete


def rest_after(
    matcher: Matcher, vocabulary: Vocabulary, known_completion: KnownCompletion, token_id: int
) -> KnownCompletion | None:
    """The known completion behind this token, if its bytes begin with the token's bytes.

    If a part of a token is left over, it is spelled in few tokens.
    """
    if known_completion[:1] == (token_id,):
        return known_completion[1:]
    token = vocabulary.tokens[token_id]
    if not token or not _beginning(known_completion, token, vocabulary).startswith(token):
        return None
    rest = _after(known_completion, len(token), vocabulary)
    return rest if rest is not None and completes(matcher, vocabulary, (token_id, *rest)) else None


def _beginning(known_completion: KnownCompletion, token: bytes, vocabulary: Vocabulary) -> bytes:
    """The first bytes of the known completion, at least as many as the token has, if it can."""
    return text_of(known_completion[: len(token)], vocabulary)


def _after(
    known_completion: KnownCompletion, num_bytes: int, vocabulary: Vocabulary
) -> KnownCompletion | None:
    """The known completion without its first bytes."""
    for count, token_id in enumerate(known_completion):
        token = vocabulary.tokens[token_id]
        if num_bytes < len(token):
            left = spelled(token[num_bytes:], vocabulary) if num_bytes else (token_id,)
            return None if left is None else (*left, *known_completion[count + 1 :])
        num_bytes -= len(token)
    return ()


def spelled(text: bytes, vocabulary: Vocabulary) -> KnownCompletion | None:
    """The bytes as tokens; None where the vocabulary cannot spell exactly these bytes."""
    if not text:
        return ()
    tokens = vocabulary.spell(text)
    if b"".join([vocabulary.tokens[token_id] for token_id in tokens]) == text:
        return tuple(tokens)
    # Some tokenizers put a space before whatever they are given.
    try:
        tokens = vocabulary.spell_greedily(text)
    except UnicodeDecodeError:
        return None
    is_spelled = b"".join([vocabulary.tokens[token_id] for token_id in tokens]) == text
    return tuple(tokens) if is_spelled else None


def next_completion(
    matcher: Matcher,
    vocabulary: Vocabulary,
    known_completion: KnownCompletion,
    token_id: int,
    max_len: int,
    max_tries: int = MAX_TRIES,
) -> KnownCompletion | None:
    """A completion behind this token, derived from the known one without a search."""
    rest = rest_after(matcher, vocabulary, known_completion, token_id)
    if rest is not None and len(rest) <= max_len:
        return rest
    # A character inside of which the token ends is completed first.
    padding = _rest_of_character(vocabulary.tokens[token_id])
    singles = [alphabet_of(vocabulary).singles[byte] for byte in padding]
    padded = (*(single for single in singles if single is not None), *known_completion)
    tails = [padded] if padding else [padded, *tails_of(known_completion, max_len, max_tries)]
    for tail in tails:
        if len(tail) <= max_len and completes(matcher, vocabulary, (token_id, *tail)):
            return tail
    return None


def _rest_of_character(token: bytes) -> bytes:
    """The lowest bytes that complete the UTF-8 character inside of which the token ends."""
    for num_last in range(1, min(3, len(token)) + 1):
        lead = token[-num_last]
        if lead >= 0xC0:
            length = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            padding = {0xE0: b"\xa0", 0xF0: b"\x90"}.get(lead, b"\x80") + b"\x80\x80"
            return padding[num_last - 1 : length - 1]
        if lead < 0x80:
            break
    return b""


def tails_of(
    known_completion: KnownCompletion, max_len: int, max_tries: int = MAX_TRIES
) -> Iterator[KnownCompletion]:
    """The longest ends of a known completion that have at most `max_len` tokens; a few."""
    first = max(0, len(known_completion) - max_len)
    for start in range(first, min(len(known_completion), first + max_tries - 1) + 1):
        yield known_completion[start:]


def keep_tokens_that_shorten(
    row: Bitmask,
    matcher: Matcher,
    vocabulary: Vocabulary,
    known_completion: KnownCompletion,
    ends: frozenset[int],
) -> None:
    """Keep the tokens behind which a completion is known that is shorter than the present one.

    Tokens other than the first of the known completion are tested only if they are few, with few
    attempts each.
    """
    left = len(known_completion) - 1
    legal = allowed_ids(row).tolist()
    known = [known_completion[0]]
    if len(legal) <= MAX_LOOKS:
        others = [each for each in legal if each not in ends and each != known_completion[0]]
        known += [
            each
            for each in others
            if next_completion(matcher, vocabulary, known_completion, each, left, 2) is not None
        ]
    row.fill(0)
    set_bits(row, known)


def text_of(tokens: KnownCompletion, vocabulary: Vocabulary) -> bytes:
    return b"".join([vocabulary.tokens[token_id] for token_id in tokens])


class CompletionHints:
    """The hints of a constraint; shared by threads.

    first: hints known from the beginning, the best one first. For a schema or a pattern that is a
           whole text of it, if one was found
    """

    def __init__(
        self, first: tuple[bytes, ...] = (), more: Callable[[], tuple[bytes, ...]] | None = None
    ) -> None:
        """`more` makes the hints behind `first`; it is called at most once."""
        self.first = first
        self._more = more
        self._all = first
        self._lock = threading.Lock()

    def all(self) -> tuple[bytes, ...]:
        """All hints, each once, the best first."""
        if self._more is not None:
            with self._lock:
                if self._more is not None:
                    self._all = tuple(dict.fromkeys((*self.first, *self._more())))
                    self._more = None
        return self._all


class TimeLimit:
    """So many CPU seconds of this thread from now on.

    A search takes a small part of its limit, but a garbage collection may take longer than all of
    it. So the limit restarts once, with half its length.
    """

    def __init__(self, seconds: float) -> None:
        self._ends_s = thread_time() + seconds
        self._grace_s = seconds / 2

    def is_over(self) -> bool:
        """Whether the time is used up; call it after every step."""
        if thread_time() <= self._ends_s:
            return False
        if not self._grace_s:
            return True
        self._ends_s = thread_time() + self._grace_s
        self._grace_s = 0.0
        return False
