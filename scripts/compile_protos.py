"""Compile the .proto files into interfaces.binpb, which ships with the package.

It needs grpcio-tools, which the development environment has.
"""

import sys
from pathlib import Path

from grpc_tools import protoc
from grpc_tools.protoc import _get_resource_file_name as resource

SOURCE = Path(__file__).resolve().parents[1] / "src"
PACKAGE = SOURCE / "penstock" / "protobuf"
COMPILED = PACKAGE / "interfaces.binpb"


def compile_protos(target: Path) -> None:
    """Write the descriptors of all .proto files, and of what they import, to a file."""
    files = sorted(str(path.relative_to(SOURCE)) for path in PACKAGE.glob("*.proto"))
    included = [f"-I{SOURCE}", f"-I{resource('grpc_tools', '_proto')}"]
    status = protoc.main(["protoc", *included, f"--descriptor_set_out={target}", *files])
    if status:
        sys.exit(status)


if __name__ == "__main__":
    compile_protos(COMPILED)
