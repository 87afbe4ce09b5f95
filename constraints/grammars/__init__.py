"""JSON Schema, regular expressions, Lark grammars and choices, on llguidance."""
