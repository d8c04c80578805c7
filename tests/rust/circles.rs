//! Enforces that no files of the crate import each other in a circle. A file imports the file that defines a name, whatever modules
//! pass the name on; `mod x;` and `pub use` are not imports, and a module and those inside it are one.

use std::collections::{BTreeMap, BTreeSet};

use crate::layers::{Source, ident_at, sources, starts_of};

/// The importing file, the file that defines the name, and the name.
type Arrow = (String, String, String);

/// A path in a file: its segments from the crate's root, and the name that it has in the file.
struct Named {
    path: Vec<String>,
    name: String,
    /// Whether it is in a `use` that passes the name on.
    is_passed_on: bool,
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let files: BTreeMap<Vec<String>, Vec<Named>> =
        sources().iter().map(|source| (module(&source.path), named(source))).collect();
    let mut arrows = BTreeSet::new();
    for (from, names) in &files {
        for named in names.iter().filter(|named| !named.is_passed_on) {
            if let Some((to, name)) = definition(&files, &named.path, 8)
                && !to.starts_with(from)
                && !from.starts_with(to)
            {
                arrows.insert((from.join("::"), to.join("::"), name));
            }
        }
    }
    let circles = circles(&arrows);
    assert!(circles.is_empty(), "the arrows of all circles:\n{circles:#?}");
}

#[test]
fn circles_are_found_through_names_that_are_passed_on() {
    let sources = [
        ("a/mod.rs", "mod b; mod c; pub(crate) use self::b::B; struct A;"),
        ("a/b.rs", "use super::A;\npub struct B;"),
        ("a/c.rs", "use super::{A, B as Other};"),
    ];
    let files: BTreeMap<_, _> =
        sources.iter().map(|(path, text)| (module(path), named(&Source::new(path, text)))).collect();
    let path = |text: &str| text.split("::").map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(definition(&files, &path("a::B"), 8), Some((&path("a::b"), "B".to_owned())));
    assert_eq!(files[&path("a::c")][1].name, "Other");
    let arrow = |from: &str, to: &str| (from.to_owned(), to.to_owned(), "X".to_owned());
    assert!(circles(&BTreeSet::from([arrow("a", "b"), arrow("b", "c")])).is_empty());
    assert_eq!(circles(&BTreeSet::from([arrow("a", "b"), arrow("b", "a"), arrow("a", "c")])).len(), 2);
}

/// The arrows of circles: those to a file from which other arrows lead back.
fn circles(arrows: &BTreeSet<Arrow>) -> Vec<&Arrow> {
    let mut after: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to, _) in arrows {
        after.entry(from).or_default().insert(to);
    }
    let leads_back = |(from, to, _): &&Arrow| {
        let (mut seen, mut next) = (BTreeSet::from([to.as_str()]), vec![to.as_str()]);
        while let Some(file) = next.pop() {
            next.extend(after.get(file).into_iter().flatten().filter(|&&file| seen.insert(file)));
        }
        seen.contains(from.as_str())
    };
    arrows.iter().filter(leads_back).collect()
}

/// The file that defines what a path names, and the name.
fn definition<'f>(
    files: &'f BTreeMap<Vec<String>, Vec<Named>>,
    path: &[String],
    steps: usize,
) -> Option<(&'f Vec<String>, String)> {
    let len = (1..=path.len()).rev().find(|&len| files.contains_key(&path[..len])).unwrap_or(0);
    let (module, names) = files.get_key_value(&path[..len])?;
    let name = path.get(len).cloned().unwrap_or_default();
    match names.iter().find(|named| named.name == name && named.path.len() > 1) {
        Some(named) if steps > 0 && named.path != path => definition(files, &named.path, steps - 1),
        // The root only passes names on.
        _ => (len > 0).then_some((module, name)),
    }
}

/// The segments of a file's module.
fn module(path: &str) -> Vec<String> {
    let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
    path.split('/').filter(|part| *part != "lib").map(str::to_owned).collect()
}

/// The paths of a file that name something of the crate.
fn named(source: &Source) -> Vec<Named> {
    // `super` in an inline module of tests is the file itself.
    let code = source.code.split("#[cfg(test)]mod tests{").next().unwrap_or_default();
    let own = module(&source.path);
    let mut found = Vec::new();
    let children = starts_of(code, "mod ").filter_map(|at| ident_at(code, at + 4)).map(|(_, name)| name);
    for start in children.chain(["crate", "self", "super"]) {
        for at in starts_of(code, &format!("{start}::")) {
            let (mut path, mut rest) = (own.clone(), &code[at..]);
            loop {
                if let Some(after) = rest.strip_prefix("crate::") {
                    path.clear();
                    rest = after;
                } else if let Some(after) = rest.strip_prefix("super::") {
                    path.pop();
                    rest = after;
                } else if let Some(after) = rest.strip_prefix("self::") {
                    rest = after;
                } else {
                    break;
                }
            }
            let before = code[..at].trim_end();
            let is_passed_on = before.strip_suffix("use").is_some_and(|before| {
                let before = before.trim_end();
                before.ends_with("pub") || before.ends_with(')')
            });
            // `pub(in crate::x)` imports nothing.
            if !before.ends_with("(in") {
                expand(&path, rest, is_passed_on, &mut found);
            }
        }
    }
    found
}

/// Adds the path at the start of `code`, or each path of the braces there; returns the rest of the code.
fn expand<'c>(before: &[String], code: &'c str, is_passed_on: bool, found: &mut Vec<Named>) -> &'c str {
    let mut path = before.to_vec();
    let mut code = code.trim_start();
    while let Some((_, name)) = ident_at(code, 0) {
        if name != "self" {
            path.push(name.to_owned());
        }
        code = &code[name.len()..];
        match code.strip_prefix("::") {
            Some(rest) => code = rest,
            None => {
                let alias =
                    code.trim_start().strip_prefix("as ").and_then(|rest| ident_at(rest.trim_start(), 0));
                let name = alias
                    .map_or_else(|| path.last().cloned().unwrap_or_default(), |(_, name)| name.to_owned());
                found.push(Named { path, name, is_passed_on });
                return code;
            }
        }
    }
    if let Some(mut rest) = code.strip_prefix('{') {
        while !rest.is_empty() && !rest.starts_with('}') {
            rest = expand(&path, rest, is_passed_on, found);
            rest = rest.find([',', '}']).map_or("", |at| &rest[at..]).trim_start_matches(',').trim_start();
        }
        return rest.strip_prefix('}').unwrap_or(rest);
    }
    found.push(Named { path, name: String::new(), is_passed_on });
    code.strip_prefix('*').unwrap_or(code)
}
