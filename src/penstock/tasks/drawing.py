"""Draw a workflow: as text, as a Mermaid diagram, or in the language of Graphviz (DOT)."""

from collections.abc import Sequence

from penstock.tasks.run import StepState

_COLOURS = {
    "done": "#c8e6c9",
    "leased": "#bbdefb",
    "ready": "#fff9c4",
    "scheduled": "#ffe0b2",
    "dead": "#ffcdd2",
    "cancelled": "#e0e0e0",
    "expired": "#e0e0e0",
}
_OTHER = "#ffffff"
FORMATS = ("text", "mermaid", "dot")


def draw(steps: Sequence[StepState], form: str) -> str:
    """Return a drawing of a workflow in one of `FORMATS`."""
    return {"text": as_text, "mermaid": as_mermaid, "dot": as_dot}[form](steps)


def as_text(steps: Sequence[StepState]) -> str:
    """Return a line for each step: its state, its name, and what it comes after.

    >>> first = StepState("a", "f", [], "1", "done", "")
    >>> print(as_text([first, StepState("b", "g", ["a"], "2", "ready", "")]))
    done   a  f
    ready  b  g  after a
    """
    wide = max((len(step.state) for step in steps), default=0)
    longest = max((len(step.name) for step in steps), default=0)
    has_queues = len({step.queue for step in steps}) > 1
    lines = []
    for step in steps:
        line = f"{step.state:<{wide}}  {step.name:<{longest}}  {step.task}"
        if has_queues:
            line += f" in {step.queue}"
        if step.after:
            line += f"  after {_some(step.after)}"
        if step.reason:
            line += f"  ({step.reason})"
        lines.append(line)
    return "\n".join(lines)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def as_mermaid(steps: Sequence[StepState]) -> str:
    """Return a flowchart of Mermaid."""
    numbers = {step.name: number for number, step in enumerate(steps)}
    lines = ["flowchart TD"]
    for number, step in enumerate(steps):
        lines.append(f'    s{number}["{_mermaid_text(step.name)}<br/>{step.state}"]')
        lines += [f"    s{numbers[name]} --> s{number}" for name in step.after if name in numbers]
    for state in sorted({step.state for step in steps}):
        members = ",".join(f"s{n}" for n, step in enumerate(steps) if step.state == state)
        lines.append(f"    style {members} fill:{_COLOURS.get(state, _OTHER)}")
    return "\n".join(lines)


def _mermaid_text(text: str) -> str:
    """Return text with what Mermaid would read as syntax as entities."""
    return "".join(one if one.isalnum() or one in " _-.:/" else f"#{ord(one)};" for one in text)


def as_dot(steps: Sequence[StepState]) -> str:
    """Return a graph of Graphviz."""
    lines = ["digraph workflow {", "    node [shape=box, style=filled];"]
    numbers = {step.name: number for number, step in enumerate(steps)}
    for number, step in enumerate(steps):
        label = step.name.replace("\\", "\\\\").replace('"', '\\"')
        colour = _COLOURS.get(step.state, _OTHER)
        lines.append(f'    s{number} [label="{label}\\n{step.state}", fillcolor="{colour}"];')
        lines += [f"    s{numbers[name]} -> s{number};" for name in step.after if name in numbers]
    return "\n".join([*lines, "}"])
