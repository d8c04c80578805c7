"""The rules of a SARIF log: one for each code of findings and for each verdict that it can have.

GitHub takes the severity of an alert from its rule, so a code that has several verdicts has several rules: `Import`, and
`Import/would-execute`. Every log has all rules, so that a reader can tell a rule without results from an unknown one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from rustload._scan.codes import NOTED_ERRORS, SCAN_CODES, error_codes

if TYPE_CHECKING:
    from rustload._scan.verdict import Verdict

NOT_SCANNED = "NotScanned"
"""The rule of a part that was not scanned: it is not a code of a finding, and it makes a file unknown, too."""

LEVELS = {"inert": "note", "unknown": "warning", "would execute": "error"}
_SUFFIXES = {"inert": "/note", "unknown": "/unknown", "would execute": "/would-execute"}
# GitHub: above 9.0 is critical, from 4.0 on medium. Damage may hide what another reader sees.
_DAMAGE_SCORE, _UNKNOWN_SCORE = "6.5", "5.0"
_SCORES = {"inert": None, "unknown": _UNKNOWN_SCORE, "would execute": "9.3"}
_CWE = "external/cwe/cwe-502"  # deserialization of untrusted data

_NEXT = {
    "inert": "No reader runs anything because of this.",
    "unknown": "Find out what the file names before a program unpickles it. rustload opens it without running anything. "
    "If you know and trust it, accept it with --allow, a policy file or a baseline.",
    "would execute": "Do not load the file with a reader that runs pickles, such as torch.load(weights_only=False). "
    "rustload opens it without running anything. Ask its author for a safetensors file.",
}


class _Rule(NamedTuple):
    code: str
    verdict: Verdict
    what: str
    then: str
    score: str | None


def rule_of(code: str, verdict: str) -> str:
    """The id of the rule of a finding: that of its verdict, or of its code if that verdict is not expected of the code."""
    usual = SCAN_CODES[code].verdicts[0] if code in SCAN_CODES else "unknown"
    specific = code if verdict == usual else code + _SUFFIXES[verdict]
    return specific if specific in RULE_IDS else code


def rules() -> list[dict[str, Any]]:
    """All rules as SARIF's `reportingDescriptor` objects."""
    return [_descriptor(id_, rule) for id_, rule in _RULES.items()]


def _table() -> dict[str, _Rule]:
    table: dict[str, _Rule] = {}
    for code, (verdicts, meaning, executes) in SCAN_CODES.items():
        for verdict in verdicts:
            id_ = code if verdict == verdicts[0] else code + _SUFFIXES[verdict]
            what = executes if executes and verdict == "would execute" else meaning
            score = _SCORES[verdict] if code not in ("Polyglot", "FrameDivergence") else _DAMAGE_SCORE
            table[id_] = _Rule(code, verdict, what, "", score)
    for code, kind, what, then in error_codes():
        score = _DAMAGE_SCORE if kind in ("Format", "Limit") else _UNKNOWN_SCORE
        table[code] = _Rule(code, "unknown", what, then, score)
        if code in NOTED_ERRORS:
            table[code + _SUFFIXES["inert"]] = _Rule(code, "inert", what, then, None)
    table[NOT_SCANNED] = _Rule(
        NOT_SCANNED,
        "unknown",
        "A part of the file may contain a pickle and was not scanned.",
        "Raise the limit that the message names, or unpack the part and scan it.",
        _UNKNOWN_SCORE,
    )
    return table


def _descriptor(id_: str, rule: _Rule) -> dict[str, Any]:
    effect = {
        "inert": "Unpickling the file only creates data, as far as this finding goes.",
        "unknown": "What unpickling the file does is unknown.",
        "would execute": "Unpickling the file runs code or accesses the system.",
    }[rule.verdict]
    then = f"{rule.then} {_NEXT[rule.verdict]}".strip()
    precision = "very-high" if rule.verdict == "would execute" else "high"
    properties: dict[str, Any] = {"precision": precision}
    if rule.score is not None:
        properties |= {"security-severity": rule.score, "tags": ["security", _CWE]}
    return {
        "id": id_,
        "shortDescription": {"text": rule.what},
        "fullDescription": {"text": f"{rule.what} {effect}"},
        "help": {"text": then, "markdown": f"**{rule.code}**: {rule.what} {effect}\n\n{then}"},
        "defaultConfiguration": {"level": LEVELS[rule.verdict]},
        "properties": properties,
    }


_RULES = _table()
RULE_IDS = {id_: index for index, id_ in enumerate(_RULES)}
"""The index of each rule in the list of `rules`."""
