"""``python -m hydrator``, where the command is not on the path."""

from hydrator.cli import main

main()
