"""Guesses the next tokens of a sequence from its own text: prompt lookup, or n-gram speculation.

    token_ids:  ... x a b | c d e f ... y x a b
                           draft: c d e f

A step computes the draft behind the sequence's last token, and samples at each of its positions
until a token is not the one that was guessed. Since a position's logits and its random draw do not
depend on how many tokens a step computes, the output is the same as without drafts; only the number
of steps is not. (Saxena, prompt lookup decoding, 2023; verification as Leviathan et al.,
arXiv:2211.17192, of a draft without probabilities.)
"""

from collections.abc import Sequence

# Of the last places where the last two tokens came so many are compared, by so many tokens.
_MAX_PLACES = 32
_MAX_MATCH_LEN = 16


class Drafter:
    """The pairs of tokens in one sequence, and how well its last drafts went.

    A draft is as long as the last one was right and one token longer, and twice as long after one
    that was right to its end: so text that does not repeat itself costs a row a step at most.
    """

    def __init__(self) -> None:
        # Where the text went on after the last time that a pair came, and the time before that.
        self._last_place: dict[tuple[int, int], int] = {}
        self._places_before: list[int | None] = [None, None]
        self._draft_len = 1

    def draft(self, token_ids: Sequence[int], most: int) -> tuple[int, ...]:
        """The guessed successors of `token_ids`, at most so many; none where nothing matches."""
        self._index(token_ids)
        place = self._best_place(token_ids)
        if place is None:
            return ()
        draft_len, period = min(most, self._draft_len), len(token_ids) - place
        # Past the end of what is known the guess goes on as it began.
        return tuple([token_ids[place + offset % period] for offset in range(draft_len)])

    def note(self, num_drafts: int, num_accepted: int) -> None:
        """A draft of so many tokens was right in so many of them."""
        is_right = num_accepted == num_drafts
        self._draft_len = 2 * num_drafts if is_right else num_accepted + 1

    def _index(self, token_ids: Sequence[int]) -> None:
        """Index the pairs that have a successor and are not indexed yet."""
        places = self._places_before
        for place in range(len(places), len(token_ids)):
            pair = token_ids[place - 2], token_ids[place - 1]
            places.append(self._last_place.get(pair))
            self._last_place[pair] = place

    def _best_place(self, token_ids: Sequence[int]) -> int | None:
        """Where the text went on after the longest match with its end; the latest of these."""
        if len(token_ids) < 2:
            return None
        place = self._last_place.get((token_ids[-2], token_ids[-1]))
        best, best_len = place, 0
        for _ in range(_MAX_PLACES):
            if place is None or best_len == _MAX_MATCH_LEN:
                break
            match_len = _match_len(token_ids, place)
            if match_len > best_len:
                best, best_len = place, match_len
            place = self._places_before[place]
        return best


def _match_len(token_ids: Sequence[int], place: int) -> int:
    """Tokens before `place` that equal the last ones, of which two do."""
    most = min(_MAX_MATCH_LEN, place)
    for match_len in range(2, most):
        if token_ids[place - 1 - match_len] != token_ids[-1 - match_len]:
            return match_len
    return most
