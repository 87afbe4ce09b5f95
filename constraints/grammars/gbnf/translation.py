"""GBNF to the notation of the engine: the same texts, though the engine has a lexer and GBNF none.

text -> reading -> loops (rules that need no stack) -> terminals (over greed) -> writing
"""

from constraints.errors import Contradiction
from constraints.grammars.chains import check_depth, closure
from constraints.grammars.engine import HEADER
from constraints.grammars.gbnf.loops import flat_rules, unrolled
from constraints.grammars.gbnf.reading import ROOT, read
from constraints.grammars.gbnf.terminals import cut
from constraints.grammars.gbnf.terms import Choice, Name, Repeat, Sequence, Term, names
from constraints.grammars.gbnf.writing import write
from constraints.where.error_position import complaint


def to_grammar(text: str) -> str:
    """The grammar as the engine takes it.

    Raises Malformed, NotEnforced, Contradiction, TooComplex.
    """
    read_rules = read(text)
    mentions = {name: [each.name for each in names(rule.term)] for name, rule in read_rules.items()}
    reached = check_depth([ROOT], mentions)
    terms = {name: rule.term for name, rule in read_rules.items() if name in reached}
    ending = closure(mentions, lambda name, known: _ends(read_rules[name].term, known))
    endless = [name for name in terms if name not in ending]
    if endless:
        at = read_rules[endless[0]].position
        what = f"rule `{endless[0]}` never ends: no text follows it"
        wrong = complaint(text, at, at + len(endless[0]), what)
        raise Contradiction(str(wrong), tuple(endless))
    rules = {name: unrolled(name, term) for name, term in terms.items()}
    found = cut(rules, flat_rules(rules), ROOT)
    return HEADER + write(found, rules, ROOT)


def _ends(term: Term, known: set[str]) -> bool:
    """Whether a finite text follows, where the known rules have one."""
    match term:
        case Name(name):
            return name in known
        case Sequence(parts):
            return all(_ends(part, known) for part in parts)
        case Choice(options):
            return any(_ends(option, known) for option in options)
        case Repeat(part, least):
            return least == 0 or _ends(part, known)
        case _:
            return True
