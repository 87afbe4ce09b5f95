"""OpenAI's Responses: /v1/responses and what it is made of."""
