"""The bundled model and the program that trains it. Knows nothing of the server."""
