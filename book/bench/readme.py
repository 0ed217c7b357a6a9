"""How long README's two commands take, in a fresh clone and with empty caches.

``python -m book.bench.readme`` clones the checkout's last commit into a temporary directory, runs
both commands there without anything of the caller's environment, and adds a row for each to
``readme.csv``: date, revision, processor, cores, command, minutes.  README says of which machines
its minutes are; a test compares them.  Nothing else may run meanwhile.
"""

from __future__ import annotations

import csv
import os
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from pgservers.host.facts import cpu_model
from pgservers.paths import ROOT
from pgservers.terminal import tell

MEASURED = Path(__file__).with_suffix(".csv")
COMMANDS = ("make book", "make test")


def main() -> None:
    """Measure both and keep the rows; raises CalledProcessError where one fails."""
    said = ["git", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD"]
    revision = subprocess.run(said, check=True, capture_output=True, text=True).stdout.strip()
    for command in COMMANDS:
        with tempfile.TemporaryDirectory() as home:
            clone = Path(home, "checkout")
            subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
            begun = time.monotonic()
            alone = {"HOME": home, "PATH": os.defpath + ":/usr/local/bin", "LANG": "C.UTF-8"}
            subprocess.run(command.split(), check=True, cwd=clone, env=alone)
            minutes = f"{(time.monotonic() - begun) / 60:.2f}"
        date = f"{datetime.now(UTC):%Y-%m-%d}"
        row = [date, revision, cpu_model(), os.cpu_count(), command, minutes]
        with MEASURED.open("a", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(row)
        tell(", ".join(map(str, row)))


if __name__ == "__main__":
    main()
