"""Grammars in GBNF, the notation of llama.cpp and xgrammar, for an engine with a lexer."""
