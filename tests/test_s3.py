"""Private shards by the S3 protocol, from a server on this machine.

Slow: the server and its libraries take ten seconds to start.
"""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rknn_jax.privacy.ledger import Ledger
from rknn_jax.release import label, planning
from rknn_jax.release.settings import Settings
from tests.options import named_settings

pytestmark = pytest.mark.slow
RANDOM = np.random.default_rng(0)
PARTS, ROWS = 4, 60


@pytest.fixture(scope="module")
def server():
    """Address of an S3 server."""
    threaded = pytest.importorskip("moto.server").ThreadedMotoServer(port=0)
    threaded.start()
    host, port = threaded.get_host_and_port()
    yield f"http://{host}:{port}"
    threaded.stop()


@pytest.fixture
def bucket(server, monkeypatch):
    """Client of a bucket with shards, whose credentials are in the environment."""
    boto3 = pytest.importorskip("boto3")
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",  # noqa: S105
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": server,
        "FSSPEC_S3_ENDPOINT_URL": server,
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="hospital")
    for number in range(PARTS):
        client.put_object(Bucket="hospital", Key=f"records/{number}.parquet", Body=shard(number))
    return client


def shard(number):
    rng = np.random.default_rng(number)
    columns = {
        "embeddings": rng.normal(size=(ROWS, 4)).tolist(),
        "labels": rng.integers(0, 3, ROWS),
    }
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def settings(folder, private, name="new"):
    np.savez(folder / "P.npz", embeddings=RANDOM.normal(size=(30, 4)))
    return named_settings(
        Settings,
        str(folder / "P.npz"),
        private,
        1.0,
        classes="3",
        queries=4,
        budget=9,
        out=folder / name,
        ledger=folder / f"{name}.jsonl",
    )


@pytest.mark.parametrize("name", ["s3://hospital/records", "s3://hospital/records/*.parquet"])
def test_shards_in_a_bucket_are_counted_as_those_on_disk(tmp_path, bucket, name):
    (tmp_path / "R").mkdir()
    for number in range(PARTS):
        (tmp_path / f"R/{number}.parquet").write_bytes(shard(number))
    plan = planning.prepare(settings(tmp_path, name))
    votes = label.count(plan)
    same = label.count(planning.prepare(settings(tmp_path, str(tmp_path / "R"), "local")))
    assert (votes.rows, votes.dataset) == (PARTS * ROWS, same.dataset)
    assert votes.counts.sum() == PARTS * ROWS
    label.release(plan, votes)
    assert float(Ledger.open(tmp_path / "new.jsonl").spent.epsilon) == 1


def test_a_shard_that_vanishes_midway_is_named_and_nothing_is_spent(tmp_path, bucket):
    plan = planning.prepare(settings(tmp_path, "s3://hospital/records"))
    bucket.delete_object(Bucket="hospital", Key="records/2.parquet")
    with pytest.raises(ValueError, match=r"records/2\.parquet"):
        label.count(plan)
    assert not (tmp_path / "new.jsonl").exists()


def test_missing_credentials_and_buckets_are_named(tmp_path, bucket, monkeypatch):
    with pytest.raises(ValueError, match="s3://nowhere"):
        planning.prepare(settings(tmp_path, "s3://nowhere/records"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(ValueError, match=r"s3://hospital/records.*credentials"):
        planning.prepare(settings(tmp_path, "s3://hospital/records"))
