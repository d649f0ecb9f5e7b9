"""Presets are experiments by name, which a command line may change."""

from dataclasses import replace

import pytest

from train import distill, presets
from train.experiment import Experiment


@pytest.mark.parametrize("name", presets.NAMES)
def test_a_preset_is_an_experiment_of_its_name_and_options_take_its_settings_place(name):
    preset = presets.named(name)
    assert preset.preset == name
    assert distill.from_arguments(["--preset", name]) == preset
    changed = distill.from_arguments(
        ["--epsilon", "0.7", f"--preset={name}", "--trust", "local", "--data-dir", "somewhere"]
    )
    assert changed == replace(preset, epsilon=0.7, trust="local", data_dir=changed.data_dir)
    assert (str(changed.data_dir), changed.private_step) == ("somewhere", "collision")


def test_without_a_preset_the_defaults_hold_and_an_unknown_one_is_named():
    assert distill.from_arguments([]) == Experiment()
    with pytest.raises(ValueError, match=r"mnist-fast.*preset='mnits'"):
        distill.from_arguments(["--preset", "mnits"])
