"""Values that were written with a Protobuf schema of a registry, as JSON's values.

A schema is a file and the files that it imports, each asked for in its serialized form: a
FileDescriptorProto in base64. Confluent's registry has that form of every schema. Apicurio returns
what was registered: base64 by Python's serializer, text by others. The protoc of grpcio-tools
compiles text, if it is installed.
"""

from __future__ import annotations

import base64
import subprocess
import sys
from importlib import import_module
from io import BytesIO
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.kafka.schema_registry import SchemaRegistry

FILES_MAX = 100  # of one schema: each is a request
COMPILE_S_MAX = 30.0  # it takes a tenth of a second
_MAIN = "schema.proto"  # the registry does not have the name of this file


def protobuf_decoder(registry: SchemaRegistry, number: int) -> Callable[[bytes], Any]:
    """Return the function that decodes what is behind a schema's id.

    Raises:
        ValueError: a file of the schema is missing, or cannot be compiled; the caller shows why.
        RetriableError: the registry does not answer, or fails; repeat the call later.
    """
    files = _descriptors(_texts(registry, number))
    main, pool = files[_MAIN], DescriptorPool()
    _add(pool, _MAIN, files, set())

    def decoded(body: bytes) -> Any:
        data = BytesIO(body)
        kind = GetMessageClass(pool.FindMessageTypeByName(_message_name(main, data)))
        return MessageToDict(
            kind.FromString(data.read()),
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
            descriptor_pool=pool,
        )

    return decoded


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
        from grpc_tools import protoc
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


def _add(pool: DescriptorPool, name: str, files: dict[str, Any], added: set[str]) -> None:
    """Add a file to the pool, after those that it imports."""
    if name in added:
        return
    added.add(name)
    file = files.get(name) or _well_known(name)
    for each in file.dependency:
        _add(pool, each, files, added)
    pool.Add(file)


def _well_known(name: str) -> Any:
    """Return a file that comes with Protobuf and not from the registry."""
    parts = name.removesuffix(".proto").split("/")
    if parts[0] != "google" or not all(each.isidentifier() for each in parts):
        raise ValueError(f"the registry does not have {name}, which it imports")
    file = FileDescriptorProto()
    import_module(f"{'.'.join(parts)}_pb2").DESCRIPTOR.CopyToProto(file)
    return file


def _message_name(file: Any, data: BytesIO) -> str:
    """Return the full name of the message that the indexes in front of it choose; reads these."""
    names, kinds = [], file.message_type
    for index in [_index(data) for _ in range(_index(data))] or [0]:  # no indexes: the first one
        names.append(kinds[index].name)
        kinds = kinds[index].nested_type
    return ".".join([file.package, *names] if file.package else names)


def _index(data: BytesIO) -> int:
    """Read an int of 32 bits, zigzag: 7 bits a byte, low bits first. None of them is negative."""
    value = 0
    for shift in range(0, 35, 7):
        (byte,) = data.read(1)
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            break
    return value >> 1
