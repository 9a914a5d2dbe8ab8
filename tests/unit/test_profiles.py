"""Users' profiles against a computation user by user, in whatever order the page views come."""

import math
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest

from rayrec.features.hashes import hash_key, hash_texts
from rayrec.features.lookup_table import HASH, LookupTable, write_file
from rayrec.sources.outbrain.side_tables import USER, USER_SCHEMA, VALUE_SCHEMA, ProfileJob, profiles
from rayrec.sources.outbrain.statistics import ASPECTS, PROFILE_SCHEMA
from tests.outbrain_statistics import Document, make_constants, make_statistics

USERS, DOCUMENTS, N = 12, 40, 25
"""N is less than the documents that have the commonest values."""
VIEWED_BY_BOT = 9


@pytest.fixture(scope="module")
def documents() -> dict[int, Document]:
    rng = np.random.default_rng(1)

    def some(count: int, most: int) -> dict[int, float]:
        return {int(v): float(c) for v, c in zip(rng.integers(0, most, count), rng.random(count), strict=True)}

    return {
        n: Document(category={1: 0.5, **some(n % 3, 4)} if n % 6 else {}, topic=some(n % 5, 9), entity=some(n % 4, 30))
        for n in range(DOCUMENTS)
    }


@pytest.fixture(scope="module")
def job(documents: dict[int, Document], tmp_path_factory: pytest.TempPathFactory) -> ProfileJob:
    folder = tmp_path_factory.mktemp("profiles")
    make_statistics(folder / "statistics", make_constants(), documents=documents)
    names = pa.array([f"user {n}" for n in range(USERS)])
    hashes = hash_texts(names)
    order = np.argsort(hashes)
    empty = pa.array([[]] * USERS, pa.list_(pa.int64()))
    users = pa.record_batch(
        [hashes[order], names.take(pa.array(order)), pa.nulls(USERS, pa.int64()), empty],
        schema=USER_SCHEMA,
    )
    (folder / "users").mkdir()
    write_file(folder / "users", USER_SCHEMA, [users])
    for aspect in ASPECTS:
        values, counts = np.unique([v for d in documents.values() for v in getattr(d, aspect)], return_counts=True)
        value_order = np.argsort(hash_key(values))
        columns = [hash_key(values)[value_order], values[value_order], counts[value_order]]
        (folder / "values" / aspect).mkdir(parents=True)
        write_file(folder / "values" / aspect, VALUE_SCHEMA, [pa.record_batch(columns, schema=VALUE_SCHEMA)])
    return ProfileJob(folder / "users", folder / "statistics" / "documents", folder / "values", N)


@pytest.fixture(scope="module")
def viewed() -> dict[tuple[int, int], int]:
    """Page views by user and document; one user has viewed them all."""
    rng = np.random.default_rng(2)
    drawn = rng.integers([0, 0, 1], [USERS - 2, DOCUMENTS, 6], (90, 3))
    pairs = {(int(u), int(d)): int(v) for u, d, v in drawn}
    return dict(sorted((pairs | {(VIEWED_BY_BOT, d): 1 + d for d in range(DOCUMENTS)}).items()))


def by_hand(viewed: dict[tuple[int, int], int], documents: dict[int, Document]) -> dict[int, dict[str, object]]:
    result = {}
    for user in sorted({user for user, _ in viewed}):
        own = {document: views for (u, document), views in viewed.items() if u == user}
        row: dict[str, object] = {"views": sum(own.values()), "viewed": sorted(own)}
        for aspect in ASPECTS:
            found = defaultdict(list)
            for document in own:
                for value, confidence in getattr(documents[document], aspect).items():
                    found[value].append(confidence)
            weights = {}
            for value, confidences in sorted(found.items()):
                frequency = sum(value in getattr(document, aspect) for document in documents.values())
                inverse = max(0.0, math.log(N / frequency))
                weights[value] = len(confidences) * inverse * sum(confidences) / len(confidences)
            row[aspect] = weights
        result[user] = row
    return result


def page_views(viewed: dict[tuple[int, int], int], seed: int) -> pa.Table:
    """Return each page view, in any order."""
    rows = [pair for pair, views in viewed.items() for _ in range(views)]
    users, documents = np.random.default_rng(seed).permutation(rows).T
    return pa.table({USER: users, "document_id": documents})


def test_equals_a_computation_by_user(
    job: ProfileJob, viewed: dict[tuple[int, int], int], documents: dict[int, Document]
) -> None:
    table = pa.Table.from_batches(profiles(page_views(viewed, 1), job), PROFILE_SCHEMA)
    expected = by_hand(viewed, documents)
    names = LookupTable.open(job.users).column("uuid", np.array(list(expected)), pa.string())
    assert table["uuid"].to_pylist() == names.to_pylist()
    assert (np.diff(table[HASH].to_numpy()) > 0).all()
    for found, row in zip(table.to_pylist(), expected.values(), strict=True):
        assert (found["views"], found["viewed"]) == (row["views"], row["viewed"])
        for aspect in ASPECTS:
            weights: dict[int, float] = row[aspect]  # type: ignore[assignment]
            assert [pair["value"] for pair in found[aspect]] == list(weights)
            assert [pair["weight"] for pair in found[aspect]] == pytest.approx(list(weights.values()))
            assert found[f"{aspect}_norm"] == pytest.approx(math.sqrt(sum(w * w for w in weights.values())))
    assert any(w == 0 for row in expected.values() for w in row["category"].values())  # type: ignore[union-attr]


def test_no_bit_depends_on_the_order_of_page_views(job: ProfileJob, viewed: dict[tuple[int, int], int]) -> None:
    made = [pa.Table.from_batches(profiles(page_views(viewed, seed), job), PROFILE_SCHEMA) for seed in range(8)]
    assert all(table.combine_chunks().equals(made[0].combine_chunks()) for table in made)


def test_without_views_there_is_no_profile(job: ProfileJob) -> None:
    none = pa.schema([(USER, pa.int64()), ("document_id", pa.int64())]).empty_table()
    assert sum(batch.num_rows for batch in profiles(none, job)) == 0
