"""Presets are experiments by name, which a command line may change."""

from dataclasses import replace

import pytest

from train import commandline, presets
from train.experiment import Experiment


@pytest.mark.parametrize("name", presets.NAMES)
def test_a_preset_is_an_experiment_of_its_name_and_options_take_its_settings_place(name):
    preset = presets.named(name)
    assert preset.preset == name
    assert commandline.parsed(["--preset", name]) == preset
    changed = commandline.parsed(
        ["--epsilon", "0.7", f"--preset={name}", "--trust", "local", "--data-dir", "somewhere"]
    )
    local = replace(preset.labeler, trust="local")
    assert changed == replace(preset, epsilon=0.7, labeler=local, data_dir=changed.data_dir)
    assert (str(changed.data_dir), changed.labeler.noise) == ("somewhere", "collision")


def test_without_a_preset_the_defaults_hold_and_an_unknown_one_is_named():
    assert commandline.parsed([]) == Experiment()
    with pytest.raises(ValueError, match=r"mnist-fast.*preset='mnits'"):
        commandline.parsed(["--preset", "mnits"])
