//! The table of classes that are inert although the loader does not rebuild them: `known_classes.txt`, which also explains its
//! columns and says which versions were read.

use std::collections::HashMap;

use once_cell::race::OnceBox;

/// Which calls of a name are inert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `object.__new__(class)`.
    New,
    /// `str.__new__(class, text)`.
    NewText,
    /// A call without arguments.
    Call,
    /// A call of one string.
    Text,
    /// A call of strings.
    Texts,
    /// A call of one string or integer.
    Address,
    /// A call of `"N/M"`, or of two integers.
    Ratio,
    /// A call of one to three numbers.
    Numbers,
    /// A call of the bytes of a date or time, and optionally a time zone.
    Clock,
    /// A call of a `timedelta`, and optionally a name.
    Timezone,
    /// A member of an enumeration.
    Member,
    /// `array._array_reconstructor`.
    Buffer,
    /// A call that returns its first argument.
    Identity,
    /// `copyreg._reconstructor`.
    Rebuild,
    /// None: it is used as a value only.
    Name,
}

/// Which states BUILD may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum State {
    /// None.
    Nothing,
    /// The one that was checked with the form of the call. No row has it.
    Checked,
    /// A dict of attributes that are data.
    Attributes,
    /// As [`Attributes`](State::Attributes); the one attribute that is named may be a function.
    AttributesAnd(&'static str),
    /// A tuple of values of which none can be called.
    Values,
    /// As [`Attributes`](State::Attributes); the names of an RNN's weights are lists of strings.
    Rnn,
    /// The attributes of joblib's wrapper of an array, which is of numbers or objects and no subclass.
    Array,
}

/// A row of the table, for one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KnownClass {
    pub(super) form: Form,
    pub(super) state: State,
    /// Whether its objects can be called.
    pub(super) callable: bool,
}

/// The row of a class or function; `None` where it has none.
pub(super) fn lookup(module: &str, name: &str) -> Option<KnownClass> {
    static ROWS: OnceBox<HashMap<(&str, &str), KnownClass>> = OnceBox::new();
    let all = || Box::new(rows().map(|(module, name, class)| ((module, name), class)).collect());
    ROWS.get_or_init(all).get(&(module, name)).copied()
}

/// Module, name and row of each name in the table.
fn rows() -> impl Iterator<Item = (&'static str, &'static str, KnownClass)> {
    let lines = include_str!("known_classes.txt").lines();
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .filter_map(row)
        .flat_map(|(class, module, names)| names.split(' ').map(move |name| (module, name, class)))
}

fn row(line: &'static str) -> Option<(KnownClass, &'static str, &'static str)> {
    let mut columns = line.split("  ").map(str::trim).filter(|column| !column.is_empty());
    let (form, state) = (form(columns.next()?)?, columns.next()?);
    let (module, names) = (columns.next()?, columns.next()?);
    let named = state.strip_prefix("callable(").and_then(|rest| rest.strip_suffix(')'));
    let (state, callable) = match (state, named) {
        (_, Some(name)) => (State::AttributesAnd(name), true),
        // Whether the argument that a function returns can be called is not looked up.
        ("none", _) => (State::Nothing, form == Form::Identity),
        ("attributes", _) => (State::Attributes, false),
        ("values", _) => (State::Values, false),
        ("callable", _) => (State::Attributes, true),
        ("rnn", _) => (State::Rnn, true),
        ("array", _) => (State::Array, false),
        _ => return None,
    };
    Some((KnownClass { form, state, callable }, module, names))
}

fn form(word: &str) -> Option<Form> {
    Some(match word {
        "new" => Form::New,
        "new(text)" => Form::NewText,
        "call" => Form::Call,
        "text" => Form::Text,
        "texts" => Form::Texts,
        "address" => Form::Address,
        "ratio" => Form::Ratio,
        "numbers" => Form::Numbers,
        "clock" => Form::Clock,
        "timezone" => Form::Timezone,
        "member" => Form::Member,
        "buffer" => Form::Buffer,
        "identity" => Form::Identity,
        "rebuild" => Form::Rebuild,
        "name" => Form::Name,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::gadgets;
    use crate::scan::report::Verdict;

    #[test]
    fn every_line_is_a_row_and_every_name_stands_once() {
        let lines = include_str!("known_classes.txt").lines();
        for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let names = row(line).unwrap_or_else(|| panic!("{line}")).2;
            assert!(names.split(' ').all(|name| !name.is_empty() && !name.contains('.')), "{line}");
        }
        let mut names: Vec<_> = rows().map(|(module, name, _)| (module, name)).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn no_row_is_a_name_of_the_knowledge_base() {
        for (module, name, _) in rows() {
            assert_eq!(gadgets::classify(module, name, false).verdict, Verdict::Unknown, "{module}.{name}");
        }
    }

    #[test]
    fn a_class_is_known_by_its_own_module_only() {
        let linear = lookup("torch.nn.modules.linear", "Linear").unwrap();
        assert_eq!(linear, KnownClass { form: Form::New, state: State::Attributes, callable: true });
        assert_eq!(lookup("mylib.linear", "Linear"), None);
        assert_eq!(lookup("torch.nn.modules.linear", "Linear.forward"), None);
        assert_eq!(lookup("torch.nn.modules.linear", " Linear"), None);
    }
}
