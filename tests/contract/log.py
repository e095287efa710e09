"""A file in which tasks note that they ran."""

from pathlib import Path
from typing import final


@final
class Log:
    """What tasks noted, in order; they are given its path."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    @property
    def lines(self) -> list[str]:
        file = Path(self.path)
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []
