"""Random tensors, requests, rings, threads, windows and delays: the bytes on the device equal the CPU's in any order."""

import random

import pytest
import torch
from support import DTYPES, patterns


def random_tensor(dice: random.Random) -> torch.Tensor:
    """A tensor of any dtype, shape and strides, mostly small."""
    shape = [dice.choice([0, 1, 1, 2, 3, 7, 20, 61]) for _ in range(dice.randrange(4))]
    if dice.random() < 0.15:
        shape = [dice.randrange(200, 500), dice.randrange(200, 700)]
    found = patterns(dice.choice(DTYPES), tuple(shape), seed=dice.randrange(1000))
    if found.ndim > 1 and dice.random() < 0.5:
        found = found.permute(dice.sample(range(found.ndim), found.ndim))
    if found.ndim and dice.random() < 0.4:
        found = found[dice.randrange(2) :: dice.randrange(1, 4)]
    return found


@pytest.mark.parametrize("seed", range(6))
def test_random_uploads_equal_the_cpus_results(on_fake, save, seed):
    dice = random.Random(seed)
    path = save({f"t{number}": random_tensor(dice) for number in range(250)})
    on_fake(
        """
        import random, sys
        import fakecuda, rustload
        from fakecuda import Request
        from rustload import _rustload

        dice = random.Random(int(sys.argv[2]))
        tensors = list(rustload.open(sys.argv[1]).values())
        uploads = [_rustload.upload(0, window=dice.choice([0, 1 << 16, 1 << 28]), threads=dice.randrange(1, 5)) for _ in range(2)]

        def random_request(tensor):
            dims = list(range(tensor.ndim))
            dice.shuffle(dims)
            return Request(
                dtype=dice.choice([None, None, "float32", "bfloat16", "float8_e4m3fn", "int8", "complex64"]),
                transpose=dice.choice([None, dims]),
                allow_lossy=True,
            )

        open_tickets = []
        for _ in range(25):
            if open_tickets and dice.random() < 0.4:
                upload, ticket, chosen, wanted, into = open_tickets.pop(dice.randrange(len(open_tickets)))
                upload.wait(ticket, stream=dice.choice([None, 0]), sync=True)
                for tensor, want, buffer in zip(chosen, wanted, into, strict=True):
                    assert fakecuda.read(buffer) == fakecuda.expected(tensor, want), (tensor.name, want)
            else:
                upload = dice.choice(uploads)
                chosen = dice.choices(tensors, k=dice.randrange(60))
                wanted = [random_request(tensor) for tensor in chosen]
                stream, slab = dice.choice([None, 0]), dice.random() < 0.7
                ticket, into = fakecuda.submit(upload, chosen, wanted, stream=stream, slab=slab)
                open_tickets.append((upload, ticket, chosen, wanted, into))
            fakecuda.delay(dice.choice([0, 50, 1000]))
        for upload in uploads:
            upload.close()
        del open_tickets, into, buffer
        assert fakecuda.count("memory") == fakecuda.count("stray") == fakecuda.count("pageable") == 0
        """,
        path,
        seed,
        RUSTLOAD_RING=dice.choice(["4096x3", "8192x2", "65536x5", "1048576x4"]),
        FAKECUDA_SEED=seed,
    )
