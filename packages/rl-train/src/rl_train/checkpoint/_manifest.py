"""The manifest of a checkpoint, and the checks of the files that it lists."""

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn, TypeAlias, cast, get_args

from rl_core.errors import CheckpointError
from rl_core.stateful import StateReader
from rl_core.types import Json
from rl_train.checkpoint._durable import FileRecord
from rl_train.checkpoint._state_tree import decode_state

FORMAT = 1
"""The version of the layout; checkpoints of later versions are refused."""

ResumeGrade: TypeAlias = Literal["exact", "episode", "weights"]
"""What resuming restores: everything, everything but the running episodes, or only weights."""

TENSORS = "tensors.safetensors"
STATE = "state.json"
RECIPE = "recipe.toml"
MANIFEST = "manifest.json"

STEP_NAME = re.compile(r"step-(0|[1-9][0-9]{0,17})", re.ASCII)

_MAX_BYTES = {STATE: 16 * 2**20, MANIFEST: 2**20, RECIPE: 2**20}
_MAX_JSON_NODES = 2_000_000


@dataclass(frozen=True, slots=True)
class Manifest:
    """Facts about a checkpoint and its files."""

    step: int
    resume_grade: ResumeGrade
    versions: Mapping[str, str]
    metadata: Mapping[str, Json]
    files: Mapping[str, FileRecord]


def verify_checkpoint(path: Path) -> Manifest:
    """Check every file of a checkpoint against its manifest, without building the state.

    Raises:
        CheckpointError: as `load_checkpoint` does.
    """
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a directory; expected a checkpoint")
    manifest = read_manifest(path)
    for name, record in manifest.files.items():
        size = _regular_size(path, name)
        if size != record.size:
            damaged(path, name, f"has {size} bytes; its manifest says {record.size}")
        with reporting(path, name), open(path / name, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != record.sha256:
            damaged(path, name, "does not match the SHA-256 in its manifest")
    return manifest


def read_manifest(path: Path) -> Manifest:
    """Read a manifest and check it against its own digest.

    Raises:
        CheckpointError: when it is missing, altered in any bit, or of a later format.
    """
    raw = read_limited(path, MANIFEST)
    document = parse_json(path, MANIFEST, raw)
    facts = document.get("manifest") if isinstance(document, dict) else None
    if not isinstance(facts, dict):
        damaged(path, MANIFEST, "is not a manifest")
    version = facts.get("format")
    if isinstance(version, int) and version > FORMAT:
        raise CheckpointError(
            f"{path / MANIFEST} has format {version}, and this rl-train reads up to {FORMAT};"
            " upgrade it: pip install --upgrade rl-train"
        )
    if version != FORMAT or not _is_sealed(facts, raw):
        damaged(path, MANIFEST, "does not match its own digest")
    try:
        manifest = _manifest_from(StateReader(facts, "manifest"))
    except CheckpointError as error:
        damaged(path, MANIFEST, f"lacks or garbles a field ({error})")
    match = STEP_NAME.fullmatch(path.name)
    if match and int(match[1]) != manifest.step:
        damaged(path, MANIFEST, f"is of step {manifest.step}: the directory was renamed")
    return manifest


def manifest_bytes(facts: Mapping[str, Json]) -> bytes:
    """Return the text of a manifest with these facts and its digest.

    Raises:
        CheckpointError: when it is too large to be read back.
    """
    stamped: Json = {"format": FORMAT, **facts}
    inner = json.dumps(stamped, sort_keys=True, allow_nan=False).encode()
    digest = hashlib.sha256(inner).hexdigest()
    return json_bytes({"manifest": stamped, "sha256": digest}, MANIFEST)


def json_bytes(document: Json, name: str) -> bytes:
    """Return a document as JSON text that `parse_json` accepts.

    Raises:
        CheckpointError: when it is larger than what is read back.
    """
    raw = json.dumps(document, sort_keys=name == MANIFEST, allow_nan=False).encode()
    if len(raw) > _MAX_BYTES[name] or _nodes(raw) > _MAX_JSON_NODES:
        raise CheckpointError(
            f"{name} would have {len(raw)} bytes and {_nodes(raw)} values; expected at most"
            f" {_MAX_BYTES[name]} and {_MAX_JSON_NODES}: keep long lists as tensors"
        )
    return raw


def parse_json(path: Path, name: str, raw: bytes) -> Json:
    """Parse strict JSON of bounded size.

    Raises:
        CheckpointError: when it is malformed or holds too many values.
    """
    # Counted before parsing: a few bytes of text can become a hundred bytes of objects.
    if _nodes(raw) > _MAX_JSON_NODES:
        damaged(path, name, f"has more than {_MAX_JSON_NODES} values")
    try:
        return cast("Json", json.loads(raw, parse_constant=_refuse_constant))
    except (ValueError, RecursionError) as error:
        damaged(path, name, f"is not valid JSON ({error})")


def read_limited(path: Path, name: str) -> bytes:
    """Return the contents of one of a checkpoint's small files.

    Raises:
        CheckpointError: when it is missing, not a regular file, or too large.
    """
    size = _regular_size(path, name)
    if size > _MAX_BYTES[name]:
        damaged(path, name, f"has {size} bytes; expected at most {_MAX_BYTES[name]}")
    with reporting(path, name), open(path / name, "rb") as file:
        return file.read(_MAX_BYTES[name] + 1)


@contextlib.contextmanager
def reporting(path: Path, name: str) -> Iterator[None]:
    """Turn errors within a block into one that names the file.

    Raises:
        CheckpointError: for every error of the disk or of the contents.
    """
    try:
        yield
    except OSError as error:
        damaged(path, name, f"cannot be read ({error.strerror or error})")
    except CheckpointError as error:
        damaged(path, name, f"is damaged: {error}")


def damaged(path: Path, name: str, what: str) -> NoReturn:
    """Raise the error for a damaged file of a checkpoint.

    Raises:
        CheckpointError: always.
    """
    raise CheckpointError(
        f"{path / name} {what}; resume from an earlier checkpoint, or restore this one from a copy"
    )


def _is_sealed(facts: Mapping[str, Json], raw: bytes) -> bool:
    # The bytes are compared, not the parsed values, so that a flip of any bit is noticed.
    try:
        return manifest_bytes(facts) == raw
    except (CheckpointError, RecursionError):
        return False


def _manifest_from(facts: StateReader) -> Manifest:
    grade, files = facts.text("resume_grade"), facts.reader("files")
    if grade not in get_args(ResumeGrade):
        raise CheckpointError(f"resume_grade is {grade!r}")
    names = facts.tree("files").keys()
    if not {TENSORS, STATE} <= names <= {TENSORS, STATE, RECIPE}:
        raise CheckpointError(f"files are {', '.join(sorted(names))[:200]}")
    records = {name: files.reader(name) for name in names}
    return Manifest(
        step=facts.count("step"),
        resume_grade=cast("ResumeGrade", grade),
        versions={name: str(version) for name, version in facts.tree("versions").items()},
        metadata=cast("Mapping[str, Json]", decode_state(cast("Json", facts.tree("metadata")), {})),
        files={n: FileRecord(one.count("size"), one.text("sha256")) for n, one in records.items()},
    )


def _regular_size(path: Path, name: str) -> int:
    try:
        status = os.lstat(path / name)
    except FileNotFoundError:
        damaged(path, name, "is missing")
    except OSError as error:
        damaged(path, name, f"cannot be read ({error.strerror})")
    if not stat.S_ISREG(status.st_mode):
        damaged(path, name, "is not a regular file")
    return status.st_size


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _nodes(raw: bytes) -> int:
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")
