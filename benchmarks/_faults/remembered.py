"""Faults of what is remembered: which people, records and answers were paid for before."""

from benchmarks._faults._known import Known

ONE_BUDGET = ("tests/test_one_budget.py",)
LATE = ("tests/test_federation_late.py",)

FAULTS = (
    Known(
        "what is remembered",
        "a kept answer goes to a server that does not show its question",
        "rknn_jax/federation/participation.py",
        'connection.ticket, payload = kept[0], b""',
        "connection.ticket, payload = kept",
        LATE,
    ),
    Known(
        "what is remembered",
        "a kept answer goes by the agreement of then",
        "rknn_jax/federation/participation.py",
        "connection.ticket, payload = client.answer(question, connection.ends)\n",
        "connection.ticket, payload = kept or client.answer(question, connection.ends)[1:]\n",
        LATE,
    ),
    Known(
        "what is remembered",
        "shuffled messages go to two servers",
        "rknn_jax/federation/client.py",
        "        if known != server:\n",
        "        if False:\n",
        LATE,
    ),
    Known(
        "what is remembered",
        "the index forgets the folder behind a link",
        "rknn_jax/privacy/source_names.py",
        "        if not any(disk.is_below(place, known) for known in folders):\n",
        "        if not folders:\n",
        ONE_BUDGET,
    ),
    Known(
        "what is remembered",
        "the index forgets the path of a file as it was given, by a link",
        "rknn_jax/privacy/source_names.py",
        '                if ".." not in rest:\n',
        "                if False:\n",
        ONE_BUDGET,
    ),
    Known(
        "what is remembered",
        "a session takes any ledger at its path",
        "rknn_jax/release/session.py",
        "            self._seen = now\n",
        "            pass\n",
        ("tests/test_session.py",),
    ),
    Known(
        "what is remembered",
        "a session does not see what it has charged itself",
        "rknn_jax/release/session.py",
        "                    self._known()\n",
        "                    pass\n",
        ("tests/test_session.py",),
    ),
    Known(
        "what is remembered",
        "a stopped release is finished for another encoder",
        "rknn_jax/release/label.py",
        "        asked=plan.question.asked,\n",
        "",
        ("tests/test_release_folder.py",),
    ),
    Known(
        "what is remembered",
        "a stopped release is finished for another column",
        "rknn_jax/release/planning.py",
        '    "public",\n    "classes_file",\n',
        '    "public",\n    "label",\n    "classes_file",\n',
        ("tests/test_release_folder.py",),
    ),
    Known(
        "what is remembered",
        "a warning about a record loses what was paid",
        "rknn_jax/_internal/private_warnings.py",
        "        warnings.showwarning(UserWarning(message), UserWarning, __file__, 0)",
        "        raise",
        ("tests/test_session.py",),
    ),
    Known(
        "what is remembered",
        "two runs of Flower have the same messages",
        "rknn_jax/federation/flower.py",
        'f"{RUN}{context.run_id}"',
        'f"{RUN}"',
        ("tests/test_federation_flower.py",),
    ),
    Known(
        "what is remembered",
        "files of two hosts are one where the file system keeps the host out of its paths",
        "rknn_jax/_internal/urls.py",
        "return url if system is None else _with_place(url, named_in(name), system)\n",
        "return url\n",
        ONE_BUDGET,
    ),
    Known(
        "what is remembered",
        "the estimator keeps the counts without noise",
        "rknn_jax/release/estimator.py",
        '"_space": (self.standardize, self.metric),',
        '"_space": (self.standardize, self.metric), "_counted": counted,',
        ("tests/test_tabular.py",),
    ),
)
