"""What an output state is made of: completions that are known, the search for them, stop strings."""
