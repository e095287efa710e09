"""The report of a run: one HTML file that needs nothing else, made of the run's events alone.

    events -> account (columns) -> figures (numbers) -> sections (HTML) -> page (one file)

Imports nothing of the queue: what a report says is what the events said, of this run or of any other.
All but the timeline that can be zoomed and the filters is there without the script.
"""

from procq.report.page import render, save, write

__all__ = ["render", "save", "write"]
