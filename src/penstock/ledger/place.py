"""Where a queue may be: in a directory that is one, or that can become one, on a local disk."""

from penstock.errors import NotALedger, RefusedFileSystem
from penstock.ledger.folder import Folder
from penstock.ledger.manifest import MANIFEST_NAME

_EARLY_NAMES = frozenset(["LOCK", "messages", "events", "snapshots"])  # made before queue.json
_NETWORK_FILE_SYSTEMS = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "ncpfs",
        "afs",
        "ceph",
        "glusterfs",
        "lustre",
        "9p",
        "fuse.sshfs",
        "fuse.glusterfs",
        "fuse.s3fs",
        "fuse.rclone",
    ]
)


def check_place(root: Folder, *, create: bool, network_too: bool) -> None:
    """Make the directory where there is none and `create` allows it; refuse what cannot be a queue.

    NotALedger and RefusedFileSystem say why, and nothing was changed.
    """
    if not root.exists():
        if not create:
            raise NotALedger(f"{root.path} does not exist")
        make_with_parents(root)
    elif not is_made(root):
        if not create:
            raise NotALedger(f"{root.path} is not a queue: there is no {MANIFEST_NAME} in it")
        strangers = [name for name in root.names() if name not in _EARLY_NAMES]
        if strangers and not is_made(root):  # another process may have made it since
            raise NotALedger(
                f"{root.path} is not a queue and not empty ({strangers[0]!r} is in it): name an "
                f"empty directory, or a new one"
            )
        root.parent().sync()  # perhaps we died right after making it
    kind = root.files.file_system(root.path)
    if kind in _NETWORK_FILE_SYSTEMS and not network_too:
        raise RefusedFileSystem(
            f"{root.path} is on a network file system ({kind}), where locks and syncs cannot be "
            f"relied upon. Use a local disk, or set allow_network_file_system=True."
        )


def make_with_parents(folder: Folder) -> None:
    """Make a directory and the parents that are missing, each durable before the next is made."""
    missing = []
    while not folder.exists() and folder.path != folder.parent().path:
        missing.append(folder)
        folder = folder.parent()
    if missing:
        folder.parent().sync()  # a process may have died right after making this one
    for one in reversed(missing):
        one.make()
        one.parent().sync()


def is_made(root: Folder) -> bool:
    """Is there a queue? Not where its making was cut off: then nobody was answered yet."""
    return root.has(MANIFEST_NAME) or any(
        root.child(name).names() for name in ("messages", "events")
    )
