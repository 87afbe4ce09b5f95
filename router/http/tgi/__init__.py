"""TGI's routes and what they are made of."""
