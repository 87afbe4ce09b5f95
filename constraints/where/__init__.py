"""The `where` language: LMQL's operators as one expression over the output."""
