"""Parts of an output's state: known completions, the search for them, stop strings."""
