"""The command line, and the plan of what it starts."""
