"""What the fake server's model is called; for those who cannot import the server."""

MODEL_ID = "fake"
