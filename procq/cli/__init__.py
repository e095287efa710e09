"""The command line: arguments, exit codes, display.  Decides nothing about tasks."""

from procq.cli.command import console, main

__all__ = ["console", "main"]
