"""Distinguishes keywords of clauses from variables of the same name, as in `where = 3`."""

from collections.abc import Sequence

from client.query.reading.tokens import NAME, STRING, Token

DECODERS = ("argmax", "sample", "beam")
# Including those of LMQL that are not supported, for errors.
DECODER_WORDS = (*DECODERS, "best_k")
# Words that an expression follows.
OPERATOR_WORDS = frozenset({"and", "or", "in", "is", "not", "if", "else"})
_USES_OF_A_NAME = frozenset({".", ",", ":", "=", ":=", ";", ")"})


def is_import(tokens: Sequence[Token], index: int) -> bool:
    """Whether `from` begins an import: `import` follows on its line."""
    return any(token.is_name("import") for token in rest_of_line(tokens, index + 1))


def begins_where(tokens: Sequence[Token], index: int) -> bool:
    """Whether this is the keyword `where` and not a variable."""
    return tokens[index].is_name("where") and not _is_variable(tokens, index)


def begins_distribution(tokens: Sequence[Token], index: int) -> bool:
    """Whether this is the keyword `distribute` or `distribution`: a name follows, which Python
    would not allow."""
    if not tokens[index].is_name("distribute", "distribution"):
        return False
    behind_string = index > 0 and tokens[index - 1].kind == STRING
    if index + 1 == len(tokens):
        return tokens[index].begins or behind_string
    following = tokens[index + 1]
    if following.begins and behind_string:
        return True
    is_operator = following.text in OPERATOR_WORDS
    return following.kind == NAME and not is_operator and following.depth == 0


def _is_variable(tokens: Sequence[Token], index: int) -> bool:
    if index + 1 == len(tokens) or tokens[index + 1].begins:
        return False
    following = tokens[index + 1]
    return following.is_op(*_USES_OF_A_NAME) or (
        following.text.endswith("=") and following.text not in {"==", "!=", "<=", ">="}
    )


def rest_of_line(tokens: Sequence[Token], index: int) -> Sequence[Token]:
    """The tokens from here to the end of the logical line."""
    stop = index
    while stop < len(tokens) and not tokens[stop].begins:
        stop += 1
    return tokens[index:stop]
