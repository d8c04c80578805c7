"""`TensorMapping`: a read-only mapping from names to lazy tensors, with `stream` and `materialize` for many, and views of it.

`Checkpoint` is the mapping of all tensors of a checkpoint. `Selection` is some of them, under the same names or under others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rustload._common.options import NamesOptions, StatsOptions, StreamOptions, filled, takes
from rustload._common.sizes import format_bytes, sizes_once
from rustload._tensor.handle import LazyTensor
from rustload.errors import _error

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Callable
    from typing import Any, Self, Unpack

    from rustload import _rustload
    from rustload._checkpoint.build_stream import Order
    from rustload._checkpoint.stream import Stream
    from rustload._common.patterns import Key, Rename, Strip
    from rustload._common.statistics import Statistics
    from rustload._frameworks.adapters import HandleContext


class TensorMapping(Mapping[str, LazyTensor]):
    """The methods that a checkpoint and a selection of its tensors share."""

    __slots__ = ()

    _core: _rustload.Checkpoint
    _context: HandleContext

    def _check_open(self) -> None:
        """Raises a ValueError if the checkpoint is closed."""
        raise NotImplementedError

    def _file_name(self, name: str) -> str:
        """The name in the file of one of the tensors."""
        raise NotImplementedError

    def _handles(self, names: list[str]) -> list[LazyTensor]:
        """The lazy tensors of these names; errors as for `[name]`."""
        return [self[name] for name in names]

    def _unknown(self, argument: str | None, name: str) -> BaseException:
        """The error for a name that no tensor has."""
        raise NotImplementedError

    def _root(self) -> TensorMapping:
        """The checkpoint."""
        return self

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        """Whether it is the same one, as of files; of other mappings, whether it has the same names and lazy tensors."""
        return self is other if isinstance(other, TensorMapping) else super().__eq__(other)

    def __copy__(self) -> Self:
        """The same one, which does not change."""
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        """The same one."""
        return self

    def get(self, name: str, default: Any = None) -> Any:
        """The lazy tensor of that name, or `default`; a miss does not search for similar names."""
        return self[name] if name in self else default  # noqa: SIM401 - this is get() itself

    def select(
        self,
        pattern: str | re.Pattern[str] | Callable[[LazyTensor], bool] | Iterable[str | re.Pattern[str]],
    ) -> Selection:
        """The tensors whose names match a glob pattern, or one of several: a view, which reads nothing.

        >>> import rustload
        >>> ckpt = rustload.open("model.pt")
        >>> heads = ckpt.select("lm_head.*").strip("lm_head.")
        >>> list(heads), heads["weight"].name
        (['weight'], 'lm_head.weight')
        >>> heads.materialize(dtype="bfloat16")["weight"].dtype
        torch.bfloat16
        >>> list(ckpt.select("{q,k}.*")), list(ckpt.select(lambda tensor: tensor.name.endswith("v.weight")))
        (['q.weight', 'k.weight'], ['v.weight'])

        Args:
            pattern: As in `fnmatch`: `*` matches any characters, dots too; `?` matches one; `[ab]` matches a or b. Braces hold
                alternatives: `{q,k}`, and ranges of numbers as `rustload info` prints them, `layers.{0..7}.*`.
                Case-sensitive. Also a compiled regular expression, which is searched for in the names. Of several, the tensors
                come in the order of the patterns, each once. Or a callable from the lazy tensor, whose name is that in the
                file, to whether it is selected.

        Raises:
            TensorNotFoundError: A pattern has no glob character, and no tensor has that name. A pattern without a match emits a
                `RustloadWarning`.
            ValueError: The braces of a pattern are wrong.
        """
        import re

        from rustload._common.patterns import is_literal, matching, warn_user

        self._check_open()
        given: Any = pattern
        if callable(given):
            return self._selected([name for name, tensor in self.items() if given(tensor)])
        if isinstance(given, bytes) or not isinstance(given, (Iterable, re.Pattern)):
            raise _error("Type", f"a pattern is a str, a compiled pattern or a callable, not {given!r}")
        found: dict[str, None] = {}
        for one in [given] if isinstance(given, (str, re.Pattern)) else given:
            if isinstance(one, re.Pattern) and isinstance(one.pattern, str):
                names = [name for name in self if one.search(name)]
                if not names:
                    warn_user(f"no name matches {one.pattern!r}")
            elif isinstance(one, str):
                names = matching(self, one)
                if not names and is_literal(one):
                    raise self._unknown("pattern", one)
                if not names:
                    warn_user(f"no name matches {one!r}", one, self)
            else:
                raise _error("Type", f"a pattern is a str or a compiled pattern of one, not {one!r}")
            found.update(dict.fromkeys(names))
        return self._selected(found)

    def _selected(self, names: Iterable[str]) -> Selection:
        return Selection._of(self._root(), {name: self._file_name(name) for name in names})

    def under(self, key: Key) -> Selection:
        """The tensors that are nested under a key, with the rest of their names: a view, which reads nothing.

        Args:
            key: A dotted name such as `"state_dict"`, or a tuple of keys; None is all.

        Raises:
            ValueError: No tensor is under the key.
        """
        return self._renamed(key=key)

    def strip(self, prefix: Strip) -> Selection:
        """The same tensors under names without a prefix: a view, which reads nothing.

        Args:
            prefix: A prefix, or several of which the first that fits is removed: `"module."`, with or without the last dot.

        Raises:
            ValueError: Two tensors would get the same name.
        """
        return self._renamed(strip=prefix)

    def rename(self, rename: Rename) -> Selection:
        """The same tensors under other names: a view, which reads nothing.

        Args:
            rename: A mapping from names, prefixes of names or compiled regular expressions (replaced as by `re.sub`) to new
                names; pairs of a regular expression and its replacement; or a callable from name to name. A new name of None
                omits the tensor.

        Raises:
            ValueError: Two tensors would get the same name.
            TensorNotFoundError: A key of the mapping is neither a name nor a prefix of one.
        """
        return self._renamed(rename=rename)

    def _renamed(self, **options: Unpack[NamesOptions]) -> Selection:
        from rustload._checkpoint.names import select_names

        self._check_open()
        names = select_names(self, **options)
        return Selection._of(self._root(), {new: self._file_name(old) for new, old in names.items()})

    def _chosen(
        self, names: str | Iterable[str] | None, **options: Unpack[NamesOptions]
    ) -> tuple[list[str], list[LazyTensor]]:
        """The names of results, and the tensors, for the arguments of `stream` and `materialize`."""
        from rustload._checkpoint.names import resolve_names, select_names

        self._check_open()
        source: TensorMapping = self
        if isinstance(names, Selection) and names._source is self._root():
            source, names = names, None
        chosen = resolve_names(source, names)
        if not any(value is not None for value in options.values()):
            return chosen, source._handles(chosen)
        if names is not None:
            for name in chosen:
                if name not in source:
                    raise source._unknown("names", name)
            source = Selection._of(self._root(), {name: source._file_name(name) for name in chosen})
        renamed = select_names(source, **options)
        return list(renamed), source._handles(list(renamed.values()))

    @takes(StreamOptions)
    def stream(
        self,
        names: str | Iterable[str] | None = None,
        device: Any = None,
        dtype: Any = None,
        transpose: Any = None,
        *,
        order: Order = "file",
        **options: Unpack[StreamOptions],
    ) -> Stream:
        """Iterates over tensors; reads and casts the next ones in the background while you use the current one.

        >>> import rustload
        >>> ckpt = rustload.open("model.pt")
        >>> for name, tensor in ckpt.stream(dtype="bfloat16", transpose={"lm_head.*": True}):
        ...     print(name, tensor.dtype)
        q.weight torch.bfloat16
        k.weight torch.bfloat16
        v.weight torch.bfloat16
        lm_head.weight torch.bfloat16

        Nothing is read, and no thread is started, before the first `next`. Closing or dropping the stream stops its threads and
        frees its memory. Tied names with the same conversion get the same object, which the stream keeps until the last of
        them.

        Args:
            names: The tensors: a name or a glob pattern, a list of these, or a result of `select`; None for all.
            device: As for `LazyTensor.materialize`.
            dtype: A dtype, a callable from handle to dtype, or a mapping from glob patterns to dtypes. A plain dtype
                applies only to float64, float32, float16 and bfloat16 tensors; use a mapping or a callable for others.
            transpose: A callable, or a mapping from glob patterns, to True (swap the last two dimensions), a permutation, or
                None.
            order: `"file"` is the order of the data in the file, interleaved over several shards; `"name"` is sorted by name;
                `"given"` is the order of `names`, or of the checkpoint.
            **options: The names of results, what they are, and how they are read (`StreamOptions`).

        Returns:
            A `Stream`: an iterator over pairs of name and tensor, with `len` and `close`; a context manager.

        Raises:
            TensorNotFoundError: No tensor has one of `names`.
            ValueError: No tensor is under `key`, two results would get the same name, the transpose is a plain value,
                a cast is lossy, the stream was started before a fork (code `Forked`), or an argument has an invalid value.
            KeyboardInterrupt: Ctrl-C, within a tenth of a second.
            RustloadError: As for `LazyTensor.materialize`; the message or a note names the tensor.
        """
        from rustload._checkpoint.build_stream import build_stream

        how = filled(TensorMapping.stream, options)
        return build_stream(self, names, device, dtype, transpose, how, order=order)

    @takes(StreamOptions)
    def materialize(
        self,
        names: str | Iterable[str] | None = None,
        device: Any = None,
        dtype: Any = None,
        transpose: Any = None,
        **options: Unpack[StreamOptions],
    ) -> dict[str, Any]:
        """Reads tensors and returns them as a dict, in the order of `names` or of the checkpoint.

        >>> import rustload
        >>> state = rustload.open("model.pt").materialize(dtype="bfloat16")
        >>> state["q.weight"].dtype
        torch.bfloat16

        The peak of memory is the result plus `memory`. Tied names with the same conversion are one object. Without a conversion,
        the tensors may be views of the file: pass `copy=True` if the file will be overwritten, for example by `torch.save` to
        the same path, which changes the views or ends the process with SIGBUS.

        Args:
            names: As for `stream`, like all other arguments.
            device: As for `stream`.
            dtype: As for `stream`.
            transpose: As for `stream`.
            **options: As for `stream` (`StreamOptions`); `sync` is for the whole dict.

        Raises:
            NotEnoughMemoryError: All together need more memory than is left (docs/explain/memory.md); nothing was allocated.
            RustloadError: As for `stream`.
        """
        from rustload._checkpoint.build_stream import build_stream

        how = filled(TensorMapping.materialize, options)
        return build_stream(self, names, device, dtype, transpose, how, results_kept=True)._rest()

    @takes(StatsOptions)
    def stats(
        self, names: str | Iterable[str] | None = None, **options: Unpack[StatsOptions]
    ) -> dict[str, Statistics]:
        """Reads tensors and returns what their numbers are like: NaN, infinities, zeros, extremes, mean and standard deviation.

        Takes some MiB of memory per thread, whatever the size of the tensors.

        >>> import rustload
        >>> found = rustload.open("model.pt").stats("q.*", sample=1000)
        >>> found["q.weight"].nan
        0

        Args:
            names: As for `stream`.
            **options: How statistics are made (`StatsOptions`).

        Returns:
            The statistics by name, in the order of `names` or of the checkpoint; a notebook shows them as a table.

        Raises:
            RustloadError: As for `LazyTensor.stats`; the message or a note names the tensor.
        """
        from rustload._common.statistics import statistics_of
        from rustload._html.statistics import StatisticsByName

        how = filled(TensorMapping.stats, options)
        chosen, tensors = self._chosen(names)
        cores = [tensor._core for tensor in tensors]
        # Names of one and the same tensor have one statistic.
        different = {core.id: core for core in cores}
        by_id = dict(zip(different, statistics_of(list(different.values()), how), strict=True))
        return StatisticsByName({name: by_id[core.id] for name, core in zip(chosen, cores, strict=True)})

    def fingerprint(self, *, data: bool = False, threads: int | None = None) -> str:
        """A digest of names, dtypes and shapes, and of the elements if asked for: equal for equal tensors in any format.

        It does not depend on how the tensors are divided among files, on their order, or on strides and ties. Names that a
        writer has left out because they are tied, and recorded in the header, count as names. Values that are not tensors do not
        count. Quantized tensors count as their integers.

        >>> import rustload
        >>> report = rustload.convert("model.pt", "same.safetensors")
        >>> one, two = rustload.open("model.pt"), rustload.open("same.safetensors")
        >>> one.fingerprint(data=True) == two.fingerprint(data=True)
        True

        Args:
            data: Whether the elements count, which reads every tensor, in slices of 16 MiB per thread.
            threads: The number of threads; None for one per core.

        Returns:
            64 hexadecimal digits: the SHA-256 of the sorted names with what counts of each tensor.

        Raises:
            KeyboardInterrupt: Ctrl-C.
            RustloadError: As for `LazyTensor.materialize`.
        """
        from rustload._checkpoint.fingerprint import fingerprint

        self._check_open()
        texts = self._core.metadata if self is self._root() else {}
        return fingerprint(self, texts, data=bool(data), threads=threads)

    def _repr_html_(self) -> str:
        """HTML for notebooks: dtypes, and the folded tree of names; reads no tensor data."""
        from rustload._html.tensors import mapping_html

        names = None if self is self._root() else {name: self._file_name(name) for name in self}
        what = repr(self).strip("<>")
        title, _, remark = what.partition(" ")
        shown = self._core.files[0] if self._core.files else "PATH"
        return mapping_html(
            title, remark, f"<{what}>", self._core, names, f"list(ckpt), or rustload info {shown}"
        )

    def _ipython_key_completions_(self) -> list[str]:
        """The names, which IPython and Jupyter complete inside of `[""]`."""
        return list(self)


class Selection(TensorMapping):
    """Some tensors of a checkpoint, under the same names or under others: a read-only mapping, as the checkpoint itself.

    `Checkpoint.select`, `under`, `strip` and `rename` return it, and it has them too, so that they can be chained. It reads
    nothing, and it is as usable as its checkpoint is open. A `LazyTensor` keeps its name in the file.

    >>> import rustload
    >>> ckpt = rustload.open("model.pt")
    >>> ckpt.select(["q.*", "k.*"]).rename({"q": "query"})
    <Selection of 2 of 4 tensors, 512 B>
    """

    __slots__ = ("_context", "_core", "_names", "_source")

    _source: TensorMapping
    # The names, and those in the file.
    _names: dict[str, str]

    def __init__(self) -> None:
        """Not for users: `Checkpoint.select` and the like create selections.

        Raises:
            TypeError: Always.
        """
        raise TypeError("tensors are selected from a checkpoint: rustload.open(path).select(pattern)")

    @classmethod
    def _of(cls, source: TensorMapping, names: dict[str, str]) -> Selection:
        made = cls.__new__(cls)
        made._source, made._names = source, names
        made._core, made._context = source._core, source._context
        return made

    def __getitem__(self, name: str) -> LazyTensor:
        """The lazy tensor of that name.

        Raises:
            TensorNotFoundError: The selection has no such name; the note lists similar names.
            ValueError: The checkpoint is closed.
        """
        self._check_open()
        if not isinstance(name, str):
            raise TypeError(f"tensor names are str, not {type(name).__name__}")
        if name not in self._names:
            raise self._unknown(None, name)
        return self._source[self._names[name]]

    def __iter__(self) -> Iterator[str]:
        """The names, in the order of the selection."""
        return iter(self._names)

    def __len__(self) -> int:
        """The number of names."""
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        """Whether the selection has that name."""
        return isinstance(name, str) and name in self._names

    @property
    def nbytes(self) -> int:
        """The size in bytes of the tensors; names of one and the same tensor count once."""
        return sum(sizes_once(map(self._core.tensor, self._names.values())))

    def _file_name(self, name: str) -> str:
        return self._names[name]

    def _unknown(self, argument: str | None, name: str) -> BaseException:
        from rustload._common.patterns import unknown_name

        return unknown_name(argument, name, self, "selected tensor")

    def _root(self) -> TensorMapping:
        return self._source

    def _check_open(self) -> None:
        self._source._check_open()

    def __repr__(self) -> str:
        """The number of tensors and their size; reads nothing."""
        return f"<Selection of {len(self)} of {len(self._source)} tensors, {format_bytes(self.nbytes)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the checkpoint and the names; see `Checkpoint`."""
        return restored_selection, (self._source, self._names)


def restored_selection(source: TensorMapping, names: dict[str, str]) -> Selection:
    """The selection that was pickled; called by unpickling."""
    return Selection._of(source, names)
