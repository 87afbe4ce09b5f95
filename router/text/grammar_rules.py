"""Rules of a grammar in Lark, for the texts of a format: with special tokens, places and blanks."""

import os.path
import re
from collections.abc import Mapping
from typing import Any

import orjson

from router.text.answer_format import ID, NUMBER, spellings

# A character behind which a special token may follow: all but those that no font has. A search for
# a completion writes special tokens with one of them.
ANY = r"[^\U00100000-\U0010FFFF]"
_META = frozenset("\\.+*?()|[]{}^$#&-~/")
_TAG = r"\[[A-Z_]{3,}\]|</?[^<>\s]+>"
_BRACKETS = ("{", "[")


def pattern(text: str) -> str:
    """A pattern that matches this text."""
    escaped = "".join(f"\\{char}" if char in _META else char for char in text)
    return escaped.replace("\n", "\\n")


class GrammarRules:
    """The rules of one grammar, each once. `marks`: its special tokens, by name."""

    def __init__(self, marks: Mapping[str, int]) -> None:
        self._marks = marks
        self._names: dict[str, str] = {}
        names = "|".join(map(re.escape, sorted(marks, key=len, reverse=True))) or "(?!)"
        self._special = re.compile(names)
        # Special tokens, tags, places, white space, other characters one by one.
        self._atom = re.compile(rf"{names}|{_TAG}|[{ID}{NUMBER}]|\s+|.", re.DOTALL)

    def text(self, start: str) -> str:
        """The grammar."""
        lines = [f"start: {start}", *(f"{name}: {body}" for body, name in self._names.items())]
        return "\n".join(lines) + "\n"

    def rule(self, body: str) -> str:
        """A rule of this body; returns its name."""
        return self._names.setdefault(body, f"rule_{len(self._names)}")

    def terminal(self, body: str) -> str:
        """A terminal of this body; returns its name."""
        return self._names.setdefault(body, f"TEXT_{len(self._names)}")

    def json(self, schema: Any) -> str:
        """A JSON value of this schema."""
        return self.rule(f"%json {orjson.dumps(schema).decode()}")

    def number(self) -> str:
        return self.terminal("/[0-9]{1,4}/")

    def begins_special(self, text: str) -> bool:
        return self._special.match(text) is not None

    def exact(self, text: str) -> str:
        """This text and no other."""
        written = []
        start = 0
        for match in self._special.finditer(text):
            written += [_literal(text[start : match.start()]), f"<[{self._marks[match[0]]}]>"]
            start = match.end()
        return " ".join(filter(None, [*written, _literal(text[start:])]))

    def loose(self, text: str, id_len: int | None = None, *, is_behind_mark: bool = False) -> str:
        """This text in each of its spellings; an id has `id_len` letters and digits."""
        if is_behind_mark and text.startswith(_BRACKETS):
            return f"{self._blanks(' ')} {self.loose(text, id_len)}"
        written = [self._loose(each, id_len) for each in spellings(text)]
        return written[0] if len(written) == 1 else self.rule(" | ".join(written))

    def loose_pattern(self, text: str) -> str:
        """A pattern for this text, which has no places and no special tokens."""
        parts = []
        for place, atom in enumerate(atoms := self._atom.findall(text)):
            if not atom.isspace():
                parts.append(pattern(atom))
            elif _may_vanish(atoms, place):
                parts.append(r"\s*")
            else:
                parts.append(r"\s+")
        return "".join(parts)

    def common_len(self, one: str, other: str) -> int:
        """How much two texts have in common at their beginning, in whole atoms."""
        common = os.path.commonprefix([self._atom.findall(one), self._atom.findall(other)])
        return sum(map(len, common))

    def _loose(self, text: str, id_len: int | None) -> str:
        atoms = self._atom.findall(text)
        written: list[str] = []
        plain = ""
        for place, atom in enumerate(atoms):
            is_blank = atom.isspace() and _may_vanish(atoms, place)
            if not is_blank and atom not in (ID, NUMBER) and not self.begins_special(atom):
                plain += atom
                is_tag = len(atom) > 1 and not atom.isspace()
            else:
                written += [_literal(plain)]
                plain = ""
                is_tag = not is_blank and atom not in (ID, NUMBER)
                if is_blank:
                    written.append(self._blanks(atom))
                elif atom == ID:
                    some = "1,64" if id_len is None else str(id_len)
                    written.append(self.terminal(f"/[a-zA-Z0-9]{{{some}}}/"))
                elif atom == NUMBER:
                    written.append(self.number())
                else:
                    written.append(f"<[{self._marks[atom]}]>")
            if is_tag and atoms[place + 1 : place + 2] in ([each] for each in _BRACKETS):
                written += [_literal(plain), self._blanks(" ")]
                plain = ""
        return " ".join(filter(None, [*written, _literal(plain)]))

    def _blanks(self, blanks: str) -> str:
        """White space like this, or none."""
        tab = "\\t" if "\t" in blanks else ""
        return self.terminal(f"/[ \\n{tab}]{{1,{max(2, len(blanks))}}}/") + "?"


def _may_vanish(atoms: list[str], place: int) -> bool:
    """Whether the white space there divides no words."""
    around = (atoms[place - 1 : place] or [""])[0][-1:] + (atoms[place + 1 : place + 2] or [""])[0][
        :1
    ]
    return not (len(around) == 2 and all(char.isalnum() or char == "_" for char in around))


def _literal(text: str) -> str:
    """A literal; nothing for an empty one."""
    return orjson.dumps(text).decode() if text else ""
