"""openai, huggingface_hub, anthropic, LangChain, curl and schemathesis, in one environment."""
