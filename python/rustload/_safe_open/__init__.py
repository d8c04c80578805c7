"""`safe_open`: safetensors' own surface over every format that rustload reads, in the reference's words.

`surface` has its methods, `index` what an index means to it, `header_errors` what the reference says of a broken header, and
`prefetch` the loader that reads and uploads ahead.
"""
