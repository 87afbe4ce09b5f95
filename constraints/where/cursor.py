"""The position of a parser in its text: tokens, limits, and errors at that position.

It recognises the syntax of other languages for its hints; it has no grammar.
"""

from constraints.errors import Malformed, TooComplex
from constraints.where.error_position import complaint, nearest, short
from constraints.where.functions import FUNCTIONS
from constraints.where.lexer import KEYWORDS, Token, TokenKind, tokens

MAX_TEXT_LEN = 100_000  # characters
MAX_DEPTH = 64  # parentheses, calls and `not` within each other
MAX_TERMS = 1_000  # comparisons and calls

# Operators of other languages, and what to write here instead.
_ELSEWHERE = {
    "startswith": "write starts_with(X, ...)",
    "endswith": "write ends_with(X, ...)",
    "split": "write len(words(X)) to count words",
    "count": 'a phrase can be wanted, "a" in X, but not counted',
    "isdigit": "write int(X)",
    "isnumeric": "write int(X)",
    "match": "write regex(X, r'...')",
    "type": "write int(X) or float(X)",
    "is": "write == or in",
    "escaped": "LMQL's ESCAPED changes no mask: leave it out",
    "erase": "LMQL's ERASE changes no mask: leave it out",
    "stop_at": "did you mean `stops_at`?",
    "contains": 'write "a" in X',
}


class Cursor:
    """Reads one text token by token. Every method may raise Malformed.

    token: the next one
    end:   the end of the one before it
    """

    def __init__(self, text: str) -> None:
        """Raises TooComplex for a text that is too long."""
        if len(text) > MAX_TEXT_LEN:
            raise TooComplex(
                f"a where expression has at most {MAX_TEXT_LEN} characters, this one {len(text)}"
            )
        self._text = text
        self._tokens = tokens(text)
        self._depth = 0
        self._num_terms = 0
        self.end = 0
        self.token = next(self._tokens)

    def is_at_end(self) -> bool:
        return self.token.kind is TokenKind.END

    def at(self, written: str) -> bool:
        """Whether this keyword, name or sign is next."""
        token = self.token
        if token.kind is TokenKind.KEYWORD:
            return KEYWORDS[token.text] == written
        return token.text == written and token.kind is not TokenKind.STRING

    def accept(self, written: str) -> bool:
        """Consume this keyword, name or sign if it is next."""
        if not self.at(written):
            return False
        self.advance()
        return True

    def advance(self) -> None:
        """Consume the next token."""
        self.end = self.token.end
        self.token = next(self._tokens)

    def enter(self) -> None:
        """Enter a nesting level; `leave` leaves it. Raises TooComplex."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TooComplex(
                f"position {self.token.start}: parentheses, calls and `not` stand at most"
                f" {MAX_DEPTH} deep within each other"
            )

    def leave(self) -> None:
        self._depth -= 1

    def count(self) -> None:
        """Count a comparison or call. Raises TooComplex."""
        self._num_terms += 1
        if self._num_terms > MAX_TERMS:
            raise TooComplex(
                f"position {self.token.start}: a where expression has at most {MAX_TERMS}"
                " comparisons and calls"
            )

    def complaint(self, token: Token, what: str, hint: str | None = None) -> Malformed:
        return complaint(self._text, token.start, token.end, what, hint)

    def unknown_function(self, name: Token) -> Malformed:
        """The error about the name of a function."""
        hint = _ELSEWHERE.get(name.text.lower())
        if hint is None:
            close = nearest(name.text, FUNCTIONS)
            hint = f"did you mean `{close}`?" if close else f"known: {', '.join(FUNCTIONS)}"
        return self.complaint(name, f"`{short(name.text)}` is no function", hint)

    def unexpected(self, expected: str, usage: str | None = None) -> Malformed:
        """The error about the next token, where something else was expected."""
        token = self.token
        hint = f"expected {expected}" + (f", as in {usage}" if usage else "")
        if token.kind is TokenKind.END:
            return self.complaint(token, "the expression ends too early", hint)
        reason = self._reason(token)
        return self.complaint(token, f"`{short(token.text)}` is not expected here", reason or hint)

    def _reason(self, token: Token) -> str | None:
        """A hint about what was probably meant, if known."""
        if token.kind is TokenKind.NAME:
            if token.text.lower() in ("and", "or", "not", "in"):
                return f"did you mean `{token.text.lower()}`?"
            return _ELSEWHERE.get(token.text.lower())
        match token.text:
            case ".":
                method = next(self._tokens).text
                hint = _ELSEWHERE.get(method.lower())
                return f"there are no methods; {hint}" if hint else "there are no methods"
            case "-":
                return "there is no arithmetic"
            case "[":
                return "there are no subscripts"
        return None
