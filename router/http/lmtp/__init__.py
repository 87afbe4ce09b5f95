"""LMTP: language-model requests over a WebSocket, many streams on one connection."""
