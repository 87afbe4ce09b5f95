"""`python -m launcher`: the console script, where it may not be on the path."""

from launcher.cli import main

if __name__ == "__main__":
    main()
