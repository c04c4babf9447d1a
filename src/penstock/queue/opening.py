"""Open a queue's directory: its settings, its ledger, its clock, and the core over them."""

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType

from penstock.checking import MEMORY
from penstock.clock import Clock, SystemClock
from penstock.errors import EntryGone, InvalidInput, PenstockError
from penstock.ledger import Damage, Ledger
from penstock.ledger.files import Files
from penstock.ledger.memory_files import MemoryFiles
from penstock.queue.core import QueueClock, QueueCore
from penstock.queue.retry import RetryPolicy, check_retry_policy
from penstock.queue.settings import QueueSettings

_LOOKS = 10  # at a directory that a writer changes


def open_core(
    path: str,
    settings: Mapping[str, object],
    *,
    read_only: bool = False,
    create: bool = True,
    files: Files | None = None,
    clock: Clock | None = None,
    on_damage: Callable[[Damage], None] | None = None,
    own_lock: bool = True,
    on_dirty: Callable[[], None] | None = None,
    on_stop: Callable[[PenstockError], None] | None = None,
    if_unstored: Mapping[str, object] | None = None,
    own_timer: bool = True,
    retry_policy: RetryPolicy | None = None,
) -> QueueCore:
    """Open a queue without a facade. The path `memory:` is a new queue in memory.

    `if_unstored`: the settings of a queue that has none stored. `own_timer`: compact every
    `compact_interval_s`, and publish what schedules say; False if the caller does.
    """
    check_retry_policy(retry_policy)
    if path == MEMORY:
        path, files = f"/{MEMORY}", files or MemoryFiles()
    queue_clock = QueueClock(clock or SystemClock())
    stored = Ledger.stored_queue_settings(path, files=files)
    effective = QueueSettings.of(settings, QueueSettings.of_stored(stored or if_unstored or {}))
    looks = _LOOKS if read_only else 1
    while True:
        ledger = Ledger.open(
            path,
            effective.storage.ledger_settings(),
            files=files,
            clock=queue_clock,
            read_only=read_only,
            create=create,
            queue_settings=effective.as_dict(),
            on_damage=on_damage,
            own_lock=own_lock,
            on_dirty=on_dirty,
            on_stop=on_stop,
        )
        try:
            if not read_only and ledger.queue_settings != effective.as_dict():
                ledger.save_queue_settings(effective.as_dict())
            queue_clock.start_after(
                max(ledger.messages.last_timestamp_ns, ledger.events.last_timestamp_ns)
            )
            core = QueueCore(ledger, effective, queue_clock, retry_policy=retry_policy)
            core.compact_in_background(effective.storage.compact_interval_s if own_timer else 0.0)
            if own_timer:
                core.fire_in_background()
            return core
        except EntryGone:  # a writer beside this reader removed files that it needs
            ledger.close()
            looks -= 1
            if not looks:
                raise
        except BaseException:
            ledger.close()
            raise


def check_directory_options(read_only: bool, settings: Mapping[str, object]) -> None:
    """Raise InvalidInput if settings are given that would not be stored."""
    if read_only and settings:
        raise InvalidInput(
            f"read_only changes nothing, so {', '.join(settings)} would not be stored: give "
            f"settings to the writer"
        )


def check_url_options(read_only: bool, retry_policy: object, *, shared: bool = False) -> None:
    """Raise InvalidInput if an option is given that only a directory has."""
    if shared:
        raise InvalidInput("shared is for directories: any number of processes may use a broker")
    if read_only:
        raise InvalidInput("read_only is for directories: a key says what a client may do")
    if retry_policy is not None:
        raise InvalidInput("retry_policy is for directories: a broker retries by its settings")


def check_shared_options(read_only: bool, retry_policy: object) -> None:
    """Raise InvalidInput for an option that a shared directory does not have."""
    if read_only:
        raise InvalidInput("read_only needs no shared=True: it takes no lock, so leave it out")
    if retry_policy is not None:
        raise InvalidInput(
            "retry_policy is a function of one process, and any process may hold a shared "
            "directory: use the backoff settings of the queue"
        )


def shared_package() -> ModuleType:
    """Return `penstock.shared`, a higher layer. Raise PenstockError if its extra is missing."""
    try:
        return import_module("penstock.shared")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("penstock"):
            raise
        raise PenstockError(
            f"shared=True needs the package {error.name!r}, which is not installed; "
            f"install Penstock with the extra server (pip install '.[server]' in its checkout)"
        ) from None
