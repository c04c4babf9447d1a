"""`penstock compact`: give disk space back."""

from penstock.cli.opening import writing
from penstock.cli.parameters import AsJson, QueuePath
from penstock.cli.terminal import open_progress, say, write_json
from penstock.cli.words import number, size


def compact(path: QueuePath, json: AsJson = False) -> None:
    """Give back the disk space of messages that every group is done with, past retention."""
    with open_progress() as progress:
        task = progress.add_task("opening", total=None)
        with writing(path) as queue:
            progress.update(task, description="compacting")
            result = queue.compact(
                on_progress=lambda so_far: progress.update(
                    task, description=f"compacting, {size(so_far.bytes_freed)} freed"
                )
            )
            progress.update(task, description="closing")
    if json:
        write_json(
            {
                "bytes_freed": result.bytes_freed,
                "segments_removed": result.segments_removed,
                "segments_rewritten": result.segments_rewritten,
            }
        )
        return
    say(
        f"{size(result.bytes_freed)} freed: {number(result.segments_removed, 'segment')} removed, "
        f"{number(result.segments_rewritten)} rewritten."
    )
