"""Progress: what phases tell, to whom, and that a pipe hears of work that returns nothing."""

import json
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest

from rknn_jax import neighbor_graph, simulate
from rknn_jax._internal import progress
from rknn_jax.queries import kmeans
from rknn_jax.representations import dti, scan, self_trained, simclr

HOUR = 3600.0


def event(**changes):
    given = dict.fromkeys(("left", "checkpoint", "memory", "note", "outer"))
    given |= {"phase": "training", "state": "running", "step": 3, "steps": 12, "unit": "epochs"}
    return progress.Event(**given | {"seconds": 40.0} | changes)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (event(left=HOUR), "training: 3 of 12 epochs (25%), 60 min left"),
        (event(left=3 * HOUR), "training: 3 of 12 epochs (25%), 3.0 h left"),
        (event(step=0), "training: 0 of 12 epochs (0%), for 40 s"),
        (event(step=0, steps=0), "training: 0 of 0 epochs, for 40 s"),
        (event(steps=None), "training, for 40 s"),
        (event(steps=None, note="waiting"), "training: waiting"),
        (
            event(outer=event(phase="runs", unit="runs", left=5.0)),
            "runs: 3 of 12 runs (25%), 5 s left · training: 3 of 12 epochs (25%), for 40 s",
        ),
        (event(outer=event(phase="loading", steps=None)), "training: 3 of 12 epochs (25%), for"),
    ],
)
def test_an_event_in_words(told, words):
    assert str(told).startswith(words)


def test_listeners_hear_of_the_beginning_the_steps_and_the_end():
    events = []
    with progress.listening(events.append), progress.phase("all", 2, "parts") as parts:
        with progress.phase("first", 10, "rows", done=4) as rows:
            rows.advance(6)
            rows.kept("here")
        parts.advance()
        with pytest.raises(RuntimeError), progress.phase("second"):
            raise RuntimeError
    with progress.phase("later"):
        pass
    assert [(one.phase, one.state, one.step) for one in events] == [
        ("all", "begun", 0),
        ("first", "begun", 4),
        ("first", "done", 10),
        ("second", "begun", 0),
        ("second", "stopped", 0),
        ("all", "done", 1),
    ]
    told = json.loads(json.dumps(events[2].asdict(), allow_nan=False))
    assert (told["outer"], told["checkpoint"], told["steps"]) == (["all"], "here", 10)
    assert told["memory"] > 2**20  # an interpreter


def test_no_time_is_left_to_tell_before_a_step_is_done():
    with progress.phase("embedding", 0) as steps:
        steps.advance(0)  # a part of a file without records
        assert steps.event("running").left is None


def test_the_time_left_is_that_of_the_steps_after_the_first(monkeypatch):
    """The first step compiles. Four of ten steps are done, at 2 s each."""
    clock = iter([0.0, 100.0, 102.0, 104.0, 106.0])
    times = [next(clock)]
    monkeypatch.setattr(progress.time, "monotonic", lambda: times[-1])
    with progress.phase("training", 10) as steps:
        assert steps.event("running").left is None
        for now in clock:
            times.append(now)
            steps.advance()
            if now == 100.0:
                assert steps.event("running").left == 900.0
        assert steps.event("running").left == 12.0


def test_a_phase_that_never_returns_to_python_is_told_of_and_a_hidden_one_is_not():
    heard = threading.Event()
    names = set()

    def listener(told):
        names.add(told.phase)
        if told.state == "running":
            heard.set()

    with progress.listening(listener, seconds=0.01), progress.phase("waiting"):
        assert heard.wait(60)
        with progress.hidden(), progress.phase("private"):
            pass
    assert names == {"waiting"}


def test_a_listener_hears_nothing_of_a_phase_that_has_ended():
    open_now = set()

    def listener(told):
        assert told.state == "begun" or told.phase in open_now
        (open_now.add if told.state == "begun" else open_now.discard)(told.phase)
        open_now.update({told.phase} if told.state == "running" else set())

    with progress.listening(listener, seconds=1e-4):
        for number in range(300):
            with progress.phase(str(number)):
                pass
    assert not open_now


PIPE = """
import time
from rknn_jax._internal import progress, terminal
with progress.listening(terminal._ByLine(), 0.01):
    with progress.phase("waiting", note=lambda: "for others"):
        time.sleep(0.3)
    with progress.phase("working", 5, "rows") as rows:
        rows.advance(2)
        time.sleep(0.3)
"""


@pytest.mark.long
def test_a_pipe_gets_a_line_for_each_thing_that_is_new():
    done = subprocess.run([sys.executable, "-c", PIPE], capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    assert lines.count("working     waiting: for others") == 1
    assert "working     working: 2 of 5 rows (40%), 0 s left" in lines
    assert not done.stdout


SILENT = """
import time
from rknn_jax._internal import progress, terminal
progress.SECONDS_A_LINE = 0.05
terminal.run_program(lambda: time.sleep(0.5) or 3)
"""


@pytest.mark.long
def test_no_program_is_silent_on_a_pipe():
    done = subprocess.run([sys.executable, "-c", SILENT], capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stderr.startswith("working     running, for 0 s\n")


@pytest.mark.long
def test_long_work_counts_its_steps(monkeypatch):
    """Phases with steps by name: the longest parts of clustering, graphs and a simulation."""
    events = []
    rows = np.random.default_rng(0).normal(size=(400, 4)).astype(np.float32)
    monkeypatch.setattr(kmeans, "LARGE", 0)
    monkeypatch.setattr(neighbor_graph, "LARGEST_EXACT", 100)
    mechanism = simulate.make("randomized_response", epsilon=1.0, num_queries=3, num_classes=2)
    with progress.listening(events.append):
        kmeans.select(jax.random.key(0), rows, 4)
        neighbor_graph.self_graph(rows, 3)
        simulate.simulate(mechanism, 500)
    done = {one.phase: (one.step, one.steps) for one in events if one.state == "done" and one.steps}
    assert done == {
        "choosing 4 seeds": (5, 5),
        "joining neighbors": (20, 20),
        "simulating": (500, 500),
    }


@pytest.mark.long
@pytest.mark.parametrize("module", [dti, simclr, scan, self_trained], ids=lambda one: one.__name__)
def test_every_trained_representation_counts_its_epochs(module, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 1), np.uint8)
    events = []
    config = module.EXAMPLES[0]
    with progress.listening(events.append):
        config.fit(jax.random.key(0), images, folder=tmp_path)
    ended = [one for one in events if one.state == "done" and one.unit == "epochs"]
    counted = [one for one in ended if one.steps]  # an example of SCAN leaves a stage out
    assert counted
    assert all(one.step == one.steps for one in ended)
    assert all(one.checkpoint for one in counted) == (module is not self_trained)
