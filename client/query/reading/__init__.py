"""Parses a program's text into a Program: clauses, prompts, rewritten Python."""
