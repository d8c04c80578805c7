from __future__ import annotations

import re


def should_skip_weight(weight_name, local_expert_ids):
    found = re.search(r"\.experts\.(\d+)\.", weight_name)
    is_weight = weight_name.endswith((".weight", ".weight_packed"))
    return bool(found) and is_weight and int(found[1]) not in local_expert_ids
