"""`python -m meshrt`: the command line."""

from meshrt.cli import main

if __name__ == "__main__":
    main()
