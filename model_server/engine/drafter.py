"""Guesses the next tokens of a sequence from its own text: prompt lookup, or n-gram speculation.

    token_ids:  ... x a b | c d e f ... y x a b
                           draft: c d e f

A step computes the draft behind the sequence's last token, and samples at each of its positions
until a token is not the one that was guessed. Since a position's logits and its random draw do not
depend on how many tokens a step computes, the output is the same as without drafts; only the number
of steps is not. (Saxena, prompt lookup decoding, 2023; verification as Leviathan et al.,
arXiv:2211.17192, of a draft without probabilities.)
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

_FEW_ROWS = 4
# Of the last places where the last two tokens came so many are compared, by so many tokens.
_MAX_PLACES = 32
_MAX_MATCH_LEN = 16


@dataclass(frozen=True, slots=True)
class DraftRules:
    """What a step asks of drafts.

    min_match_len: so many tokens at least came before, and were followed by the guess
    end_token_ids: those of the model, none of which is guessed
    """

    min_match_len: int = 2
    end_token_ids: Collection[int] = ()

    @classmethod
    def of_rows(cls, num_rows: int, end_token_ids: Collection[int]) -> "DraftRules":
        """For a step of so many sequences that decode.

        One of few rows waits for the weights, and a draft costs it a tenth or two. One of more
        computes for longer than that, so that only a likely draft is worth its row.
        """
        return cls(2 if num_rows < _FEW_ROWS else 8, end_token_ids)


class Drafter:
    """The pairs of tokens in one sequence, and how well its last drafts went.

    A draft is as long as the last one was right and one token longer, and twice as long after one
    that was right to its end: so text that does not repeat itself costs a row a step at most.

    How likely a guess is depends on the match. Its first token is right, in prose and code of
    32 000 kinds of tokens, after 2 equal ones in 0.2 to 0.5 of the cases, after 4 to 7 in 0.55 to
    0.7, and after 8 or more in 0.7 to 0.99, the last where a file is written anew with changes.
    """

    def __init__(self) -> None:
        # Where the text went on after the last time that a pair came, and the time before that.
        self._last_place: dict[tuple[int, int], int] = {}
        self._places_before: list[int | None] = [None, None]
        self._draft_len = 1

    def draft(self, token_ids: Sequence[int], most: int, min_match_len: int = 2) -> tuple[int, ...]:
        """The guessed successors of `token_ids`, at most so many; see `DraftRules`."""
        self._index(token_ids)
        place, match_len = self._best_place(token_ids)
        if match_len < min_match_len:
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

    def _best_place(self, token_ids: Sequence[int]) -> tuple[int, int]:
        """Where the text went on after the longest match with its end, and the match's length.

        The latest of several; a length of 0 where there is none.
        """
        best, best_len = 0, 0
        if len(token_ids) < 2:
            return best, best_len
        place = self._last_place.get((token_ids[-2], token_ids[-1]))
        for _ in range(_MAX_PLACES):
            if place is None or best_len == _MAX_MATCH_LEN:
                break
            match_len = _match_len(token_ids, place)
            if match_len > best_len:
                best, best_len = place, match_len
            place = self._places_before[place]
        return best, best_len


def _match_len(token_ids: Sequence[int], place: int) -> int:
    """Tokens before `place` that equal the last ones, of which two do."""
    most = min(_MAX_MATCH_LEN, place)
    for match_len in range(2, most):
        if token_ids[place - 1 - match_len] != token_ids[-1 - match_len]:
            return match_len
    return most
