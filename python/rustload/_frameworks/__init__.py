"""The frameworks that results can be made for: a buffer or a request of the core's in, a framework's tensor out.

`adapters` chooses one and says what each module offers. A module imports its framework; none is imported before it is needed.
Nothing here knows a handle or an open checkpoint.
"""
