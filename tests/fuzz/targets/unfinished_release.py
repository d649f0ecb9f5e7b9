"""`release_folder` on a release that was paid for and stopped: the note and the counts."""

import functools
import json
from pathlib import Path

import numpy as np

from rknn_jax.privacy.ledger import Ledger, LedgerError
from rknn_jax.privacy.roles import Roles
from rknn_jax.release import release_folder
from tests.fuzz import npy, workplace
from tests.fuzz.targets.ledger import DATA, released

REQUEST = "sha256:settings"
PURPOSE = "labels; release 01"
PATHLESS = (LedgerError,)  # names the ledger that the note names


ROLES = f"{Roles(bytes(32), 0.02, 0.05, 0.0).words()}\norder"


@functools.cache
def _account():
    path = workplace() / "release.ledger"
    ledger = Ledger.create(path, DATA, 2)
    ledger.charge(released(0.5), PURPOSE)
    return path, path.read_bytes()


def seeds():
    note = {
        "request": REQUEST,
        "purpose": PURPOSE,
        "ledger": Ledger.open(_account()[0]).entries()[0].hash,
    }
    name = f"new/{release_folder.STAGING}"
    counts = npy(np.arange(6).reshape(2, 3))
    plain = {f"{name}/note.json": json.dumps(note).encode(), f"{name}/counts.npy": counts}
    noted = json.dumps(note | {"roles": ROLES}).encode()
    checked = {f"{name}/note.json": noted, f"{name}/check.npy": npy(np.arange(10))}
    return [plain, plain | checked]


def readers(folder: Path):
    path, account = _account()
    path.write_bytes(account)
    new = folder / "new"
    new.mkdir(exist_ok=True)
    held = release_folder.ReleaseFolder(new, REQUEST, Ledger.open(path, DATA))
    with_roles = release_folder.ReleaseFolder(new, REQUEST, Ledger.open(path, DATA), ROLES)

    def kept():
        found = held.kept((2, 3))
        assert found is None or (isinstance(found[0], np.ndarray) and found[1] is None)

    def kept_with_roles():
        found = with_roles.kept((2, 3))
        assert found is None or isinstance(found[0], np.ndarray)
        assert found is None or found[1] is None or isinstance(found[1], np.ndarray)

    def charged():
        before = held.ledger.spent.epsilon
        held.charge(released(0.5), "labels")
        assert held.ledger.spent.epsilon >= before

    return [
        lambda: release_folder.is_paid(new, REQUEST, path),
        lambda: release_folder.find_unfinished(folder, REQUEST, path),
        lambda: release_folder.roles_of(new),
        kept,
        kept_with_roles,
        charged,
    ]
