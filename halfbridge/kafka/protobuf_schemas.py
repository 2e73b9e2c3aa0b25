"""Protobuf schemas of a registry as descriptors, and which of its messages a value is.

A schema is a file and the files that it imports, each asked for in its serialized form: a
FileDescriptorProto in base64. Confluent's registry has that form of every schema. Apicurio returns
what was registered: base64 by Python's serializer, text by others. The protoc of grpcio-tools
compiles text, if it is installed.

In Confluent's wire format, indexes are between a schema's id and the message: how many there are,
then the place of the message in its file, and for a nested one its place in the message around it.
Each is an int of 32 bits as Protobuf's `sint32`. A single 0 is short for the first message.
"""

from __future__ import annotations

import base64
import subprocess
import sys
from importlib import import_module
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from io import BytesIO

    from halfbridge.kafka.schema_registry import SchemaRegistry

FILES_MAX = 100  # of one schema: each is a request
COMPILE_S_MAX = 30.0  # it takes a tenth of a second
FIRST_MESSAGE = b"\x00"  # indexes
_MAIN = "schema.proto"  # the registry does not have the name of this file


def protobuf_schema(registry: SchemaRegistry, number: int) -> FileDescriptorSet:
    """Return the files of a schema, each after those that it imports: its own file is the last.

    Raises:
        ValueError: a file of the schema is missing, or cannot be compiled; the caller shows why.
        RetriableError: the registry does not answer, or fails; repeat the call later.
    """
    ordered = FileDescriptorSet()
    try:
        files = _descriptors(_texts(registry, number))
    except (DecodeError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"it cannot be read: {error}") from error
    ordered.file.extend(_with_imports(_MAIN, files, set()))
    return ordered


def pool_of(files: FileDescriptorSet) -> DescriptorPool:
    """Return a pool with files that are in the order of `protobuf_schema`, or of protoc.

    Raises TypeError or ValueError: an import is missing, or files contradict each other; the caller
    gives whole schemas.
    """
    pool = DescriptorPool()
    for each in files.file:
        pool.Add(each)
    return pool


def chosen_message(file: FileDescriptorProto, data: BytesIO) -> str:
    """Return the full name of the message that the indexes at the beginning choose; reads these.

    Raises IndexError or ValueError: there are no indexes, or they choose no message of `file`; the
    caller shows the bytes.
    """
    names, kinds = [], file.message_type
    for index in [_index(data) for _ in range(_index(data))] or [0]:
        names.append(kinds[index].name)
        kinds = kinds[index].nested_type
    return _full_name(file, names)


def indexes_of(file: FileDescriptorProto, message: str) -> tuple[bytes, ...]:
    """Return the indexes that choose a message of `file`, in each of their forms; none: not there.

    Example: for the second message `02 02`, for the first one `02 00` and `00`.
    """
    for names, path in _messages(file.message_type):
        if _full_name(file, names) == message:
            whole = b"".join(map(_zigzag, (len(path), *path)))
            return (whole, FIRST_MESSAGE) if path == [0] else (whole,)
    return ()


def _texts(registry: SchemaRegistry, number: int) -> dict[str, str]:
    """Return the files of a schema by name, as the registry has them."""
    answers = {_MAIN: registry.serialized(number)}
    texts: dict[str, str] = {}
    waiting = [_MAIN]
    while waiting:
        name = waiting.pop()
        if (answer := answers[name]) is None:
            raise ValueError(f"the registry does not have {name}")
        texts[name] = answer["schema"]
        for each in answer.get("references") or ():
            if each["name"] in answers:
                continue
            if len(answers) == FILES_MAX:
                raise ValueError(f"it has more than {FILES_MAX} files")
            answers[each["name"]] = registry.version(each["subject"], each["version"])
            waiting.append(each["name"])
    return texts


def _descriptors(texts: dict[str, str]) -> dict[str, Any]:
    try:
        serialized = {name: base64.b64decode(text, validate=True) for name, text in texts.items()}
    except ValueError:
        return {each.name: each for each in _compiled(texts).file}
    files = {name: FileDescriptorProto.FromString(data) for name, data in serialized.items()}
    for name, each in files.items():
        each.name = name  # under which others import it
    return files


def _compiled(texts: dict[str, str]) -> Any:
    """Return the FileDescriptorSet of a schema, with what it imports."""
    try:
        from grpc_tools import protoc  # noqa: PLC0415  (not needed where registries compile)
    except ImportError as error:
        raise ValueError("the registry has only its text; install grpcio-tools") from error
    with TemporaryDirectory() as directory:
        for name, text in texts.items():
            if ".." in PurePosixPath(name).parts or PurePosixPath(name).is_absolute():
                raise ValueError(f"it imports {name}")
            path = Path(directory, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        out = Path(directory, "descriptors")
        # By its path: with -m, Python would import what the registry has put into this directory.
        done = subprocess.run(  # noqa: S603 (see above)
            [sys.executable, protoc.__file__, "-I.", "--include_imports", f"-o{out}", _MAIN],
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMPILE_S_MAX,
        )
        if done.returncode:
            raise ValueError("; ".join(done.stderr.splitlines()))
        return FileDescriptorSet.FromString(out.read_bytes())


def _with_imports(
    name: str, files: dict[str, Any], yielded: set[str]
) -> Iterator[FileDescriptorProto]:
    """Yield a file after those that it imports, each once."""
    if name in yielded:
        return
    yielded.add(name)
    file = files.get(name) or _well_known(name)
    for each in file.dependency:
        yield from _with_imports(each, files, yielded)
    yield file


def _well_known(name: str) -> Any:
    """Return a file that comes with Protobuf and not from the registry."""
    parts = name.removesuffix(".proto").split("/")
    if parts[0] != "google" or not all(each.isidentifier() for each in parts):
        raise ValueError(f"the registry does not have {name}, which it imports")
    file = FileDescriptorProto()
    import_module(f"{'.'.join(parts)}_pb2").DESCRIPTOR.CopyToProto(file)
    return file


def _messages(kinds: Iterable[Any]) -> Iterator[tuple[list[str], list[int]]]:
    """Yield the names and places that lead to each message, outer ones first."""
    for at, each in enumerate(kinds):
        yield [each.name], [at]
        for names, path in _messages(each.nested_type):
            yield [each.name, *names], [at, *path]


def _full_name(file: FileDescriptorProto, names: list[str]) -> str:
    return ".".join([file.package, *names] if file.package else names)


def _index(data: BytesIO) -> int:
    """Read an index: zigzag, 7 bits a byte, low bits first. None of them is negative."""
    value = 0
    for shift in range(0, 35, 7):
        (byte,) = data.read(1)
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            break
    return value >> 1


def _zigzag(index: int) -> bytes:
    """Return an index as `_index` reads it."""
    value, made = index << 1, bytearray()
    while value > 0x7F:  # noqa: PLR2004 (7 bits)
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
