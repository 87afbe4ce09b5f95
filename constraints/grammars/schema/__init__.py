"""JSON schemas: read, resolved, and rewritten into what the engine enforces to the letter.

text -> reading -> rewriting (references, keywords, negation) -> endless -> disjoint -> engine
"""
