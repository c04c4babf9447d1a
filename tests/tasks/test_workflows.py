"""Workflows: order, results from step to step, failures, retries, cancelling, drawing."""

from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.errors import InvalidInput, NoSuchMessage
from penstock.queue import events, history
from penstock.queue.facade import AnyQueue
from penstock.tasks import Discard, GiveUp, Tasks, Workflow, chain, chord, group
from penstock.tasks.drawing import draw
from penstock.tasks.envelope import Plan
from penstock.tasks.run import read_plan
from tests.server.running import RunningServer


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def flows(tasks: Tasks, ran: list[str]) -> Tasks:
    """Tasks that note what ran. `fail` fails while its name is in `broken`."""

    @tasks.task
    def fetch(n: int) -> list[int]:
        ran.append(f"fetch {n}")
        return list(range(n))

    @tasks.task
    def total(numbers: list[int], *, scale: int = 1) -> int:
        ran.append("total")
        return sum(numbers) * scale

    @tasks.task
    async def show(value: int) -> str:
        ran.append("show")
        return f"<{value}>"

    @tasks.task
    def note(text: str) -> None:
        ran.append(text)

    @tasks.task(max_attempts=1)
    def fragile(broken: list[int]) -> int:
        ran.append("fragile")
        if "fixed" not in ran:
            raise GiveUp("it is broken")
        return len(broken)

    return tasks


def test_a_chain_passes_each_result_on(flows: Tasks, ran: list[str]) -> None:
    run = chain(flows["fetch"].s(4), flows["total"].s(scale=10), flows["show"].s()).enqueue()
    assert list(run.states().values()) == ["ready", "blocked", "blocked"]
    assert run.state() == "running"
    assert flows.run_pending() == 3
    assert ran == ["fetch 4", "total", "show"]
    assert run.result() == "<60>"
    assert run.results() == {"1 fetch": [0, 1, 2, 3], "2 total": 60, "3 show": "<60>"}
    assert run.state() == "done"


def test_a_call_that_takes_no_result(flows: Tasks, ran: list[str]) -> None:
    chain(flows["fetch"].s(2), flows["note"].si("after"), flows["note"].si("last")).enqueue()
    flows.run_pending()
    assert ran == ["fetch 2", "after", "last"]


def test_a_group_and_a_chord(flows: Tasks) -> None:
    @flows.task
    def add(results: list[int], extra: int) -> int:
        return sum(results) + extra

    calls = [flows["total"].s([n, n]) for n in range(4)]
    both = group(*calls).enqueue(), chord(calls, add.s(100)).enqueue()
    assert flows.run_pending() == 9
    assert list(both[0].results().values()) == [0, 2, 4, 6]
    assert both[1].result() == 112


def test_results_read_the_plan_once_and_not_once_a_step(
    flows: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = group(*[flows["total"].s([n]) for n in range(20)]).enqueue()
    flows.run_pending()
    reads: list[str] = []

    def counted(queue: AnyQueue, flow: str) -> Plan:
        reads.append(flow)
        return read_plan(queue, flow)

    monkeypatch.setattr("penstock.tasks.run.read_plan", counted)
    assert list(run.results().values()) == list(range(20))
    assert len(reads) == 1


def test_steps_with_names(flows: Tasks, ran: list[str]) -> None:
    flow = Workflow()
    left = flow.step("left", flows["fetch"].s(2))
    right = flow.step("right", flows["fetch"].s(3))
    both = flow.step("total", flows["total"].s(left.result, scale=2), after=[right])
    flow.step("show", flows["show"].s(both.result))
    run = flow.enqueue(id="order-7")
    again = flow.enqueue(id="order-7")
    assert (run.is_duplicate, again.is_duplicate, again.id) == (False, True, "order-7")
    assert flows.run_pending() == 4
    assert ran == ["fetch 2", "fetch 3", "total", "show"]
    assert flows.workflow("order-7").result("show") == "<2>"
    assert run.job("total").state() == "done"
    with pytest.raises(InvalidInput, match="no step 'x'"):
        run.job("x")
    with pytest.raises(NoSuchMessage, match="no workflow 'order-7/total'"):
        flows.workflow("order-7/total").states()


def test_a_failed_step_is_tried_again_and_the_others_follow(flows: Tasks, ran: list[str]) -> None:
    flow = Workflow()
    first = flow.step("fetch", flows["fetch"].s(3))
    second = flow.step("fragile", flows["fragile"].s(first.result))
    flow.step("show", flows["show"].s(second.result))
    flow.step("tidy", flows["note"].s("tidy"), after=[second], after_failed="run")
    run = flow.enqueue()
    flows.run_pending()
    assert run.states() == {"fetch": "done", "fragile": "dead", "show": "dead", "tidy": "done"}
    assert (run.state(), ran) == ("failed", ["fetch 3", "fragile", "tidy"])
    ran.append("fixed")
    assert run.retry() == 1
    flows.run_pending()
    assert (run.state(), run.result("show")) == ("done", "<3>")
    assert ran[3:] == ["fixed", "fragile", "show"]


def test_a_workflow_is_cancelled_as_a_whole(flows: Tasks, ran: list[str]) -> None:
    run = chain(flows["fetch"].s(4), flows["total"].s(), flows["show"].s()).enqueue()
    assert run.cancel() == 3
    assert flows.run_pending() == 0
    assert set(run.states().values()) == {"cancelled"}
    assert run.state() == "failed" and ran == []


def test_a_result_of_the_wrong_type_is_a_dead_letter(flows: Tasks) -> None:
    run = chain(flows["fetch"].s(4), flows["show"].s()).enqueue()
    flows.run_pending()
    (_, last) = run.steps()
    assert last.state == "dead"
    assert last.reason.startswith("the arguments do not fit task 'show': Expected `int`")


def test_a_workflow_is_forgotten_in_time(flows: Tasks, clock: ManualClock) -> None:
    run = chain(flows["fetch"].s(1), keep_s=60).enqueue()
    flows.run_pending()
    clock.advance(60)
    assert flows.run_pending() == 0
    with pytest.raises(NoSuchMessage, match="no workflow"):
        run.states()


def test_what_cannot_be_a_workflow_is_refused_and_nothing_is_published(flows: Tasks) -> None:
    elsewhere = Tasks("memory:").add(lambda: None, name="elsewhere")
    flow = Workflow()
    first = flow.step("a", flows["fetch"].s(1))
    other = Workflow().step("a", flows["fetch"].s(2))  # of the same name

    def after(steps: Any, **options: Any) -> object:
        return flow.step("b", flows["fetch"].s(1), after=steps, **options)

    wrong: list[tuple[str, Any]] = [
        ("already", lambda: flow.step("a", flows["fetch"].s(1))),
        ("of one Tasks", lambda: flow.step("b", elsewhere.s())),
        ("task.s", lambda: flow.step("b", flows["fetch"])),  # type: ignore[arg-type]
        ("'scale' does not fit", lambda: flow.step("b", flows["total"].s(first.result, scale="x"))),
        ("of another workflow", lambda: Workflow().step("b", flows["total"].s(first.result))),
        (
            "cannot run after",
            lambda: flow.step("b", flows["total"].s(first.result), after_failed="run"),
        ),
        ("after no other step", lambda: flow.step("b", flows["fetch"].s(1), after_failed="run")),
        ("after_failed of step 'b' is 'ignore'", lambda: after(first, after_failed="ignore")),
        ("'b' has 'a'; it must have steps", lambda: after(["a"])),
        ("'b' has 'a'; it must have steps", lambda: after("a")),
        ("'b' has 7; it must have steps", lambda: after(7)),
        ("'b' has None; it must have steps", lambda: after(None)),
        ("'b' is after 'a', a step of another", lambda: after(other)),
        ("another workflow", lambda: flow.step("b", flows["total"].s(other.result))),
        ("no steps", lambda: Workflow().enqueue()),
        ("id is", lambda: flow.enqueue(id="")),
        ("must not contain '/'", lambda: flow.enqueue(id="order/7")),
        ("chord", lambda: chord([], flows["show"].s())),
    ]
    for says, call in wrong:
        with pytest.raises(InvalidInput, match=says):
            call()
    with pytest.raises(TypeError, match="cannot be called"):
        flow.step("b", flows["fetch"].s())
    assert flows.queue().stats().published == 0


def test_ten_thousand_steps_are_one_write_of_a_size_that_grows_with_their_number(
    flows: Tasks,
) -> None:
    flow = Workflow()
    steps = [flow.step(f"{n}", flows["note"].si("x")) for n in range(9_999)]
    flow.step("last", flows["note"].si("last"), after=steps)
    with pytest.raises(InvalidInput, match="at most 10000"):
        flow.step("more", flows["note"].si("x"))
    run = flow.enqueue()
    assert run.job("last").why().code == "blocked"
    queue = flows.queue()
    while leased := queue.lease(5_000):
        queue.ack(leased)
    assert run.job("last").state() == "done"


def test_a_drawing(flows: Tasks) -> None:
    flow = Workflow()
    first = flow.step('say "hi"', flows["fetch"].s(3))
    flow.step("sum", flows["total"].s(first.result))
    run = flow.enqueue()
    assert draw(run.steps(), "text").splitlines() == [
        'ready    say "hi"  fetch',
        'blocked  sum       total  after say "hi"',
    ]
    assert draw(run.steps(), "mermaid").splitlines()[:4] == [
        "flowchart TD",
        '    s0["say #34;hi#34;<br/>ready"]',
        '    s1["sum<br/>blocked"]',
        "    s0 --> s1",
    ]
    dot = draw(run.steps(), "dot")
    assert '    s0 [label="say \\"hi\\"\\nready", fillcolor="#fff9c4"];' in dot
    assert "    s0 -> s1;" in dot


def test_a_workflow_at_a_broker(server: RunningServer) -> None:
    for url in (server.url, server.server.urls[-1]):  # over HTTP, over gRPC
        with Tasks(url) as tasks:
            queue = f"flows-{url.partition(':')[0]}"
            count = tasks.add(_count, name="count", queue=queue)
            double = tasks.add(_double, name="double", queue=queue)
            run = chain(count.s(["a", "b", "c"]), double.s()).enqueue(id="order-7")
            assert list(run.states().values()) == ["ready", "blocked"]
            assert tasks.run_pending() == 2
            assert run.result() == 6
            assert chain(count.s([])).enqueue(id="order-7").is_duplicate


def _count(names: list[str]) -> int:
    return len(names)


def _double(n: int) -> int:
    return 2 * n


@pytest.mark.parametrize("ending", ["done", "discarded", "cancelled"])
def test_the_states_of_steps_that_ended_take_one_pass_over_the_events(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    read = 0
    original = events.decode

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal read
        read += 1
        return original(*args, **kwargs)

    @tasks.task
    def one(n: int) -> int:
        if ending == "discarded":
            raise Discard("no")
        return n

    count = 100
    run = group(*(one.s(n) for n in range(count))).enqueue()
    if ending == "cancelled":
        assert run.cancel() == count
    else:
        assert tasks.run_pending() == count
    monkeypatch.setattr(history, "decode", counted)
    wanted = "cancelled" if ending == "cancelled" else "done"
    assert set(run.states().values()) == {wanted}
    assert read <= 3 * count
    before = read
    run.states()
    assert read == before  # what was read is known


def test_a_group_inside_a_chain_is_refused(tasks: Tasks) -> None:
    task = tasks.add(lambda *_: None, name="one")
    inner: Any = group(task.s())
    with pytest.raises(InvalidInput, match="a step is"):
        chain(task.s(), inner, task.s())
    with pytest.raises(InvalidInput, match="a step is"):
        chord([task.s()], inner)
