"""Anthropic's Messages: /v1/messages and what it is made of."""
