"""Progress and results of a run in TensorBoard and MLflow."""

import json
import sys
import types
from contextlib import contextmanager

import pytest

from rknn_jax._internal import progress
from train import logs


def run(folder, log):
    """Let a phase of three steps run, and leave the files of a run."""
    with logs.logged(log, folder):
        with progress.phase("training dti", 3, "epochs") as done:
            done.advance(3)
        (folder / "config.json").write_text(json.dumps({"epsilon": 1.0, "note": "x" * 900}))
        (folder / "metrics.jsonl").write_text('{"round": 1, "epoch": 2, "loss": 0.5}\n')
        result = {"label_accuracy": 0.9, "epsilon": float("inf"), "interrupted": False}
        (folder / "result.json").write_text(json.dumps(result))


@pytest.fixture
def mlflow(monkeypatch):
    """Put a module in MLflow's place that keeps what it is told, and refuses what MLflow does."""
    told = types.SimpleNamespace(metrics={}, params={})

    def log_metric(name, number, step):
        assert not set(name) & set("(),:·"), name
        told.metrics.setdefault(name, []).append((number, step))

    def log_param(name, value):
        assert len(value) <= 500
        told.params[name] = value

    @contextmanager
    def start_run(run_name):
        told.name = run_name
        yield

    module = types.ModuleType("mlflow")
    module.start_run, module.log_metric, module.log_param = start_run, log_metric, log_param
    monkeypatch.setitem(sys.modules, "mlflow", module)
    return told


def test_mlflow_gets_steps_epochs_results_and_settings(mlflow, tmp_path):
    run(tmp_path, "mlflow")
    assert mlflow.name == tmp_path.name
    assert mlflow.metrics["training dti/epochs"][-1][0] == 3
    assert mlflow.metrics["student/loss"] == [(0.5, 2)]
    assert mlflow.metrics["result/label_accuracy"] == [(0.9, 0)]
    assert not {"result/epsilon", "result/interrupted", "student/round"} & set(mlflow.metrics)
    assert mlflow.params["epsilon"] == "1.0"


def test_tensorboard_reads_what_is_written(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(tmp_path, "tensorboard")
    found = EventAccumulator(str(tmp_path / logs.FOLDER))
    found.Reload()
    [loss] = found.Tensors("student/loss")
    assert (loss.step, loss.tensor_proto.float_val[0]) == (2, 0.5)
    assert found.Tensors("training dti/epochs")[-1].tensor_proto.float_val[0] == 3


@pytest.mark.parametrize("log", ["tensorboard", "mlflow"])
def test_a_package_that_is_missing_is_named(monkeypatch, tmp_path, log):
    monkeypatch.setitem(sys.modules, log, None)
    monkeypatch.setitem(sys.modules, f"{log}.summary", None)
    with pytest.raises(ValueError, match=f"pip install {log}"):
        run(tmp_path, log)
