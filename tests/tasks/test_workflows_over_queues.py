"""Workflows whose steps are in several queues: in memory, in directories, and at a broker."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.errors import InvalidInput, NoSuchMessage, QueueFull
from penstock.queue.gate import ABANDONED
from penstock.tasks import GiveUp, JobFailed, Tasks, Workflow, chain, chord, group
from penstock.tasks.drawing import draw
from penstock.tasks.embedding import worker_thread
from penstock.tasks.places import Memory
from penstock.tasks.publishing import MOST_NAMED, in_batches
from penstock.tasks.run import WorkflowRun
from penstock.tasks.steps import gate_id
from penstock.tasks.workflow import Step
from tests.server.running import RunningServer

WAIT_S = 20.0


class Flows:
    """Tasks in three queues that note what ran."""

    def __init__(self, tasks: Tasks, *, uses_worker: bool) -> None:
        self.tasks = tasks
        self._uses_worker = uses_worker
        self.ran: list[str] = []
        self.is_broken = False

        def fetch(n: int) -> list[int]:
            self.ran.append(f"fetch {n}")
            return list(range(n))

        def total(numbers: list[int]) -> int:
            self.ran.append("total")
            if self.is_broken:
                raise GiveUp("it is broken")
            return sum(numbers)

        async def send(value: int) -> str:
            self.ran.append("send")
            return f"<{value}>"

        def note(text: str) -> str:
            self.ran.append(text)
            return text

        def join(texts: list[str]) -> str:
            return "".join(texts)

        self.fetch = tasks.add(fetch, queue="web")
        self.total = tasks.add(total, queue="sums", max_attempts=1)
        self.send = tasks.add(send, queue="mail")
        self.note = tasks.add(note, queue="web")
        self.join = tasks.add(join, queue="web")

    def work(self, run: WorkflowRun) -> None:
        """Run jobs until all steps of a workflow have ended."""
        if not self._uses_worker:
            self.tasks.run_pending()
            return
        with worker_thread(self.tasks):
            for step in run.steps():
                assert self.tasks.queue(step.queue).wait_ended(step.id, WAIT_S), step

    def gate(self, run: WorkflowRun) -> str:
        found = self.tasks.queue(run.queue_name).find(gate_id(run.id))
        assert found is not None
        return found


@pytest.fixture(params=["memory", "directory", "shared", "broker", "grpc"])
def flows(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Flows]:
    """Tasks at each kind of place. At a broker, each test has a namespace of its own."""
    with ExitStack() as stack:
        if request.param == "memory":
            tasks = Tasks("memory:")
            stack.enter_context(tasks.at(Memory({"backoff_jitter": 0.0}, clock)))
        elif request.param in ("directory", "shared"):
            is_shared = request.param == "shared"
            tasks = stack.enter_context(Tasks(tmp_path / "tasks", shared=is_shared))
        else:
            server: RunningServer = request.getfixturevalue("server")
            url = server.url if request.param == "broker" else server.server.urls[-1]
            namespace = f"n{abs(hash(request.node.nodeid)):x}"
            tasks = stack.enter_context(Tasks(f"{url}/{namespace}"))
        yield Flows(tasks, uses_worker=request.param != "memory")


@pytest.fixture
def local(tasks: Tasks) -> Flows:
    """Tasks in memory, with a clock that the test moves."""
    return Flows(tasks, uses_worker=False)


def test_a_chain_over_queues_and_back_passes_each_result_on(flows: Flows) -> None:
    calls = flows.fetch.s(4), flows.total.s(), flows.send.s(), flows.note.s(), flows.send.si(7)
    run = chain(*calls).enqueue(id="order-7")
    assert list(run.states().values()) == ["ready", *["blocked"] * 4]
    assert (run.state(), run.is_duplicate) == ("running", False)
    flows.work(run)
    assert flows.ran == ["fetch 4", "total", "send", "<6>", "send"]
    assert run.result() == "<7>" and run.results()["3 send"] == "<6>"
    assert run.state() == "done"
    again = flows.tasks.workflow("order-7", queue="web")
    assert again.result("2 total") == 6 and again.job("2 total").queue_name == "sums"
    assert chain(*calls).enqueue(id="order-7").is_duplicate
    assert len(flows.ran) == 5


def test_a_chord_over_queues_gets_the_list_of_results(flows: Flows) -> None:
    run = chord([flows.send.s(1), flows.note.s("b"), flows.send.s(3)], flows.join.s()).enqueue()
    flows.work(run)
    assert run.result() == "<1>b<3>"
    both = group(flows.total.s([1, 2]), flows.send.s(3)).enqueue()
    flows.work(both)
    assert list(both.results().values()) == [3, "<3>"]


def test_a_failed_step_fails_those_of_other_queues_and_all_come_back(flows: Flows) -> None:
    flow = Workflow()
    first = flow.step("fetch", flows.fetch.s(3))
    second = flow.step("total", flows.total.s(first.result))
    third = flow.step("send", flows.send.s(second.result))
    flow.step("note", flows.note.s(third.result))
    flow.step("tidy", flows.note.s("tidy"), after=[second], after_failed="run")
    flows.is_broken = True
    run = flow.enqueue()
    flows.work(run)
    assert run.states() == {
        "fetch": "done",
        "total": "dead",
        "send": "dead",
        "note": "dead",
        "tidy": "done",
    }
    assert (run.state(), flows.ran) == ("failed", ["fetch 3", "total", "tidy"])
    with pytest.raises(JobFailed, match="it comes after .* which is dead"):
        run.result("send")
    flows.is_broken = False
    assert run.retry() == 1
    assert "dead" not in run.states().values()
    flows.work(run)
    assert (run.state(), run.result("note")) == ("done", "<3>")
    assert flows.ran[3:] == ["total", "send", "<3>"]


def test_a_workflow_over_queues_is_cancelled_as_a_whole(flows: Flows) -> None:
    run = chain(flows.fetch.s(4), flows.total.s(), flows.send.s(), flows.note.s()).enqueue()
    assert run.cancel() == 4
    assert set(run.states().values()) == {"cancelled"}
    assert run.state() == "failed"
    last = chain(flows.note.s("last"), flows.send.si(1)).enqueue()
    flows.work(last)
    assert flows.ran == ["last", "send"]


# -- a workflow that is not published as a whole ---------------------------------------------------


class _Died(BaseException):
    """The publisher is killed here."""


def die_at(flows: Flows, monkeypatch: pytest.MonkeyPatch, queue: str, call: str) -> None:
    opened = flows.tasks.queue(queue)
    calls = 0

    def die(*args: object, **options: object) -> None:
        nonlocal calls
        calls += 1
        raise _Died

    monkeypatch.setattr(opened, call, die)
    # A killed process cleans nothing up.
    monkeypatch.setattr("penstock.tasks.workflow.abandon_workflow", lambda *_: None)


def steps_of(flows: Flows) -> Workflow:
    return chain(flows.fetch.s(4), flows.total.s(), flows.send.s(), flows.note.s())


def test_steps_of_a_publisher_that_died_do_not_run_until_another_completes_them(
    flows: Flows, monkeypatch: pytest.MonkeyPatch
) -> None:
    for queue, call in (("sums", "publish"), ("mail", "publish"), ("mail", "sync"), ("web", "run")):
        flow_id = f"order-{queue}-{call}"
        with monkeypatch.context() as patch, pytest.raises(_Died):
            die_at(flows, patch, queue, call)
            steps_of(flows).enqueue(id=flow_id)
        run = flows.tasks.workflow(flow_id, queue="web")
        assert set(run.states().values()) == {"blocked"} and run.state() == "running"
        why = run.job("1 fetch").why()
        assert "not published as a whole" in why.sentence
        assert why.details["gate"] == flows.gate(run)
        assert flows.tasks.run_pending() == 0 and flows.ran == []
        with pytest.raises(InvalidInput, match="begun with other steps.*: use another id$"):
            chain(flows.fetch.s(5), flows.total.s()).enqueue(id=flow_id)
        again = steps_of(flows).enqueue(id=flow_id)
        assert again.is_duplicate and steps_of(flows).enqueue(id=flow_id).is_duplicate
        flows.work(again)
        assert flows.ran == ["fetch 4", "total", "send", "<6>"]
        flows.ran.clear()


@pytest.mark.parametrize(("queue", "call"), [("sums", "publish"), ("mail", "sync"), ("web", "run")])
def test_of_several_callers_with_one_id_only_the_first_one_is_new(
    flows: Flows, monkeypatch: pytest.MonkeyPatch, queue: str, call: str
) -> None:
    opened, others = flows.tasks.queue(queue), []
    original = getattr(opened, call)

    def beside_another(*args: object, **options: object) -> object:
        monkeypatch.setattr(opened, call, original)
        others.append(steps_of(flows).enqueue(id="order-7").is_duplicate)
        return original(*args, **options)

    monkeypatch.setattr(opened, call, beside_another)
    run = steps_of(flows).enqueue(id="order-7")
    assert (run.is_duplicate, others) == (False, [True])
    flows.work(run)
    assert flows.ran == ["fetch 4", "total", "send", "<6>"]


def test_a_workflow_that_was_begun_can_be_cancelled(
    flows: Flows, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(_Died):
        die_at(flows, patch, "mail", "publish")
        steps_of(flows).enqueue(id="order-7")
    run = flows.tasks.workflow("order-7", queue="web")
    with pytest.raises(NoSuchMessage, match="is not published yet"):
        run.job("4 note")
    assert run.cancel() == 4
    assert set(run.states().values()) == {"cancelled"}
    assert steps_of(flows).enqueue(id="order-7").is_duplicate
    assert flows.tasks.run_pending() == 0
    assert [flows.tasks.queue(name).stats().dead for name in ("web", "sums")] == [0, 0]


def test_steps_that_never_ran_are_cancelled_in_time_and_leave_nothing(
    local: Flows, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    with monkeypatch.context() as patch, pytest.raises(_Died):
        die_at(local, patch, "web", "run")  # that is, when the gate would be opened
        flow = steps_of(local)
        flow.enqueue(id="order-7")
    ids = {step.queue: step.id for step in local.tasks.workflow("order-7", queue="web").steps()}
    clock.advance(7 * 86400)
    assert local.tasks.run_pending() == 0 and local.ran == []
    for name, id_ in ids.items():
        queue = local.tasks.queue(name)
        stats = queue.stats()
        assert (stats.dead, stats.blocked, stats.scheduled, stats.ready) == (0, 0, 0, 0)
        (cancelled,) = [event for event in queue.history(id_) if event.event == "cancelled"]
        assert cancelled.reason == ABANDONED
    run = flow.enqueue(id="order-7")  # it is forgotten, so this is another one
    assert not run.is_duplicate
    local.work(run)
    assert run.state() == "done"


def test_a_workflow_that_does_not_fit_is_refused_and_no_step_runs(
    tasks: Tasks, clock: ManualClock
) -> None:
    with tasks.at(Memory({"max_messages": 3}, clock)):
        flows = Flows(tasks, uses_worker=False)
        for _ in range(3):
            flows.send.enqueue(1)
        with pytest.raises(QueueFull):
            steps_of(flows).enqueue()
        assert flows.tasks.run_pending() == 3 and flows.ran == ["send"] * 3
        stats = tasks.queue("web").stats()
        assert (stats.blocked, stats.scheduled, stats.dead) == (0, 1, 0)  # the plan is kept


def test_what_is_done_leaves_nothing_behind(local: Flows, clock: ManualClock) -> None:
    run = steps_of(local).enqueue()
    local.work(run)
    clock.advance(7 * 86400)
    assert local.tasks.run_pending() == 0
    for name in ("web", "sums", "mail"):
        stats = local.tasks.queue(name).stats()
        assert (stats.blocked, stats.scheduled, stats.ready, stats.dead) == (0, 0, 0, 0)
    with pytest.raises(NoSuchMessage, match="no workflow"):
        run.states()


# -- many steps ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["wide", "chains", "zigzag"])
def test_many_steps_take_operations_in_proportion_to_their_number(
    local: Flows, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """Messages published, and endings asked for and told, of 300 steps and of ten times as many."""
    counted: list[int] = []
    mark = local.tasks.add(lambda: None, name="mark", queue="marks")
    sign = local.tasks.add(lambda: None, name="sign", queue="signs")
    signatures = [local.note.si("x"), mark.s(), sign.s()]
    for count in (300, 3000):
        flow = Workflow()
        steps: list[Step] = []
        for n in range(count):
            before: list[Step] = []
            if (shape == "zigzag" and n) or (shape == "chains" and n % 3):
                before = [steps[-1]]
            steps.append(flow.step(f"{n}", signatures[n % 3], after=before))
        flow.step("last", signatures[0], after=steps)
        counts = Counted(local, monkeypatch)
        run = flow.enqueue()
        local.tasks.run_pending()
        assert run.state() == "done"
        counted.append(counts.total)
    few, many = counted
    assert many < 11 * few


class Counted:
    """Counts what queues are asked to do: messages published, ids asked for and told."""

    def __init__(self, flows: Flows, monkeypatch: pytest.MonkeyPatch) -> None:
        self.total = 0
        for name in ("web", "marks", "signs"):
            queue = flows.tasks.queue(name)
            publish, run = type(queue).publish.__get__(queue), type(queue).run.__get__(queue)

            def counted_publish(messages, publish=publish):  # type: ignore[no-untyped-def]
                self.total += sum(1 + len(message.after or ()) for message in messages)
                return publish(messages)

            def counted_run(operation, run=run):  # type: ignore[no-untyped-def]
                found = run(operation)
                self.total += 1 + len(getattr(operation, "ids", ()))
                self.total += len(found) if isinstance(found, list) else 0
                return found

            monkeypatch.setattr(queue, "publish", counted_publish)
            monkeypatch.setattr(queue, "run", counted_run)


def test_a_step_after_very_many_of_other_queues_names_few(local: Flows) -> None:
    flow = Workflow()
    before = [flow.step(f"{n}", local.send.s(n)) for n in range(3 * MOST_NAMED)]
    flow.step("last", local.note.si("last"), after=before)
    flow.step("tidy", local.note.si("tidy"), after=before, after_failed="run")
    run = flow.enqueue()
    missing = run.job("last").why().details["missing_count"]
    assert missing == 1
    local.work(run)
    assert local.ran[-2:] == ["last", "tidy"] and run.state() == "done"


def test_batches_are_few_and_in_order() -> None:
    assert list(in_batches(["a", "b", "c"], [[], [], []])) == [("a", [0]), ("b", [1]), ("c", [2])]
    zigzag = list(in_batches(["a", "b"] * 3, [[], [0], [1], [2], [3], [4]]))
    assert zigzag == [("a", [0]), ("b", [1]), ("a", [2]), ("b", [3]), ("a", [4]), ("b", [5])]
    assert list(in_batches(["a"] * 5, [[]] * 5, most=2)) == [
        ("a", [0, 1]),
        ("a", [2, 3]),
        ("a", [4]),
    ]


def test_a_drawing_names_the_queues(local: Flows) -> None:
    run = chain(local.fetch.s(1), local.total.s()).enqueue()
    assert draw(run.steps(), "text").splitlines() == [
        "ready    1 fetch  fetch in web",
        "blocked  2 total  total in sums  after 1 fetch",
    ]


def test_steps_that_no_process_told_about_are_found_by_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker dies after an ack, or the command line settles a step."""
    monkeypatch.setattr("penstock.tasks.following.LOOK_EVERY_S", 0.01)
    with Tasks(tmp_path, shared=False) as tasks:
        flows = Flows(tasks, uses_worker=True)
        run = chain(flows.note.s("a"), flows.send.si(1), flows.note.si("b")).enqueue()
        tasks.queue("web").dequeue()
        assert tasks.queue("mail").state(run.job("2 send").id) == "blocked"
        with worker_thread(tasks):  # a look when it starts
            assert run.result(wait_s=WAIT_S) == "b"
            again = chain(flows.send.s(1), flows.note.si("c")).enqueue()
            assert again.result(wait_s=WAIT_S) == "c"
            tasks.queue("mail").pause()
            last = chain(flows.send.s(1), flows.note.si("d")).enqueue()
            tasks.queue("mail").cancel(last.job("1 send").id)  # and one while it works
            with pytest.raises(JobFailed, match="which is cancelled"):
                last.result(wait_s=WAIT_S)
