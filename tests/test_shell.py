"""`rknn` in a shell: completion of commands and options, and readers that leave."""

import os
import shutil
import subprocess
import sys

import pytest

from rknn_jax.cli import main as cli

RKNN = [sys.executable, "-m", "rknn_jax.cli.main"]


@pytest.mark.long
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_and_options(tmp_path):
    script = tmp_path / "rknn.bash"
    script.write_text(subprocess.check_output([*RKNN, "completion", "bash"], text=True))
    asked = (
        f'source {script}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _tyro_rknn; '
        'echo "${COMPREPLY[@]}"'
    )

    def completed(*words):
        shell = ["bash", "--norc", "-c", asked, "bash", *words]
        return subprocess.check_output(shell, text=True).split()

    assert completed("rknn", "la") == ["label"]
    assert "--labels-per-record" in completed("rknn", "label", "--la")
    assert "--make-test-certificates" in completed("rknn", "serve", "--make")


def test_an_unknown_shell_is_named(capsys):
    assert cli.main(["completion", "tcsh"]) == 2
    assert "bash, zsh, fish, got tcsh" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("words", [["--help"], ["--version"]])
def test_a_reader_that_leaves_ends_no_command_in_a_traceback(words):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*RKNN, *words], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (cli.UNREAD, "")
