//! The table of globals, `globals.txt`, which explains its columns: what each name means to the loader, which calls and states of it a scan
//! knows, and whether torch allows it.

use std::collections::HashMap;

use once_cell::race::OnceBox;

/// The text of the table.
pub const TEXT: &str = include_str!("globals.txt");
/// The longest name of a module in it, and more: longer ones are not looked up.
const MODULE_MAX_BYTES: usize = 64;

/// A row of the table, for each of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The type of what a call gives, or of the name itself where it has no calls.
    pub kind: &'static str,
    /// How a call makes it, where there are several ways.
    pub how: &'static str,
    /// Whether `torch.load(weights_only=True)` allows the name.
    pub in_torch: bool,
    /// Whether such values are hashed and compared by builtin values alone.
    pub is_key: bool,
    /// Whether what a call gives can be called.
    pub is_callable: bool,
    /// The forms of calls.
    pub calls: &'static str,
    /// The schema of states.
    pub state: &'static str,
}

impl Row {
    /// Whether the name is a value that nothing can call: a dtype, a layout.
    pub fn is_constant(&self) -> bool {
        self.is_key && self.calls == "-"
    }
}

/// The row of a class, function or constant; `None` where it has none.
pub fn row(module: &str, name: &str) -> Option<&'static Row> {
    if module.len() > MODULE_MAX_BYTES {
        return None;
    }
    static ROWS: OnceBox<Vec<Row>> = OnceBox::new();
    static NUMBERS: OnceBox<HashMap<(&str, &str), usize>> = OnceBox::new();
    let number = |(number, (module, name, _))| ((module, name), number);
    let numbers = NUMBERS.get_or_init(|| Box::new(rows().enumerate().map(number).collect()));
    ROWS.get_or_init(|| Box::new(rows().map(|(_, _, row)| row).collect())).get(*numbers.get(&(module, name))?)
}

/// Module, name and row of every name in the table.
pub fn rows() -> impl Iterator<Item = (&'static str, &'static str, Row)> {
    let lines = TEXT.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', ' ']));
    lines
        .filter(|line| !line.starts_with("type "))
        .filter_map(parse)
        .flat_map(|(row, module, names)| names.split(' ').map(move |name| (module, name, row)))
}

fn parse(line: &'static str) -> Option<(Row, &'static str, &'static str)> {
    let mut columns = line.split("  ").map(str::trim).filter(|column| !column.is_empty());
    let (flags, meaning) = (columns.next()?, columns.next()?);
    let (module, names) = (columns.next()?, columns.next()?);
    let (calls, state) = (columns.next()?, columns.next()?);
    let (kind, how) = meaning.split_once(':').unwrap_or((meaning, ""));
    let has = |flag| flags.contains(flag);
    let row = Row { kind, how, in_torch: has('t'), is_key: has('k'), is_callable: has('c'), calls, state };
    Some((row, module, names))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_row_and_every_name_stands_once() {
        let lines = TEXT.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', ' ']));
        for line in lines.filter(|line| !line.starts_with("type ")) {
            let (_, _, names) = parse(line).unwrap_or_else(|| panic!("{line}"));
            assert!(names.split(' ').all(|name| !name.is_empty() && !name.contains('.')), "{line}");
            let flags = line.split(' ').next().unwrap_or_default();
            assert!(flags == "-" || flags.chars().all(|flag| "tkc".contains(flag)), "{line}");
        }
        let mut names: Vec<_> = rows().map(|(module, name, _)| (module, name)).collect();
        assert!(names.iter().all(|(module, name)| row(module, name).is_some()));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn a_name_is_known_by_its_own_module_only() {
        assert_eq!(row("torch.nn.modules.linear", "Linear").map(|row| row.kind), Some("module"));
        for (module, name) in [
            ("mylib.linear", "Linear"),
            ("torch.nn.modules.linear", "Linear.forward"),
            ("torch.nn.modules.linear", " Linear"),
            ("evil", "FloatStorage"),
        ] {
            assert_eq!(row(module, name), None, "{module}.{name}");
        }
    }
}
