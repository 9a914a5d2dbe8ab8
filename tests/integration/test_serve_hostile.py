"""Hostile requests of all kinds: a replica stays within its memory, none makes it fail, and honest clients beside them
are answered as ever."""

import pytest

from benchmarks.serving_hostile import BOUND_MIB, attacks, server, under


@pytest.mark.minutes
def test_hostile_requests(ray_cluster: str) -> None:
    with server() as target:
        found = {name: under(attack, target, least_seconds=0) for name, attack in attacks(many=64).items()}
    # The first attack's companions are the first requests of all.
    idle = next(iter(found.values()))["resident_mib"]["before"]
    for name, told in found.items():
        assert told["same_replica"], name
        assert told["honest"]["requests"] > 0 and told["honest"]["failed"] == 0, (name, told)
        memory = told["resident_mib"]
        # How much of what an attack has used is given back before the next one begins depends on the machine's load.
        assert memory["most"] - memory["before"] <= BOUND_MIB and memory["after"] - idle <= BOUND_MIB, (name, told)
        assert not set(told["answers"]) & {"500", "no answer", "INTERNAL", "UNKNOWN"}, (name, told)
        if "without a token" in name:
            assert set(told["answers"]) <= {"401", "cut off", "UNAUTHENTICATED"}, (name, told)
