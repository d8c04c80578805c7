//! The names of what a program calls, which torch's reader looks up attribute by attribute (`deserialize_operator`).

use super::super::super::gadgets;
use super::super::super::verdict::Verdict;
use super::schema::is_name;

/// Namespaces whose operators compute with tensors.
const NAMESPACES: [&str; 4] = ["aten", "prims", "quantized", "quantized_decomposed"];
/// Operators of `aten` that read or write a file.
const FILES: [&str; 2] = ["from_file", "save"];
/// Higher-order operators: each calls graphs of the program, or operators that the program names.
const HIGHER_ORDER: [&str; 9] = [
    "associative_scan",
    "cond",
    "flex_attention",
    "map_impl",
    "scan",
    "while_loop",
    "wrap",
    "wrap_with_autocast",
    "wrap_with_set_grad_enabled",
];
/// Functions on numbers, with which shapes are computed (`_SYM_OPS`), and on tuples.
const FUNCTIONS: [&str; 30] = [
    "_operator.add",
    "_operator.and_",
    "_operator.eq",
    "_operator.floordiv",
    "_operator.ge",
    "_operator.getitem",
    "_operator.gt",
    "_operator.le",
    "_operator.lshift",
    "_operator.lt",
    "_operator.mod",
    "_operator.mul",
    "_operator.ne",
    "_operator.neg",
    "_operator.or_",
    "_operator.pos",
    "_operator.pow",
    "_operator.rshift",
    "_operator.sub",
    "_operator.truediv",
    "_operator.xor",
    "math.ceil",
    "math.floor",
    "math.trunc",
    "torch._sym_sqrt",
    "torch.sym_float",
    "torch.sym_int",
    "torch.sym_ite",
    "torch.sym_max",
    "torch.sym_min",
];

/// Inert for operators of torch that compute; would execute for functions that run code or access the system.
pub(super) fn verdict(name: &str) -> Verdict {
    if FUNCTIONS.contains(&name) || name == "torch.sym_not" {
        return Verdict::Inert;
    }
    let parts: Vec<&str> = name.split('.').collect();
    let is_plain = |part: &&str| !part.is_empty() && is_name(part);
    match parts.as_slice() {
        ["torch", "ops", "higher_order", name] if HIGHER_ORDER.contains(name) => Verdict::Inert,
        ["torch", "ops", "aten", name, ..] if FILES.contains(name) => Verdict::WouldExecute,
        ["torch", "ops", namespace, rest @ ..] if NAMESPACES.contains(namespace) => match rest {
            [name] if is_plain(name) && !name.starts_with("__") => Verdict::Inert,
            // `aten.__and__.Tensor`.
            [name, overload] if is_plain(name) && is_plain(overload) && !overload.starts_with('_') => {
                Verdict::Inert
            }
            _ => Verdict::Unknown,
        },
        ["torch", rest @ ..] if runs(rest) => Verdict::WouldExecute,
        _ => Verdict::Unknown,
    }
}

/// Whether a path leads to a module or function that runs code: `os.system`.
fn runs(path: &[&str]) -> bool {
    let Some((name, modules)) = path.split_last() else { return false };
    let executes = |module: &str| gadgets::classify(module, name, false).verdict == Verdict::WouldExecute;
    let starts = (0..modules.len()).filter_map(|start| modules.get(start..));
    starts
        .map(|modules| modules.join("."))
        .any(|module| executes(&module) || executes(&format!("torch.{module}")))
        || executes("torch")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_that_compute_are_inert() {
        for name in [
            "torch.ops.aten.linear.default",
            "torch.ops.aten.__and__.Tensor",
            "torch.ops.higher_order.cond",
            "_operator.getitem",
            "torch.sym_not",
        ] {
            assert_eq!(verdict(name), Verdict::Inert, "{name}");
        }
    }

    #[test]
    fn other_names_are_not() {
        for name in
            ["torch.os.system", "torch.ops.aten.from_file", "torch.ops.aten.save.default", "torch.load"]
        {
            assert_eq!(verdict(name), Verdict::WouldExecute, "{name}");
        }
        for name in [
            "",
            "torch",
            "aten",
            "torch.ops.load_library",
            "torch.ops.mine.run.default",
            "torch.ops.aten.add.default.__class__",
            "torch.ops.aten.add.__init__",
            "torch.ops.aten.__class__",
            "torch.ops.aten.a b",
            "_operator.attrgetter",
            "math.__loader__",
            "#mine:x",
        ] {
            assert_eq!(verdict(name), Verdict::Unknown, "{name}");
        }
    }
}
