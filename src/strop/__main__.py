"""`python -m strop`: the command line where nothing is installed."""

from strop.cli import main

main()
