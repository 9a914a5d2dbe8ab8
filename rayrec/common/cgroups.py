"""The cgroups that limit a process, as a container is limited: where their files are. Linux only."""

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def cgroups(controller: str, process: Path = Path("/proc/self")) -> Iterator[Path]:
    """Yield the folders of the cgroups of `controller` (cpu, memory, pids): a process's and those above, where mounted.

    `process`: its folder of /proc. Of version 2 the folder is that of all controllers. A mount shows a hierarchy from
    some cgroup on. One that is not above the process's own, as the names in a container can have it, counts itself: it
    is what the container was given.
    """
    try:
        paths = dict(_paths(controller, process))
        mounts = list(_mounts(controller, process))
    except OSError:
        return
    for kind, path in paths.items():
        of_kind = [(root, folder) for mounted, root, folder in mounts if mounted == kind]
        above = [(root, folder) for root, folder in of_kind if path.is_relative_to(root) and ".." not in path.parts]
        for root, folder in above or of_kind[:1]:
            own = folder / path.relative_to(root) if above else folder
            yield own
            yield from (parent for parent in own.parents if parent.is_relative_to(folder))


def number_in(file: Path) -> int | None:
    """Return the number that a file of a cgroup holds; None if there is no such file, or if it says `max`."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _paths(controller: str, process: Path) -> Iterator[tuple[str, PurePosixPath]]:
    """Return the path of the process's cgroup in the hierarchy of version 2 and in version 1's of the controller."""
    for line in (process / "cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            yield "cgroup2", PurePosixPath(path)
        elif controller in controllers.split(","):
            yield "cgroup", PurePosixPath(path)


def _mounts(controller: str, process: Path) -> Iterator[tuple[str, PurePosixPath, Path]]:
    """(cgroup2 or cgroup, the cgroup that is mounted, the folder) of these hierarchies' mounts: proc(5), mountinfo."""
    for line in (process / "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and controller in options.split(",")):
            root, folder = (_unescaped(field) for field in before.split(" ")[3:5])
            yield kind, PurePosixPath(root), Path(folder)


def _unescaped(field: str) -> str:
    """Return a field of mountinfo, in which blanks are written as \\040."""
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), field)
