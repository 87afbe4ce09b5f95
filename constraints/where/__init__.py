"""The `where` language: LMQL's operators in an expression about the output."""
