"""Regular expressions: their characters, syntax and automata, and what the engine gets of them."""
