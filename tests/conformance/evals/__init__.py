"""lm-eval and guidellm, which need torch and transformers."""
