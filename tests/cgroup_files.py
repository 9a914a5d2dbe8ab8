"""Folders as /proc has them for a process in cgroups."""

from collections.abc import Mapping
from pathlib import Path

V2 = "cgroup2 cgroup2 rw,nsdelegate"


def process_folder(folder: Path, cgroup: str, mounts: list[tuple[str, str, str]], files: Mapping[str, str]) -> Path:
    """Return a folder of /proc: `cgroup`, mounts (root, folder, kind) and the files of cgroups, all below `folder`."""
    process = folder / "proc"
    process.mkdir()
    (process / "cgroup").write_text(cgroup)
    lines = ["22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=continue\n"]
    for number, (root, mounted, kind) in enumerate(mounts):
        place = str(folder / mounted).replace(" ", "\\040")
        lines.append(f"{31 + number} 22 0:{number} {root} {place} rw,nosuid shared:9 - {kind}\n")
    (process / "mountinfo").write_text("".join(lines))
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return process
