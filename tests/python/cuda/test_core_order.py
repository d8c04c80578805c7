"""Ordering of uploads: the caller's streams, errors, closing, Ctrl-C."""

from support import patterns

START = """
    import sys, time
    import fakecuda, rustload
    from fakecuda import Request
    from rustload import DeviceError, FormatError, _rustload

    import pytest

    fakecuda.enter()
    tensors = list(rustload.open(sys.argv[1]).values())
    expected = [fakecuda.expected(tensor, Request()) for tensor in tensors]
    upload = _rustload.upload(0, window=1 << 28, threads=3)

    def has_arrived(into):
        return [fakecuda.read(buffer) for buffer in into] == expected
"""


def test_copies_wait_for_earlier_work_of_the_callers_stream(on_fake, simple):
    """Work that the caller enqueued may still use the memory, and work that it enqueues next must see the upload."""
    on_fake(
        """
    for stream in (fakecuda.stream(), 0):
        into = fakecuda.destinations(upload, tensors, [Request()] * len(tensors))
        for buffer in into:
            fakecuda.fill(stream, buffer, 0xAA, 300_000)
        start = time.monotonic()
        ticket, _ = fakecuda.submit(upload, tensors, Request(), into, stream=stream)
        upload.wait(ticket, stream=stream, sync=False)
        # The host did not wait.
        assert time.monotonic() - start < 0.5 and not has_arrived(into)
        seen = [fakecuda.Snapshot(stream, buffer).bytes() for buffer in into]
        assert seen == expected and has_arrived(into)
        # Without `stream=` nothing orders the upload after the fill, and the upload arrives first.
        for buffer in into:
            fakecuda.fill(stream, buffer, 0xBB, 150_000)
        ticket, _ = fakecuda.submit(upload, tensors, Request(), into)
        upload.wait(ticket, stream=None, sync=True)
        assert has_arrived(into)
        fakecuda.synchronize(stream)
        assert not has_arrived(into)
    """,
        simple,
    )


def test_sync_waits_on_the_host(on_fake, simple):
    on_fake(
        """
    stream = fakecuda.stream()
    into = fakecuda.destinations(upload, tensors, [Request()] * len(tensors))
    fakecuda.fill(stream, into[0], 0xAA, 100_000)
    ticket, _ = fakecuda.submit(upload, tensors, Request(), into, stream=stream)
    upload.wait(ticket, stream=None, sync=True)
    assert has_arrived(into)
    """,
        simple,
        FAKECUDA_DELAY=50_000,
    )


def test_a_stream_that_captures_a_graph_is_refused(on_fake, simple):
    on_fake(
        """
    import os
    stream = fakecuda.stream()
    os.environ["FAKECUDA_CAPTURING"] = "1"
    with pytest.raises(DeviceError, match="CUDA graph"):
        fakecuda.submit(upload, tensors, Request(), stream=stream)
    os.environ["FAKECUDA_CAPTURING"] = "0"
    ticket, into = fakecuda.submit(upload, tensors, Request(), stream=stream)
    upload.wait(ticket, stream=stream, sync=True)
    assert has_arrived(into)
    """,
        simple,
    )


def test_a_graph_that_other_code_captures_is_not_disturbed(on_fake, simple):
    """The first upload registers the ring and creates events; workers query them: each would end a capture in global mode."""
    on_fake(
        """
    stream = fakecuda.stream()
    for _ in range(3):
        ticket, into = fakecuda.submit(upload, tensors, Request(), stream=stream)
        upload.wait(ticket, stream=stream, sync=True)
        assert has_arrived(into)
        del into
    upload.rate()
    upload.close()
    assert fakecuda.library().fakecuda_capture_mode() == 0
    assert not fakecuda.capture(None)
    # Without the relaxed mode, the same call ends the capture.
    fakecuda.capture(captured)
    assert fakecuda.library().cuMemFree_v2(0) == 900 and fakecuda.capture(None)
    """,
        simple,
        start=START.replace("upload = ", "fakecuda.capture(captured := fakecuda.stream()); upload = "),
        FAKECUDA_DELAY=2000,
    )


def test_the_callers_context_is_restored(on_fake, simple):
    on_fake(
        """
    import ctypes
    def current():
        found = ctypes.c_void_p()
        fakecuda.library().cuCtxGetCurrent(ctypes.byref(found))
        return found.value
    other = _rustload.upload(1, window=1 << 28, threads=1)
    for device in (None, 0, 1):
        if device is None:
            fakecuda.library().cuCtxSetCurrent(None)
        else:
            fakecuda.enter(device)
        before = current()
        for session in (upload, other):
            ticket, into = fakecuda.submit(session, tensors, Request(), stream=None)
            session.wait(ticket, stream=None, sync=True)
            session.rate()
            assert has_arrived(into) and current() == before
            del into
    assert {d: b.__dlpack_device__() for d, b in enumerate([upload.allocate(1), other.allocate(1)])} == {0: (2, 0), 1: (2, 1)}
    with pytest.raises(ValueError, match="the destination is on CUDA device 1, the upload goes to 0"):
        fakecuda.submit(upload, tensors, Request(), [other.allocate(len(data)) for data in expected])
    """,
        simple,
        FAKECUDA_DEVICES=2,
    )


def test_arguments_are_checked(on_fake, simple):
    on_fake(
        """
    def refused(text, *args):
        with pytest.raises(ValueError, match=text):
            fakecuda.submit(upload, tensors, Request(), *args)
    host = [tensor.materialize(framework="dlpack", copy=True) for tensor in tensors]
    refused("the destination is in host memory", host)
    refused("there are 2 tensor.s. and 1 destination", [upload.allocate(8)])
    refused("the result takes .* the destination has 7 .w|b.", [upload.allocate(7), upload.allocate(7)])
    with pytest.raises(ValueError, match="no ticket 9"):
        upload.wait(9, stream=None, sync=False)
    ticket, into = fakecuda.submit(upload, tensors, Request())
    upload.wait(ticket, stream=None, sync=True)
    with pytest.raises(ValueError, match="waited for before"):
        upload.wait(ticket, stream=None, sync=True)
    ticket, _ = fakecuda.submit(upload, [], Request(), [])
    upload.wait(ticket, stream=None, sync=True)
    upload.close()
    upload.close()
    with pytest.raises(ValueError, match="closed"):
        fakecuda.submit(upload, tensors, Request(), into)
    """,
        simple,
    )


def test_an_error_names_its_tensor_and_leaves_nothing_in_flight(on_fake, save):
    tensors = {f"w{number}": patterns("float32", (200, 300), seed=number) for number in range(40)}
    path = save(tensors)
    on_fake(
        """
    good = fakecuda.submit(upload, tensors, Request())
    ways = [Request(dtype="int8") if tensor.name == "w30" else Request() for tensor in tensors]
    free = [upload.allocate(tensor.nbytes // (4 if tensor.name == "w30" else 1)) for tensor in tensors]
    cores = [tensor._core for tensor in tensors]
    ticket = upload.submit(list(zip(cores, ways, strict=True)), free, stream=None)
    after = fakecuda.submit(upload, tensors, Request())
    with pytest.raises(ValueError, match="lossy") as error:
        upload.wait(ticket, stream=None, sync=True)
    assert "w30" in str(error.value) + "".join(error.value.__notes__)
    # The memory may be freed at once.
    del free, error
    assert fakecuda.count("copies") > 5
    # The tickets before and after it are unaffected.
    for ticket, into in (good, after):
        upload.wait(ticket, stream=None, sync=True)
        assert has_arrived(into)
    time.sleep(0.1)
    assert fakecuda.count("stray") == 0
    """,
        path,
        RUSTLOAD_RING="65536x6",
        FAKECUDA_DELAY=5000,
    )


def test_a_file_that_changes_after_open_is_an_error(on_fake, save):
    for change in ("os.truncate(sys.argv[1], 5_000_000)", "os.utime(sys.argv[1])"):
        path = save({f"w{number}": patterns("float32", (500, 700), seed=number) for number in range(6)})
        on_fake(
            f"""
    import os
    into = [upload.allocate(tensor.nbytes) for tensor in tensors]
    {change}
"""
            """
    cores = [tensor._core for tensor in tensors]
    ticket = upload.submit([(core, Request()) for core in cores], into, stream=None)
    with pytest.raises(FormatError, match="changed after it was opened") as error:
        upload.wait(ticket, stream=None, sync=True)
    assert error.value.code == "FileChanged"
    """,
            path,
            RUSTLOAD_RING="65536x6",
        )


def test_a_dropped_upload_stops_and_leaves_nothing_in_flight(on_fake, save):
    path = save({f"w{number}": patterns("float32", (500, 700), seed=number) for number in range(40)})
    on_fake(
        """
    for end in (upload.close, lambda: None):
        for _ in range(3):
            ticket, into = fakecuda.submit(upload, tensors, Request(), slab=False)
        time.sleep(0.02)
        begun = fakecuda.count("copies")
        assert begun > 0
        start = time.monotonic()
        end()
        del upload
        del into
        assert time.monotonic() - start < 1
        assert fakecuda.count("bytes") < 3 * sum(map(len, expected))
        assert fakecuda.count("memory") == 0
        time.sleep(0.1)
        assert fakecuda.count("stray") == 0
        upload = _rustload.upload(0, window=1 << 28, threads=3)
    ticket, into = fakecuda.submit(upload, tensors, Request())
    upload.wait(ticket, stream=None, sync=True)
    assert has_arrived(into)
    """,
        path,
        RUSTLOAD_RING="65536x6",
        FAKECUDA_DELAY=3000,
    )


def test_ctrl_c_interrupts_a_wait(on_fake, simple):
    """With and without `sync`, while the copies wait for a slow stream."""
    on_fake(
        """
    import os, signal, threading
    # Where tests run in the background, the signal is ignored from the start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stream = fakecuda.stream()
    for sync in (True, False):
        into = fakecuda.destinations(upload, tensors, [Request()] * len(tensors))
        fakecuda.fill(stream, into[0], 0, 1_000_000)
        ticket = [fakecuda.submit(upload, tensors, Request(), into, stream=stream)[0] for _ in range(30)][-1]
        sent = []
        def interrupt():
            time.sleep(0.2)
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            upload.wait(ticket, stream=None, sync=sync)
        assert time.monotonic() - sent[0] < 0.3, time.monotonic() - sent[0]
        upload.close()
        assert fakecuda.count("stray") == 0
        upload = _rustload.upload(0, window=1 << 28, threads=1)
    """,
        simple,
        RUSTLOAD_RING="65536x4",
    )
