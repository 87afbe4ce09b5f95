"""Grammars in GBNF and Lark, on llguidance, and what is watched and hinted beside it."""
