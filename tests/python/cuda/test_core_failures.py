"""Every driver call fails once: the error names the call, nothing leaks or stays in flight, and the next upload works."""

from support import patterns

# `once` uploads and returns whether it arrived; it may only fail with a DeviceError that names the call.
START = """
    import gc, os, sys
    import fakecuda, rustload
    from fakecuda import Request
    from rustload import DeviceError, _rustload

    tensors = list(rustload.open(sys.argv[1]).values())
    ways = [Request(), Request(dtype="bfloat16"), Request(transpose=True)]
    wanted = [ways[number % 3] for number in range(len(tensors))]
    expected = [fakecuda.expected(tensor, want) for tensor, want in zip(tensors, wanted, strict=True)]

    def once(name="", rate=False):
        # The message has the function's name without its version suffix.
        short = name.removesuffix("_v2")
        try:
            upload = _rustload.upload(0, window=1 << 20, threads=2)
            if rate:
                upload.rate()
            ticket, into = fakecuda.submit(upload, tensors, wanted, stream=0)
            upload.wait(ticket, stream=0, sync=True)
            assert [fakecuda.read(buffer) for buffer in into] == expected
            second, into = fakecuda.submit(upload, tensors, wanted, into)
            upload.wait(second, stream=None, sync=True)
            assert [fakecuda.read(buffer) for buffer in into] == expected
            upload.close()
            return True
        except DeviceError as error:
            message = str(error)
            assert short in message or (name == "cuInit" and "no GPU" in message), (name, message)
            return False
"""


def test_the_first_call_of_each_function_fails_in_a_fresh_process(on_fake, save):
    path = save({f"w{number}": patterns("float32", (60, 70 + number)) for number in range(6)})
    out = on_fake(
        """
    # A fork for each function, before the driver is started: only its first call fails.
    hit = []
    for name in fakecuda.functions():
        if not (pid := os.fork()):
            try:
                fakecuda.fail(name)
                arrived = once(name, rate=True)
                fakecuda.fail(name, 0)
                assert once(rate=True)
                gc.collect()
                alive = fakecuda.alive()
                assert alive["memory"] <= (name == "cuMemFree_v2"), (name, alive)
                is_pinned = name != "cuMemHostRegister_v2"
                assert (alive["registered"], alive["contexts"]) == (is_pinned, 1), (name, alive)
                assert alive["streams"] <= 5 and alive["events"] <= 12, (name, alive)
                assert fakecuda.count("stray") == 0 and is_pinned == (fakecuda.count("pageable") == 0)
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(2)
            os._exit(0 if arrived else 1)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code in (0, 1), (name, code)
        if code == 1:
            hit.append(name)
    print(*hit)
    """,
        path,
        RUSTLOAD_RING="65536x4",
        FAKECUDA_DELAY=100,
    ).stdout
    reported = set(out.split())
    # Failures to release are not reported, nor is memory that stays unpinned; an upload does not need the last three functions.
    quiet = {
        "cuMemFree_v2",
        "cuStreamDestroy_v2",
        "cuEventDestroy_v2",
        "cuMemHostRegister_v2",
        "cuMemHostUnregister",
        "cuDevicePrimaryCtxRelease_v2",
    }
    quiet |= {"cuDriverGetVersion", "cuMemcpyDtoH_v2", "cuStreamSynchronize"}
    assert {
        "cuInit",
        "cuStreamCreate",
        "cuEventRecord",
        "cuMemcpyHtoDAsync_v2",
    } <= reported
    assert not reported & (quiet - {"cuStreamSynchronize"})


def test_the_nth_call_of_each_function_fails(on_fake, save):
    path = save({f"w{number}": patterns("float32", (60, 170 + number)) for number in range(12)})
    out = on_fake(
        """
    assert once()
    most = fakecuda.alive()
    failed = set()
    for name in fakecuda.functions():
        for nth in (1, 2, 3, 5, 8, 13, 21, 34):
            fakecuda.fail(name, nth)
            if not once(name):
                failed.add(name)
            fakecuda.fail(name, 0)
            gc.collect()
            assert fakecuda.count("memory") <= most["memory"] + (name == "cuMemFree_v2"), (name, nth)
            most["memory"] = fakecuda.count("memory")
    assert once()
    gc.collect()
    alive = fakecuda.alive()
    # A stream or an event whose destruction failed stays alive in the driver.
    assert alive["registered"] == alive["contexts"] == 1, alive
    assert alive["streams"] <= most["streams"] + 1 and alive["events"] <= most["events"] + 8, (alive, most)
    assert fakecuda.count("stray") == fakecuda.count("pageable") == 0
    print(*failed)
    """,
        path,
        RUSTLOAD_RING="65536x4",
        FAKECUDA_DELAY=100,
    ).stdout
    assert {
        "cuMemAlloc_v2",
        "cuStreamWaitEvent",
        "cuStreamIsCapturing",
        "cuEventRecord",
        "cuEventQuery",
        "cuMemcpyHtoDAsync_v2",
        "cuCtxGetCurrent",
        "cuCtxSetCurrent",
    } <= set(out.split())


def test_a_failed_device_allocation_is_reported(on_fake):
    on_fake(
        """
    import fakecuda
    from rustload import DeviceError, _rustload

    upload = _rustload.upload(0, window=1 << 20, threads=2)
    try:
        upload.allocate(1 << 60)
    except DeviceError as error:
        assert "cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY" in str(error)
    assert upload.allocate(0).nbytes == 0 and fakecuda.count("memory") == 0
    """,
        start="",
    )
