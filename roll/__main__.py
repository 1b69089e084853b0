"""`python -m roll`: the same as the command `roll`."""

from roll.cli import main

main()
