"""JSON schemas: parsed, resolved, and rewritten into what the engine enforces exactly.

text -> reading -> rewriting (references, keywords, negation) -> watched -> grammar -> engine
"""
