"""rustload for `torch.distributed.checkpoint` (DCP): `Reader` and `Planner` load any format, `Writer` saves safetensors shards.

`rustload.torch.load_into` loads sharded models without DCP.
"""

from rustload.torch._dcp_reader import Planner, Reader
from rustload.torch._dcp_writer import Writer

__all__ = ["Planner", "Reader", "Writer"]
