"""Kill a command after its first finished block, and count what is lost and what is left behind.

``python -m tests.kills run compare workload sweep book --times 20`` prints a table, in which every
number after the kills must be 0.  Half of the kills are SIGKILL to the process group, a quarter
SIGKILL to the process alone, a quarter SIGTERM to it.  After each, ``pgstudies records`` is run,
and then the same command, to its next kill or, after ``pgstudies doctor``, to its end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from pgservers.errors import StudyError
from pgservers.files import is_locked
from pgstudies.records.reading import read_record
from tests.servers_at_hand import is_alive, wait_until_dead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

STUDY = "killed"
"""The template of ``new-study``, under this name."""

SIZE = ("--profile", "smallest")

ENDS = {"compare": {0, 1, 2}, "workload": {0, 1, 2}}
"""The exit codes of a command at its end, where not 0 alone: a comparison may find anything."""

HOW = ("group", "group", "process", "SIGTERM")

GONE_S = 120.0
"""How long the processes of a killed command may take to end; a server has a minute of it."""

PAUSE_S = 2.0
"""What a block takes, as long as no two have been seen, and the longest time without one."""


@dataclass
class Place:
    """Directories of one command's own: its studies, records, servers and temporary files."""

    base: Path
    cache: Path
    blocks: int
    command: str
    server: str = "embedded"

    def __post_init__(self) -> None:
        self.base.mkdir()
        for name in ("notebooks", "tmp"):
            (self.base / name).mkdir()
        self.base.chmod(0o711)  # root's servers run as another account
        if self.command == "workload":
            self.run("new-workload", "shop")
        elif self.command != "book":
            self.run("new-study", STUDY)
        (self.base / "sweep.toml").write_text(
            f'ledger = "ledger"\nhosts = ["here"]\nblocks = {self.blocks}\n'
            f'[[run]]\nstudy = "{STUDY}"\nprofile = "smallest"\nservers = ["embedded"]\n'
        )

    def environment(self) -> dict[str, str]:
        """The variables by which a command keeps to these directories."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PGSTUDIES_")}
        places = {"NOTEBOOKS": "notebooks", "RECORDS": "records", "RUN_DIR": "run"}
        own = {f"PGSTUDIES_{name}": str(self.base / at) for name, at in places.items()}
        own |= {"PGSTUDIES_CACHE": str(self.cache), "PGSTUDIES_HOST_LOCK": str(self.base / "lock")}
        return inherited | own | {"TMPDIR": str(self.base / "tmp")}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """The command line, in a session of its own; what it says is in ``said.txt``."""
        with (self.base / "said.txt").open("a") as said:
            print("$", *arguments, file=said, flush=True)
            return subprocess.Popen(
                [sys.executable, "-m", "pgapps", *arguments],
                cwd=self.base,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                text=True,
                start_new_session=True,
            )

    def run(self, *arguments: str) -> int:
        """Its exit code, once it has ended."""
        return self.start(*arguments).wait()

    def finished(self) -> set[tuple[str, int]]:
        """What is done, by the files: blocks of records and of a ledger, and pages."""
        found = set()
        for info in self.base.glob("records/[!.]*/*/record.json"):
            timeline = json.loads(info.read_text())["timeline"]
            found |= {(str(info.parent), entry["block"]) for entry in timeline}
        found |= {(str(file), 0) for file in self.base.glob("ledger/*/*/*/*.zip")}
        return found | {(str(page), 0) for page in self._pages()}

    def is_over(self) -> bool:
        """Whether a run has its page: the same command begins another, which writes it anew."""
        return self.command == "run" and any(self._pages())

    def contents(self) -> dict[tuple[str, int], str]:
        """A digest of each that can be read."""
        found = {}
        for path, block in self.finished():
            content = Path(path).read_bytes() if Path(path).is_file() else _block(path, block)
            if content is not None:
                found[path, block] = hashlib.sha256(content).hexdigest()
        return found

    def _pages(self) -> Iterator[Path]:
        """The pages of records; those of summaries are made anew each time."""
        for page in self.base.glob("notebooks/_build/site/book/studies/[!.]*.ipynb"):
            if json.loads(page.read_text())["metadata"]["pgstudies"].get("record"):
                yield page

    def processes(self) -> list[psutil.Process]:
        """Those that have anything to do with these directories."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                words = [process.cwd(), *process.cmdline(), *process.environ().values()]
                if process.pid != os.getpid() and any(str(self.base) in word for word in words):
                    found.append(process)
        return found

    def left(self) -> list[str]:
        """Files that only a command which is running may have."""
        patterns = ("run/[!.]*", "tmp/*", "records/.*/s-*", "**/*.tmp", "**/book/studies/.*")
        ours = [path for pattern in patterns for path in self.base.glob(pattern)]
        theirs = [*self.cache.rglob("pgstudies-????????"), *Path("/tmp").glob("pgstudies-????????")]
        ours += [path for path in theirs if _is_ours(path) and not is_locked(path / "owner.lock")]
        return [str(path) for path in ours]


def _is_ours(path: Path) -> bool:
    """Whether it is this account's; what others make in /tmp may be gone by now."""
    with suppress(OSError):
        return path.stat().st_uid == os.geteuid()
    return False


def _block(record: str, block: int) -> bytes | None:
    with suppress(StudyError, OSError):
        rows = read_record(Path(record)).samples.filter(block=block)
        return rows.sort(rows.columns).write_csv().encode()
    return None


def shared_memory(processes: Sequence[psutil.Process]) -> set[str]:
    """The files in /dev/shm and the System V segments that these processes have mapped."""
    found = set()
    for process in processes:
        with suppress(OSError):
            for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
                words = line.split(maxsplit=5)
                if len(words) == 6 and words[5].startswith("/dev/shm/"):
                    found.add(words[5])
                elif len(words) == 6 and words[5].startswith("/SYSV"):
                    found.add(words[4])  # its number, in place of an inode
    return found


def still_there(memory: set[str]) -> list[str]:
    """Those of ``shared_memory`` that nobody has removed."""
    rows = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    numbers = {row.split()[1] for row in rows}
    return sorted(each for each in memory if each in numbers or Path(each).exists())


@dataclass
class Kill:
    """What one kill has done."""

    how: str
    before: int
    ended_s: float = 0.0
    lost: list[str] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)
    memory: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def arguments_of(place: Place) -> list[str]:
    """The command line."""
    blocks = place.blocks
    sides = ["--baseline", place.server, "--candidate", place.server]
    compare = ["compare", *sides, *SIZE, "--blocks", str(blocks)]
    compare += ["--no-instructions", "--report", "report.html"]
    return {
        "run": ["run", STUDY, "--server", place.server, *SIZE, "-p", f"blocks={blocks}"],
        "compare": [*compare, "--study", STUDY],
        "workload": [*compare, "--workload", "shop"],
        "sweep": ["sweep", "sweep.toml", "--local", "1"],
        "book": ["book"],
    }[place.command]


def kill(process: subprocess.Popen[str], how: str) -> float:
    """Kill it in this way; returns how many seconds it took to end."""
    began = time.monotonic()
    if how == "group":
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.send_signal(signal.SIGTERM if how == "SIGTERM" else signal.SIGKILL)
    process.wait()
    return time.monotonic() - began


def wait_for_blocks(place: Place, process: subprocess.Popen[str], wanted: int, part: float) -> bool:
    """Wait until so many more are finished, and a part of what one takes; False if it ended."""
    before = len(place.finished())
    times: list[float] = []
    while len(times) < wanted:
        if process.poll() is not None:
            return False
        times += [time.monotonic()] * (len(place.finished()) - before - len(times))
        time.sleep(0.2)
    usual = (times[-1] - times[0]) / (wanted - 1) if wanted > 1 else PAUSE_S
    with suppress(subprocess.TimeoutExpired):
        process.wait(part * max(usual, PAUSE_S))
    return process.poll() is None


def one_kill(place: Place, how: str, chance: random.Random) -> Kill | None:
    """Start the command, and kill it after a block; None where it came to its end before."""
    process = place.start(*arguments_of(place))
    some = 1 + int((place.blocks - len(place.finished())) * chance.random() / 2)
    if not wait_for_blocks(place, process, some, chance.random()):
        return None
    everything = [*psutil.Process(process.pid).children(recursive=True), *place.processes()]
    memory = shared_memory(everything)
    before = place.finished()
    found = Kill(how, len(before))
    found.ended_s = kill(process, how)
    if how == "SIGTERM" and process.returncode != 130:
        found.wrong.append(f"SIGTERM ends it with {process.returncode}")
    wait_until_dead(everything, GONE_S)
    found.processes = [str(p) for p in {*everything, *place.processes()} if is_alive(p)]
    contents = place.contents()
    found.lost = [f"{path} {block}" for path, block in before - contents.keys()]
    if code := place.run("records"):
        found.wrong.append(f"records ends with {code}")
    found.files = place.left()
    found.memory = still_there(memory)
    found.lost += _changed(contents, place.contents())
    return found


def _changed(before: dict[tuple[str, int], str], after: dict[tuple[str, int], str]) -> list[str]:
    lost = [key for key, digest in before.items() if after.get(key) != digest]
    return [f"{path} {block}" for path, block in lost]


def kills(
    command: str,
    times: int,
    *,
    base: Path,
    seed: int = 1,
    blocks: int = 8,
    in_a_row: int = 1,
    server: str = "embedded",
    cache: Path | None = None,
    tell: Callable[[str], None] = print,
) -> list[Kill]:
    """Kill a command so many times, at most ``in_a_row`` times before it may end."""
    chance = random.Random(f"{command} {seed}")
    ways = [HOW[i % len(HOW)] for i in range(times)]
    chance.shuffle(ways)
    done: list[Kill] = []
    number = 0
    while len(done) < times:
        number += 1
        if command == "book":
            blocks = min(blocks, 6)  # the pages that replay a reference record
        place = Place(
            base / f"{command}-{number}", cache or base / "cache", blocks, command, server
        )
        row: list[Kill] = []
        while len(row) < in_a_row and len(done) + len(row) < times and not place.is_over():
            found = one_kill(place, ways[len(done) + len(row)], chance)
            if found is None:
                break
            row.append(found)
            tell(f"{command}: {found}")
        contents = place.contents()
        doctor = place.run("doctor")
        code = 0 if place.is_over() else place.run(*arguments_of(place))
        if row:
            row[-1].wrong += [f"doctor ends with {doctor}"] if doctor else []
            row[-1].lost += _changed(contents, place.contents())
            row[-1].wrong += _ending(place, code)
            tell(f"{command} ended with {code}: {row[-1]}")
        elif code not in ENDS.get(command, {0}):
            raise StudyError(f"{command} ends with {code} before it is killed: {place.base}")
        done += row
        if not any(map(faults, row)):
            shutil.rmtree(place.base)
    return done


def _ending(place: Place, code: int) -> Iterator[str]:
    """What is wrong with the end of a command that was killed before."""
    if code not in ENDS.get(place.command, {0}):
        yield f"it ends with {code}"
    records = list(place.base.glob("records/[!.]*/*/record.json"))
    if place.command != "book" and len(records) != 1:
        yield f"{len(records)} records in place of one"
    yield from (f"{path} is left at the end" for path in place.left())


def faults(kill: Kill) -> list[str]:
    """All that a kill has lost or left, and whatever else was wrong."""
    return kill.lost + kill.processes + kill.memory + kill.files + kill.wrong


def table(found: dict[str, Sequence[Kill]]) -> str:
    """The table as text."""
    head = ("command", "kills", "after a block", "blocks lost", "processes", "shared memory",
            "files left", "other faults", "SIGTERM, s")  # fmt: skip
    rows: list[tuple[str, ...]] = [head]
    for command, kills_ in found.items():
        sums = [
            sum(len(getattr(one, name)) for one in kills_)
            for name in ("lost", "processes", "memory", "files", "wrong")
        ]
        slowest = max((one.ended_s for one in kills_ if one.how == "SIGTERM"), default=0.0)
        after = sum(one.before > 0 for one in kills_)
        rows.append((command, *map(str, (len(kills_), after, *sums)), f"{slowest:.1f}"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


def main() -> int:
    """Print the table; the exit code is 1 where any number in it should be 0 and is not."""
    commands = ("run", "compare", "workload", "sweep", "book")
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("commands", nargs="+", choices=commands, metavar="COMMAND",
                        help=f"any of {', '.join(commands)}")  # fmt: skip
    parser.add_argument("--times", type=int, default=20, help="kills of each  [default: 20]")
    parser.add_argument("--blocks", type=int, default=8, help="blocks of each run  [default: 8]")
    parser.add_argument("--in-a-row", type=int, default=1, metavar="N",
                        help="kills of one run before it may end  [default: 1]")  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="of the moments  [default: 1]")
    parser.add_argument("--server", default="embedded",
                        help="of the runs and comparisons  [default: embedded]")  # fmt: skip
    parser.add_argument("--cache", type=Path, default=None, metavar="DIR",
                        help="with that server's programs  [default: an empty one]")  # fmt: skip
    given = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="kills-"))
    base.chmod(0o711)
    found: dict[str, Sequence[Kill]] = {}
    for command in given.commands:
        how = {"seed": given.seed, "blocks": given.blocks, "in_a_row": given.in_a_row}
        at = {"server": given.server, "cache": given.cache}
        found[command] = kills(command, given.times, base=base, **how, **at)
        print(table(found), flush=True)
    if any(faults(one) for each in found.values() for one in each):
        print(f"What the commands said, and what they left, is in {base}.")
        return 1
    shutil.rmtree(base)
    return 0


if __name__ == "__main__":
    sys.exit(main())
