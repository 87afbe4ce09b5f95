"""Grammars in GBNF and Lark; hints of what masks do not show, and what the engine forgets."""
