"""Parts of an output state: known completions, the search for them, stop strings."""
