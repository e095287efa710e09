# What each folder of a tree holds, in files and bytes, and which files in it are the same.
#
#   python examples/spawn_tree.py FOLDER [HOW_MANY]
#
# Nobody lists the tree beforehand: the task of a folder spawns one for each folder that it finds there,
# so the workers hash files while others still look for more.
import sys
from collections import defaultdict
from hashlib import blake2b
from os import scandir
from pathlib import Path
from typing import NamedTuple

from procq import Queue, Spawn, task


class Folder(NamedTuple):
    files: list[tuple[str, int, bytes]]  # path, bytes, digest
    folders: list[str]  # whose tasks have these names as ids


@task(max_attempts=2, retry_on=OSError, backoff="100ms")
def look_into(path: str) -> Folder:
    files, folders = [], []
    with scandir(path) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif entry.is_file(follow_symlinks=False):
                data = Path(entry.path).read_bytes()
                files.append((entry.path, len(data), blake2b(data).digest()))
    return Spawn([look_into.using(id=name).spec(name) for name in folders], value=Folder(files, folders))


def main(root: str, how_many: int = 10) -> None:
    # As many results are kept as there may be folders, until they have been read here.
    with Queue(retention=(1_000_000, "1d")) as queue:
        queue.submit(look_into.using(id=root).spec(root))
        found: dict[str, Folder] = {}
        names = [root]
        for name in names:  # grows while it is walked
            looked = queue.wait(name)
            if looked.error is not None:
                print(f"{name}: {looked.error}", file=sys.stderr)
            found[name] = looked.value or Folder([], [])
            names += found[name].folders

    count, size = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    same: defaultdict[bytes, list[str]] = defaultdict(list)
    for name in reversed(names):  # a folder comes after all that are in it
        files, folders = found[name]
        count[name] = len(files) + sum(count[inner] for inner in folders)
        size[name] = sum(length for _, length, _ in files) + sum(size[inner] for inner in folders)
        for path, length, digest in files:
            if length:
                same[digest].append(path)

    for name in sorted(names, key=lambda name: -size[name])[:how_many]:
        print(f"{size[name]:12} bytes  {count[name]:6} files  {name}")
    twins = [sorted(paths) for paths in same.values() if len(paths) > 1]
    print(f"\n{len(names)} folders, {sum(map(len, twins))} files that are there more than once")
    for paths in sorted(twins)[:how_many]:
        print(*paths, sep="\n  = ")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
