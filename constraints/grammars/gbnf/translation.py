"""Translates GBNF, which has no lexer, to the notation of the engine, which has one; same texts.

text -> reading -> loops (rules that need no stack) -> terminals (over greed) -> writing
"""

from constraints.errors import Contradiction
from constraints.grammars.definition_graph import check_depth, closure
from constraints.grammars.engine import HEADER
from constraints.grammars.gbnf.loops import as_loop, rules_without_stack
from constraints.grammars.gbnf.reading import ROOT, read
from constraints.grammars.gbnf.terminals import split_terminals
from constraints.grammars.gbnf.terms import Alternation, Name, Repetition, Sequence, Term, names
from constraints.grammars.gbnf.writing import write
from constraints.where.error_position import complaint


def to_grammar(text: str) -> str:
    """The grammar in the notation of the engine.

    Raises Malformed, NotEnforced, Contradiction, TooComplex.
    """
    read_rules = read(text)
    mentions = {name: [each.name for each in names(rule.term)] for name, rule in read_rules.items()}
    reached = check_depth([ROOT], mentions)
    terms = {name: rule.term for name, rule in read_rules.items() if name in reached}
    ending = closure(mentions, lambda name, known: _ends(read_rules[name].term, known))
    unproductive = [name for name in terms if name not in ending]
    if unproductive:
        at = read_rules[unproductive[0]].position
        what = f"rule `{unproductive[0]}` never ends: no text follows it"
        wrong = complaint(text, at, at + len(unproductive[0]), what)
        raise Contradiction(str(wrong), tuple(unproductive))
    rules = {name: as_loop(name, term) for name, term in terms.items()}
    found = split_terminals(rules, rules_without_stack(rules), ROOT)
    return HEADER + write(found, rules, ROOT)


def _ends(term: Term, known: set[str]) -> bool:
    """Whether the term has a finite text, given that the known rules have one."""
    match term:
        case Name(name):
            return name in known
        case Sequence(parts):
            return all(_ends(part, known) for part in parts)
        case Alternation(options):
            return any(_ends(option, known) for option in options)
        case Repetition(part, min_count):
            return min_count == 0 or _ends(part, known)
        case _:
            return True
