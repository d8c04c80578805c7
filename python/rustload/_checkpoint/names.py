"""The arguments `names=`, `key=`, `strip=` and `rename=`: which tensors of a checkpoint to use, and under which names."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from rustload._common.patterns import NAMES_SEARCHED_MAX, is_literal, matching, warn_user
from rustload._common.similar import did_you_mean, similar
from rustload.errors import _error, _pass

if TYPE_CHECKING:
    from rustload._common.options import NamesOptions
    from rustload._common.patterns import Key, Rename, Strip
    from rustload._tensor.handle import LazyTensor


def resolve_names(tensors: Mapping[str, LazyTensor], names: str | Iterable[str] | None) -> list[str]:
    """Converts `names=` to a list of names; None means all. Whether a plain name exists is not checked.

    Args:
        tensors: The checkpoint or selection.
        names: A name or a glob pattern, or several. A pattern adds the names that are not in the list already; one without a
            match emits a `RustloadWarning`.

    Raises:
        TypeError: `names` is not a str, and not iterable.
    """
    if names is None:
        return list(tensors)
    given: Any = names
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise _error("Type", f"is a list of names and patterns, not {given!r}", argument="names")
    found: list[str] = []
    for name in [given] if isinstance(given, str) else given:
        if not isinstance(name, str) or is_literal(name) or name in tensors:
            # The results have plain names, as a pickle of their dict should.
            found.append(str.__str__(name) if isinstance(name, str) else name)
            continue
        matched = matching(tensors, name)
        if not matched:
            warn_user(f"has the pattern {name!r}, which matches no name", name, tensors, argument="names")
        there = set(found)
        found += [one for one in matched if one not in there]
    return found


def select_tensors(
    checkpoint: Mapping[str, LazyTensor], **options: Unpack[NamesOptions]
) -> dict[str, LazyTensor]:
    """As `select_names`, with the handles in place of the names in the checkpoint."""
    # The handles are made last: that takes longer than to find that nothing matches.
    return {new: checkpoint[name] for new, name in select_names(checkpoint, **options).items()}


def select_names(
    checkpoint: Mapping[str, LazyTensor], key: Key = None, strip: Strip = None, rename: Rename = None
) -> dict[str, str]:
    """Selects the tensors under `key` and renames them, as `NamesOptions` says.

    Returns:
        The name in the checkpoint of each new name, in the checkpoint's order.

    Raises:
        ValueError: No tensor is under `key`, or two tensors would get the same name.
        TypeError: `rename` has another type.
    """
    names, short = _under_key(checkpoint, key)
    prefixes = _prefixes_of(strip)
    if prefixes:
        whole, short = short, [strip_prefix(name, prefixes) for name in short]
        if short == whole:
            warn_user(
                f"takes nothing off: no name begins with {' or '.join(map(repr, prefixes))}",
                None if key else prefixes[0],
                checkpoint,
                argument="strip",
            )
    change = _renamer(rename)
    _check_rename(rename, short)
    result: dict[str, str] = {}
    for before, name in zip(short, names, strict=True):
        new = change(before)
        if new is None:
            continue
        if new in result:
            both = f"{result[new]!r} and {name!r}"
            raise _error(
                "Value",
                f"{both} would both be named {new!r}",
                _pass("rename", "to give one of them another name"),
            )
        result[new] = name
    return result


def _under_key(checkpoint: Mapping[str, LazyTensor], key: Key) -> tuple[list[str], list[str]]:
    """The names of the tensors under a key, in the checkpoint and under the key.

    Raises:
        ValueError: There is none.
    """
    if key is None:
        names = list(checkpoint)
        return names, names
    if isinstance(key, tuple):
        paths = ((name, handle.path) for name, handle in checkpoint.items())
        below = {
            name: ".".join(map(str, path[len(key) :]))
            for name, path in paths
            if path[: len(key)] == key and len(path) > len(key)
        }
    elif not isinstance(key, str):
        raise _error("Type", f"is a dotted name or a tuple of keys, not {key!r}", argument="key")
    else:
        prefix = key.rstrip(".") + "."
        below = {name: name.removeprefix(prefix) for name in checkpoint if name.startswith(prefix)}
    if not below:
        searched = itertools.islice(checkpoint.values(), NAMES_SEARCHED_MAX)
        groups = Counter(str(handle.path[0]) for handle in searched if handle.path)
        there = ", ".join(f"{name!r} ({count})" for name, count in groups.most_common(8))
        there += f", and {len(groups) - 8:,} more" * (len(groups) > 8)
        if len(checkpoint) > NAMES_SEARCHED_MAX:
            there += f", among the first {NAMES_SEARCHED_MAX:,} of {len(checkpoint):,}"
        raise _error("Value", f"no tensor is under key {key!r}", f"tensors are under: {there or 'nothing'}")
    return list(below), list(below.values())


def names_left_out(tensors: Mapping[str, LazyTensor], texts: Mapping[str, str]) -> dict[str, str]:
    """For each name that a writer has left out because another has the same tensor, that other one: the header's texts say so."""
    # "format" is the framework, such as `pt`, which a tensor may be called too.
    return {
        name: kept
        for name, kept in texts.items()
        if kept in tensors and name not in tensors and name != "format"
    }


def renamed_ties(
    ties: Mapping[str, str],
    names: Mapping[str, str],
    key: Key = None,
    strip: Strip = None,
    rename: Rename = None,
) -> dict[str, str]:
    """The ties of `names_left_out` under the new names of `select_names`, which are `names`, without those of no tensor."""
    new_names = {name: new for new, name in names.items()}
    whole = ".".join(map(str, key)) if isinstance(key, tuple) else key
    prefix = "" if whole is None else whole.rstrip(".") + "."
    change = renamer(strip, rename)
    found = {}
    for name, kept in ties.items():
        if kept in new_names and name.startswith(prefix):
            new = change(name.removeprefix(prefix))
            if new is not None and new not in names:
                found[new] = new_names[kept]
    return found


def below(tree: Any, key: Key) -> Any:
    """The value under a key of an object tree; None without one."""
    for step in key if isinstance(key, tuple) else key.rstrip(".").split(".") if key else ():
        tree = tree.get(step) if isinstance(tree, Mapping) else None
    return tree


def _prefixes_of(strip: Any) -> list[str]:
    """The prefixes of `strip=`.

    Raises:
        TypeError: It is not a str, and not several.
    """
    given = [strip] if isinstance(strip, str) else strip or ()
    prefixes = list(given) if isinstance(given, Iterable) else [given]
    for one in prefixes:
        if not isinstance(one, str):
            raise _error("Type", f"is a prefix or a list of prefixes, not {strip!r}", argument="strip")
    return prefixes


def strip_prefix(name: str, prefixes: list[str]) -> str:
    """Removes the first of the prefixes that the name has."""
    for prefix in prefixes:
        whole = prefix.rstrip(".") + "."
        if name.startswith(whole):
            return name[len(whole) :]
    return name


def renamer(strip: Strip, rename: Rename) -> Callable[[str], str | None]:
    """The function from a name below `key` to its new name, as `select_names` applies it; None omits it."""
    prefixes = _prefixes_of(strip)
    change = _renamer(rename)
    return lambda name: change(strip_prefix(name, prefixes))


def _renamer(rename: Any) -> Callable[[str], str | None]:
    if rename is None:
        return lambda name: name
    if isinstance(rename, Mapping):
        return _mapping_renamer(rename)
    if callable(rename):
        return lambda name: _new_name(rename(name))
    if isinstance(rename, (str, bytes)) or not isinstance(rename, Iterable):
        raise _error("Type", f"is a mapping, pairs or a callable, not {rename!r}", argument="rename")
    pairs = [_pair(given) for given in rename]

    def substitute(name: str) -> str:
        for pattern, new in pairs:
            name = pattern.sub(new, name)
        return name

    return substitute


def _pair(given: Any) -> tuple[re.Pattern[str], Any]:
    """A regular expression and its replacement, of which `rename` has several.

    Raises:
        TypeError: It is not such a pair.
        ValueError: The expression is not one, or the replacement names a group that it does not have.
    """
    try:
        pattern, new = [given] if isinstance(given, str) else given
        compiled = re.compile(pattern)
        if not callable(new):
            compiled.sub(new, "")  # an error if there is no such group
    except (TypeError, ValueError, re.error) as error:
        code, why = ("Value", f": {error}") if isinstance(error, re.error) else ("Type", "")
        text = f"has {given!r}, which is not a regular expression and a replacement{why}"
        raise _error(code, text, argument="rename") from None
    return compiled, new


def _new_name(new: Any) -> str | None:
    """The result of a `rename`, as a plain str; None omits the name.

    Raises:
        TypeError: It is neither.
    """
    if new is None:
        return None
    if not isinstance(new, str):
        raise _error("Type", f"gives {new!r}, not a str or None", argument="rename")
    return str.__str__(new)


def _check_rename(rename: Any, names: list[str]) -> None:
    """Warns of regular expressions without a match; omitting (None) a name that does not exist is not an error.

    Raises:
        TensorNotFoundError: A str key of a mapping is neither a name nor a prefix of one.
    """
    if callable(rename) or rename is None:
        return
    if not isinstance(rename, Mapping):
        rename = {re.compile(pattern): new for pattern, new in rename}
    unfound = {old.rstrip(".") for old, new in rename.items() if isinstance(old, str) and new is not None}
    unfound -= unfound.intersection(names)
    # Most names begin with none of a few; of many, each name is compared with its own prefixes.
    few = tuple(f"{prefix}." for prefix in unfound) if len(unfound) <= 8 else ("",)
    for name in (name for name in names if name.startswith(few)):
        if not unfound:
            break
        prefix = name
        while prefix:
            unfound.discard(prefix)
            prefix = prefix.rpartition(".")[0]
    for old, new in rename.items():
        if isinstance(old, re.Pattern):
            if not any(old.search(name) for name in names):
                warn_user(f"has the pattern {old.pattern!r}, which is found in no name", argument="rename")
        elif new is not None and old.rstrip(".") in unfound:
            near = did_you_mean(similar(old.rstrip("."), _prefixes(names)))
            note = near or "names are renamed as they are below the key, without the stripped prefix"
            text = f"names {old!r}, and no name is that or begins with it"
            raise _error("NotFound", text, note, argument="rename")


def _prefixes(names: list[str]) -> dict[str, None]:
    """The names, and what they begin with; each once, of the first names only."""
    parts = (name.split(".") for name in itertools.islice(names, NAMES_SEARCHED_MAX))
    prefixes = (".".join(one[:count]) for one in parts for count in range(1, len(one) + 1))
    return dict.fromkeys(itertools.islice(prefixes, NAMES_SEARCHED_MAX))


def _mapping_renamer(rename: Mapping[Any, str | None]) -> Callable[[str], str | None]:
    """Applies the first that matches: the full name, the longest prefix, or else every regular expression in turn."""
    exact = {key.rstrip("."): _new_name(new) for key, new in rename.items() if isinstance(key, str)}
    patterns = [(key, new) for key, new in rename.items() if not isinstance(key, str)]
    for key, new in patterns:
        if not isinstance(key, re.Pattern):
            text = f"has a {type(key).__name__} as a key, not a text or a compiled pattern"
            raise _error("Type", text, argument="rename")
        if new is not None:
            _pair((key, new))

    def change(name: str) -> str | None:
        head = name
        while head:
            if head in exact:
                new, tail = exact[head], name[len(head) :]
                if new is None or not tail:
                    return new
                return new.rstrip(".") + tail if new else tail[1:]
            head = head.rpartition(".")[0]
        for pattern, new in patterns:
            if pattern.search(name):
                if new is None:
                    return None
                name = pattern.sub(new, name)
        return name

    return change


def unflatten(values: Mapping[str, Any], separator: str = ".") -> dict[str, Any]:
    """Converts a flat dict to nested dicts (a pytree): `{"a.b": 1}` becomes `{"a": {"b": 1}}`.

    Numbers stay strings: `"layers.0.w"` is at `["layers"]["0"]["w"]`.

    Raises:
        ValueError: A name is also a prefix of another.
    """
    root: dict[str, Any] = {}
    created = {id(root)}
    for name, value in values.items():
        *outer, last = name.split(separator)
        node = root
        for part in outer:
            if part not in node:
                node[part] = {}
                created.add(id(node[part]))
            node = node[part]
            if id(node) not in created:
                raise _error("Value", f"{name!r} is inside of what is a value itself")
        if last in node:
            raise _error("Value", f"{name!r} is a value, and others are inside of it")
        node[last] = value
    return root
