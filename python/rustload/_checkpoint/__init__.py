"""An opened checkpoint, the names that users call its tensors by, and the verbs for many tensors at once.

`open` makes one, and `checkpoint` is the mapping from names to lazy tensors. `requests` checks what is asked for many tensors at
once, `stream` hands them out one after the other, and `makers` makes them, in the memory of the host or on a GPU. `names` is
`key=`, `strip=` and `rename=`.
"""
