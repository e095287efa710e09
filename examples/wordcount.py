# The commonest words in a folder of text files.
#
#   procq run examples/wordcount.py -p folder=texts -p top=20
#   python examples/wordcount.py -p folder=texts -j 4
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from procq import TaskSpec, main, task


@task(max_attempts=2, timeout="1m")
def count(path: Path) -> Counter[str]:
    return Counter(re.findall(r"[^\W\d_]+", path.read_text(encoding="utf-8", errors="replace").lower()))


@task
def show(counts: list[Counter[str]], top: int) -> None:
    total = sum(counts, Counter[str]())
    print(*(f"{number:8} {word}" for word, number in total.most_common(top)), sep="\n", flush=True)


def jobs(folder: Path, pattern: str = "*.txt", top: int = 10) -> Iterator[TaskSpec[None]]:
    counts = [count.spec(path).out for path in sorted(folder.rglob(pattern))]
    if counts:
        yield show.spec(counts, top)


if __name__ == "__main__":
    main(jobs)
