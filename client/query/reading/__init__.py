"""From a program's text to a Program: clauses, prompts, Python rewritten."""
