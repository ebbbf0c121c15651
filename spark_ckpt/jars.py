"""Locked jars, fetched by the Ivy that PySpark ships. Connectors declare the jars that a session needs.

`fetch` returns paths whose content has the locked SHA-256, and downloads jars that the user's cache lacks. Each
artefact is locked alone, without following its POM: jars that PySpark already ships are omitted. A lock may list other
working versions of an artefact, for mirrors that lack the first one. Java and Ivy are the only tools; no Maven, no
shell.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import util
from importlib.resources.abc import Traversable
from pathlib import Path
from xml.sax.saxutils import quoteattr

from spark_ckpt.errors import ConfigInvalid, EnvironmentUnfit
from spark_ckpt.temporary_folder import TemporaryFolder
from spark_ckpt.wording import counted

JAVA_VERSION = 17
SETTINGS_VARIABLE = "SPARK_CKPT_IVY_SETTINGS"
_INSTALL_JAVA = f"install a JDK {JAVA_VERSION} or 21 and set JAVA_HOME"
_JAVA_OPTIONS = frozenset({"JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"})
VERSION_TIMEOUT_S = 60
_DOWNLOAD_TIMEOUT_S = 900
_LOCK_FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")

_SETTINGS = """<ivysettings>
  <settings defaultResolver="default"/>
  <resolvers><ibiblio name="default" m2compatible="true" usepoms="false" checksums=""/></resolvers>
</ivysettings>
"""
"""Ivy settings with Ivy's default repository. Checksum files are skipped, because every jar has a locked SHA-256."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One version of one artefact, and the SHA-256 of its file. Raises `ConfigInvalid` for invalid parts."""

    group: str
    artifact: str
    version: str
    sha256: str

    def __post_init__(self) -> None:
        """Raise `ConfigInvalid` for names that no repository has: they become part of a path and of an address."""
        for part in (self.group, self.artifact, self.version):
            if not _NAME.fullmatch(part):
                raise ConfigInvalid(
                    f"{part!r} is not part of a jar's name", hint="GROUP:ARTIFACT:VERSION, as Maven has it"
                )
        if not _SHA256.fullmatch(self.sha256):
            raise ConfigInvalid(f"{self} is not locked: its sha256 is 64 hexadecimal digits, not {self.sha256!r}")

    @property
    def file_name(self) -> str:
        """File name in the repository and in the cache."""
        return f"{self.artifact}-{self.version}.jar"

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"


Choice = Sequence[Jar]
"""Versions of one artefact that all work, the best first."""


def fetch(choices: Sequence[Choice], what: str) -> list[Path]:
    """Return the paths of the jars in the user's cache, one version of each choice, every content checked.

    `what`: name of the jars' owner, for messages. Raises `EnvironmentUnfit` if a jar is neither cached nor
    downloadable, or if its content differs from the lock.
    """
    if not choices:
        return []
    folder = cache_folder()
    found = [_cached(folder, choice) for choice in choices]
    if None in found:
        with _exclusive(folder):
            # Looked up again under the lock: another process may have downloaded them meanwhile.
            _download(folder, [choice for choice in choices if _cached(folder, choice) is None])
            found = [_cached(folder, choice) for choice in choices]
    missing = [choice[0] for choice, path in zip(choices, found, strict=True) if path is None]
    if missing:
        raise _not_downloaded(what, missing)
    return [path for path in found if path is not None]


def read_lock(place: Traversable) -> tuple[Choice, ...]:
    """Return the choices of a lock file. Raises `ConfigInvalid` for any other content.

    Format: `{"format": 1, "jars": [{"group", "artifact", "versions": [{"version", "sha256"}]}]}`.
    """
    try:
        lock = json.loads(place.read_text())
        if lock["format"] != _LOCK_FORMAT:
            raise ConfigInvalid(f"{place} has format {lock['format']!r}, {_LOCK_FORMAT} is known")
        return tuple(
            tuple(Jar(row["group"], row["artifact"], one["version"], one["sha256"]) for one in row["versions"])
            for row in lock["jars"]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigInvalid(f"{place} is not a lock file of jars: {type(error).__name__}: {error}") from error


def cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/spark_ckpt/jars`, by default below `~/.cache`. Create it if it is missing.

    Raises `EnvironmentUnfit`.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "spark_ckpt" / "jars"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentUnfit(
            f"the jar cache cannot be created: {error.strerror}",
            hint="set XDG_CACHE_HOME to a folder that this user can write",
            folder=folder,
        ) from error
    return folder


@cache
def find_java() -> Path:
    """Return the `java` of JAVA_HOME or of PATH. Raises `EnvironmentUnfit` if there is none, or if it is older than 17."""
    home = os.environ.get("JAVA_HOME")
    # As Spark's own scripts: JAVA_HOME before PATH.
    place = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if place is None:
        where = "JAVA_HOME has no bin/java" if home else "there is no java on PATH"
        raise EnvironmentUnfit(where, hint=_INSTALL_JAVA, JAVA_HOME=home)
    version = _java_version(Path(place))
    if version < JAVA_VERSION:
        raise EnvironmentUnfit(
            f"Java {version} is too old, {JAVA_VERSION} is the oldest that works",
            hint=_INSTALL_JAVA,
            java=place,
        )
    return Path(place)


def pyspark_jars() -> Path:
    """Return the folder of the jars that the installed PySpark ships. Raises `EnvironmentUnfit`."""
    spec = util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise EnvironmentUnfit("PySpark is not installed", hint="pip install 'spark-ckpt[jobs]'")
    return Path(spec.origin).parent / "jars"


@cache
def reported_version(java: Path) -> str:
    """Return the output of `java -version`. It runs once per program, because it starts a JVM.

    Options that Java reads from the environment are removed, because Java would print them. Raises `EnvironmentUnfit`.
    """
    plain = {name: value for name, value in os.environ.items() if name not in _JAVA_OPTIONS}
    command, limit_s = [str(java), "-version"], VERSION_TIMEOUT_S
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False, env=plain)
    except (OSError, subprocess.TimeoutExpired) as error:
        slow = isinstance(error, subprocess.TimeoutExpired)
        why = f"java tells no version within {limit_s} s" if slow else f"java cannot be run: {error}"
        raise EnvironmentUnfit(why, hint="set JAVA_HOME to a working JDK", java=java) from error
    return run.stderr + run.stdout


def _java_version(java: Path) -> int:
    """Return the feature release (17, 21, ...). 1.8 counts as 1, older than any accepted version."""
    match = re.search(r'version "(\d+)', reported_version(java))
    if match is None:
        raise EnvironmentUnfit("java does not tell its version", hint="set JAVA_HOME to a working JDK", java=java)
    return int(match.group(1))


def _cached(folder: Path, choice: Choice) -> Path | None:
    """Return the first version of the choice that is in the cache with the right content; None if there is none."""
    for jar in choice:
        path = folder / jar.file_name
        if path.is_file() and _sha256(path) == jar.sha256:
            return path
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Allow one downloading process at a time. The lock ends with its process, so a killed one blocks no other."""
    with (folder / ".lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _download(folder: Path, choices: Sequence[Choice]) -> None:
    """Fetch one version of every choice: all first ones in one JVM, then the second ones of those still missing."""
    rank = 0
    while wanted := [choice[rank] for choice in choices if rank < len(choice)]:
        # In the cache's own folder, so that a jar reaches its final name by a rename.
        with TemporaryFolder("ivy", str(folder)) as work:
            run_ivy(work, wanted)
            for jar in wanted:
                _adopt(folder, work, jar)
        choices = [choice for choice in choices if _cached(folder, choice) is None]
        rank += 1


def run_ivy(work: Path, jars: Sequence[Jar]) -> None:
    """Let Ivy download into `work`. Its exit code is ignored; the files that arrived count."""
    (work / "settings.xml").write_text(_SETTINGS)
    (work / "ivy.xml").write_text(_module(jars))
    settings = os.environ.get(SETTINGS_VARIABLE) or str(work / "settings.xml")
    command = [str(find_java()), "-Xmx256m", "-cp", str(_ivy_jar()), "org.apache.ivy.Main"]
    command += ["-settings", settings, "-ivy", str(work / "ivy.xml")]
    command += ["-cache", str(work / "cache"), "-confs", "default"]
    log = work.parent / "ivy.log"  # `work` is deleted after an error, too
    try:
        with log.open("wb") as output:
            subprocess.run(command, stdout=output, stderr=output, timeout=_DOWNLOAD_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise EnvironmentUnfit(
            f"downloading jars took longer than {_DOWNLOAD_TIMEOUT_S} s",
            hint=f"check the network, or set {SETTINGS_VARIABLE} to an Ivy settings file of a near mirror",
            log=log,
        ) from error


def _module(jars: Sequence[Jar]) -> str:
    rows = [
        f"<dependency org={quoteattr(jar.group)} name={quoteattr(jar.artifact)} rev={quoteattr(jar.version)}"
        ' transitive="false" conf="default->*"/>'
        for jar in jars
    ]
    return (
        '<ivy-module version="2.0"><info organisation="spark_ckpt" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(rows)}</dependencies></ivy-module>"
    )


def _ivy_jar() -> Path:
    found = sorted(pyspark_jars().glob("ivy-*.jar"))
    if not found:
        raise EnvironmentUnfit(
            "this PySpark ships no Ivy", hint="install PySpark from a wheel: pip install 'spark-ckpt[jobs]'"
        )
    return found[-1]


def _adopt(folder: Path, work: Path, jar: Jar) -> None:
    """Move a downloaded jar into the cache under its final name, in one step, if its content is the locked one."""
    arrived = next((work / "cache" / jar.group).rglob(jar.file_name), None)
    if arrived is None:
        return
    digest = _sha256(arrived)
    if digest != jar.sha256:
        raise EnvironmentUnfit(
            f"the downloaded {jar} is not the locked one",
            hint=f"a mirror changed it; set {SETTINGS_VARIABLE} to Ivy settings of a repository you trust",
            expected_sha256=jar.sha256,
            got_sha256=digest,
        )
    # Synced before the rename: a power loss must not leave an empty file under the final name.
    with arrived.open("rb") as stream:
        os.fsync(stream.fileno())
    arrived.replace(folder / jar.file_name)


def _not_downloaded(what: str, missing: Sequence[Jar]) -> EnvironmentUnfit:
    names = ", ".join(map(str, missing))
    return EnvironmentUnfit(
        f"{counted(len(missing), 'jar')} of {what} could not be downloaded: {names}",
        hint=(
            "check the network and proxy (JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=...), set "
            f"{SETTINGS_VARIABLE} to Ivy settings of your mirror, or copy the jars into the cache folder"
        ),
        cache=cache_folder(),
        log=cache_folder() / "ivy.log",
    )
