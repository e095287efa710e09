"""The commands, one module each, imported when it is named: `execute(arguments)` does it and returns the exit code.

`procq.cli.parser.COMMANDS` lists them.
"""
