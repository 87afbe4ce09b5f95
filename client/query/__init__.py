"""The query language: Python programs whose top-level strings are prompts with holes."""
