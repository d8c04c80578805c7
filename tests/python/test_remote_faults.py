"""A part of the cases of `fuzz/remote_faults.py`: faults of sources end with the right elements or an error that has a code."""

import time
from typing import Any

import pytest
import torch
from support import module_of, saved
from web_server import Server

import rustload


@pytest.fixture(scope="module")
def faults() -> Any:
    pytest.importorskip("fsspec")
    pytest.importorskip("urllib3")
    return module_of("fuzz/remote_faults.py")


def test_random_faults_give_right_elements_or_errors_with_codes(faults):
    outcomes = faults.run(seed=7, count=150)
    assert outcomes.total() == 150
    assert outcomes["right"] >= 20
    assert {"Io", "RemoteRange", "FileChanged"} <= outcomes.keys()


def test_wrong_elements_are_found(faults):
    """The comparison itself: a source that answers with other bytes of the right length is not right."""
    cases = faults.Cases()
    try:
        plan = faults.Plan(faults.random.Random(1), faults.OBJECT_FAULTS)
        plan.enabled = False
        source = cases.objects("safetensors", plan)
        source.content = source.content[:-1] + bytes([source.content[-1] ^ 1])
        found = faults.load(source, [], faults.random.Random(1))
        with pytest.raises(AssertionError, match="other elements"):
            cases.check(found, "changed")
    finally:
        cases.close()


def test_a_server_that_hangs_under_way_is_an_error_after_the_timeout_of_the_store():
    pytest.importorskip("fsspec")
    pytest.importorskip("urllib3")
    server = Server(saved({"w": torch.ones(200_000)}))
    try:
        options = {"client_kwargs": {"timeout": 0.3}}
        checkpoint = rustload.open(server.url, remote=("http",), storage_options=options)
        server.fault = lambda _: "hangs"
        start = time.perf_counter()
        with pytest.raises(OSError, match="did not answer in time") as caught:
            checkpoint["w"].materialize()
        assert time.perf_counter() - start < 2
        assert caught.value.code == "Io"  # type: ignore[attr-defined]
        server.fault = lambda _: None
        assert checkpoint["w"].materialize().sum() == 200_000
    finally:
        server.close()
